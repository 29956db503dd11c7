"""The client: it returns the whole model, of which its mod sends the LoRA matrices alone."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fl_privquant.flower import PrivQuantMod
from simulations.examples.lora.task import load_data, make_model, train_model

app = ClientApp(mods=[PrivQuantMod(max_epsilon=4.0)])  # PrivQuant: the client's own limit


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the LoRA matrices on the client's own data."""
    model = make_model()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    partition, num_partitions = context.node_config["partition-id"], context.node_config["num-partitions"]
    images, labels = load_data(int(partition), int(num_partitions))
    epochs, rate = context.run_config["local-epochs"], context.run_config["learning-rate"]
    train_model(model, images, labels, int(epochs), float(rate))
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(
        RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message
    )
