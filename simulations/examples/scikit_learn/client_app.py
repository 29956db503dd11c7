"""The client: ordinary Flower code, and one line of PrivQuant."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fl_privquant.flower import PrivQuantMod
from simulations.examples.scikit_learn.task import load_data, train_model

app = ClientApp(mods=[PrivQuantMod(max_epsilon=4.0)])  # PrivQuant: the client's own limit


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model on the client's own data."""
    partition, num_partitions = context.node_config["partition-id"], context.node_config["num-partitions"]
    images, labels = load_data(int(partition), int(num_partitions))
    received = {name: array.numpy() for name, array in message.content.array_records["arrays"].items()}
    epochs, rate = context.run_config["local-epochs"], context.run_config["learning-rate"]
    trained = train_model(received, (images, labels), int(epochs), float(rate))
    arrays = ArrayRecord({name: Array(array) for name, array in trained.items()})
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
