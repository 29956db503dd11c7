"""Public shapes of Flower apps, as folders: each with modules of the same names, and no line of ours."""

from __future__ import annotations

from pathlib import Path

__all__ = ["CUSTOM", "TORCH", "write_app"]

_PROJECT = """
[project]
name = "{name}"
version = "1.0.0"

[tool.flwr.app]
publisher = "somebody"

[tool.flwr.app.components]
serverapp = "quickstart.server_app:app"
clientapp = "quickstart.client_app:app"

[tool.flwr.app.config]
num-server-rounds = 2
learning-rate = 0.1
saved = ""
"""

# The quickstart of Flower's template for PyTorch, with batch normalization and data that are made up.
TORCH = {
    "task": """
import torch
from torch import nn


def make_model():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))


def load_data(partition):
    made = torch.Generator().manual_seed(partition)
    x = torch.randn(20 + 10 * partition, 4, generator=made)
    return x, (x[:, 0] > 0).long()


def train(model, x, y, rate):
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    model.train()
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()


def test(model, x, y):
    model.eval()
    with torch.no_grad():
        outputs = model(x)
    return nn.functional.cross_entropy(outputs, y).item(), (outputs.argmax(1) == y).float().mean().item()
""",
    "client_app": """
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.task import load_data, make_model
from quickstart.task import test as test_fn
from quickstart.task import train as train_fn

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    model = make_model()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    x, y = load_data(context.node_config["partition-id"])
    loss = train_fn(model, x, y, msg.content["config"]["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(x)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    model = make_model()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    x, y = load_data(context.node_config["partition-id"])
    loss, accuracy = test_fn(model, x, y)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(x)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
""",
    "server_app": """
import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from quickstart.task import make_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    torch.manual_seed(3)
    strategy = FedAvg()
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(make_model().state_dict()),
        train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
        num_rounds=context.run_config["num-server-rounds"],
    )
    if context.run_config["saved"]:
        np.savez(context.run_config["saved"], **{n: a.numpy() for n, a in result.arrays.items()})
""",
}

# A loop without a strategy, names of its own, and a state that clients keep.
CUSTOM = {
    "task": """
import numpy as np

SIZE = 12


def target(partition):
    return np.random.default_rng(partition).normal(0, 0.05, SIZE).astype(np.float32)
""",
    "client_app": """
import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train("step")
def step(msg: Message, context: Context):
    from quickstart.task import target

    assert set(msg.content) == {"model", "told"} and not set(context.node_config) - {
        "partition-id",
        "num-partitions",
    }
    seen = context.state.get("seen", MetricRecord({"rounds": 0}))
    context.state["seen"] = MetricRecord({"rounds": seen["rounds"] + 1})
    assert context.state["seen"]["rounds"] == msg.content["told"]["round"]
    weights = msg.content["model"]["weights"].numpy()
    rate = np.float32(context.run_config["learning-rate"])
    moved = weights + rate * (target(context.node_config["partition-id"]) - weights)
    return Message(RecordDict({"model": ArrayRecord({"weights": Array(moved)})}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    from quickstart.task import target

    error = msg.content["model"]["weights"].numpy() - target(context.node_config["partition-id"])
    metrics = MetricRecord({"squared": float((error**2).mean())})
    return Message(RecordDict({"found": metrics}), reply_to=msg)
""",
    "server_app": """
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    from quickstart.task import SIZE

    weights = np.zeros(SIZE, np.float32)
    for number in range(1, context.run_config["num-server-rounds"] + 1):
        content = RecordDict({"model": ArrayRecord({"weights": Array(weights)})})
        nodes = list(grid.get_node_ids())
        told = {"told": ConfigRecord({"round": number})}
        asked = [Message(RecordDict({**content, **told}), node, "train.step") for node in nodes]
        replies = list(grid.send_and_receive(asked))
        weights = np.mean([reply.content["model"]["weights"].numpy() for reply in replies], axis=0)
        content = RecordDict({"model": ArrayRecord({"weights": Array(weights)})})
        ids = list(grid.push_messages([Message(content, node, "evaluate") for node in nodes]))
        assert list(grid.pull_messages(ids))
    context.state["model"] = ArrayRecord({"weights": Array(weights)})
    if context.run_config["saved"]:
        np.savez(context.run_config["saved"], weights=weights)
""",
}


def write_app(folder: Path, modules: dict[str, str], project: str = _PROJECT) -> Path:
    """The folder of an app with these modules."""
    package = folder / "quickstart"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    for name, text in modules.items():
        (package / f"{name}.py").write_text(text)
    (folder / "pyproject.toml").write_text(project.format(name=folder.name))
    return folder
