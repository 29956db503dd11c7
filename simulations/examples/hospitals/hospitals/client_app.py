"""A hospital: ordinary Flower code, and two lines of PrivQuant."""

from __future__ import annotations

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fl_privquant.flower import PrivQuantMod, linear_record_update
from hospitals.privacy import plan
from hospitals.task import load_patients

app = ClientApp(mods=[PrivQuantMod(**plan.client_limits, secure_aggregation=True)])  # PrivQuant


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer with a sum over randomly drawn patients, to which the mod adds noise before it is masked."""
    features, labels = load_patients(int(context.node_config["partition-id"]))
    update = linear_record_update(message, features, labels)  # PrivQuant
    return Message(RecordDict({"arrays": update}), reply_to=message)
