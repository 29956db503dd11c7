"""One client and the messages that it is asked by, without a server or an engine."""

import itertools

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict

import fl_privquant as pq
from fl_privquant.codec.encoding import Encoding
from fl_privquant.flower._flower_internals import use_server_identity
from fl_privquant.flower._messages.protocol import Request
from tests.flower.apps import as_arrays, as_record, initial_arrays
from tests.flower_log import listen

DIMENSION = 25
RUN_IDS = itertools.count(1 << 40)
ASKED = Request(1, Encoding(pq.design("one_bit", epsilon=1.0), clip=0.2))


def ask(sent, number=1, /, **changes):
    """A server's message, with changes to the request's keys; None removes one."""
    config = ConfigRecord({"server-round": number})
    ASKED.write(config)
    config["privquant-round"] = number
    config["privquant-mechanism"] = sent if isinstance(sent, bytes) else sent.to_bytes()
    for key, value in changes.items():
        name = f"privquant-{key.replace('_', '-')}"
        config.pop(name, None)
        if value is not None:
            config[name] = value
    content = RecordDict({"arrays": as_record(initial_arrays()), "config": config})
    with use_server_identity(1):
        return Message(content, 7, "train")


def client(run_config=None, **node_config):
    """A client with these settings of its node; it is known by its run, so that each call gives another."""
    settings = {name.replace("_", "-"): value for name, value in node_config.items()}
    return Context(next(RUN_IDS), 7, {"partition-id": 0} | settings, RecordDict(), run_config or {})


def train(message, context):
    new = {
        name: each + each.dtype.type(0.1) if each.dtype.kind == "f" else each
        for name, each in as_arrays(message.content["arrays"]).items()
    }
    metrics = MetricRecord({"num-examples": 5, "loss": 0.25})
    return Message(RecordDict({"arrays": as_record(new), "metrics": metrics}), reply_to=message)


def refused(mod, message, context=None, app=train):
    """The reason for which the mod refuses, as the client's log has it."""
    with listen() as log:
        reply = mod(message, context or client(), app)
    assert reply.has_error()
    # To the server that asked, at once: not to the app's own message.
    assert reply.metadata.dst_node_id == message.metadata.src_node_id
    assert reply.metadata.reply_to_message_id == message.metadata.message_id
    (reason,) = (text.partition(" refused: ")[2] for text in log.lines if " refused: " in text)
    # The server reads the same text, or that the log says why.
    kind, sent = reason.partition(":")[0], reply.error.reason
    assert sent == reason or (sent.startswith(f"{kind}: ") and sent.endswith("; the client's log says why"))
    return reason


def never(message, context):
    raise AssertionError("must not train")
