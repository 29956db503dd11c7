"""The client: ordinary Flower code, and one line of PrivQuant."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fl_privquant.flower import PrivQuantMod
from my_app.privacy import plan
from my_app.task import load_data, train

app = ClientApp(mods=[PrivQuantMod(**plan.client_limits, secure_aggregation=True)])  # PrivQuant


@app.train()
def train_client(message: Message, context: Context) -> Message:
    """Train the received model on the client's own data."""
    model = {name: array.numpy() for name, array in message.content.array_records["arrays"].items()}
    data = load_data(int(context.node_config["partition-id"]))
    train(model, data, float(context.run_config["learning-rate"]))
    arrays = ArrayRecord({name: Array(array) for name, array in model.items()})
    metrics = MetricRecord({"num-examples": len(data[1])})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
