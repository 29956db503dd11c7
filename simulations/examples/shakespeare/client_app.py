"""The client: ordinary Flower code, and one line of PrivQuant."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fl_privquant.flower import PrivQuantMod
from simulations.examples.shakespeare.task import make_model, train_model

app = ClientApp(mods=[PrivQuantMod(max_epsilon=4.0)])  # PrivQuant: the client's own limit


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model on the texts of the client's role."""
    folder, rate = str(context.run_config["data"]), float(context.run_config["learning-rate"])
    model = make_model(folder)
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    server_round = int(message.content.config_records["config"]["server-round"])  # type: ignore[arg-type]
    count = train_model(model, folder, int(context.node_config["partition-id"]), server_round, rate)
    arrays, metrics = ArrayRecord(model.state_dict()), MetricRecord({"num-examples": count})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
