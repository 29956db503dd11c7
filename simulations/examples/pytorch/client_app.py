"""The client: ordinary Flower code, and one line of PrivQuant."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fl_privquant.flower import PrivQuantMod
from simulations.examples.pytorch.privacy import plan

app = ClientApp(mods=[PrivQuantMod(**plan.client_limits, secure_aggregation=True)])  # PrivQuant


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model on the client's own data."""
    # A SuperNode starts a process for each message. Those that only agree on masks need no PyTorch.
    from simulations.examples.pytorch.task import load_data, make_model, train_model

    model = make_model()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    partition, num_partitions = context.node_config["partition-id"], context.node_config["num-partitions"]
    images, labels = load_data(int(partition), int(num_partitions))
    epochs, learning_rate = context.run_config["local-epochs"], context.run_config["learning-rate"]
    loss = train_model(model, images, labels, int(epochs), float(learning_rate))
    metrics = MetricRecord({"loss": loss, "num-examples": len(labels)})
    return Message(
        RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message
    )
