"""Records and replies that are made without Flower's checks are what Flower itself would have made."""

from __future__ import annotations

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.serde import recorddict_to_proto
from numpy import arange

from fl_privquant.flower._flower_internals import (
    make_reply,
    unchecked_record,
    use_server_identity,
)


def records():
    array = Array(arange(3.0))
    return {
        "arrays": ArrayRecord({"w": array}),
        "config": ConfigRecord({"rate": 0.5, "names": ["a", "b"], "blob": b"x", "on": True}),
        "metrics": MetricRecord({"loss": 1.5, "losses": [1, 2]}),
    }


def test_made_records_are_flowers_own_on_the_wire():
    own = {name: unchecked_record(type(record), dict(record)) for name, record in records().items()}
    assert recorddict_to_proto(unchecked_record(RecordDict, own)) == recorddict_to_proto(
        RecordDict(records())
    )
    for name, record in records().items():
        assert vars(own[name]).keys() <= vars(record).keys()
        assert own[name] == record
        assert own[name].object_id == record.object_id


def test_made_records_check_what_is_put_there_later():
    config = unchecked_record(ConfigRecord, {})
    with pytest.raises(TypeError):
        config["rate"] = object()


def test_a_reply_is_flowers_own():
    with use_server_identity(3):
        message = Message(RecordDict(), 7, "train", ttl=100.0, group_id="4")
    message.metadata.__dict__["_message_id"] = "some-id"
    message.metadata.__dict__["_dst_task_id"] = 12
    content = RecordDict(records())
    expected, own = Message(content, reply_to=message), make_reply(message, content)
    assert own.content is content
    assert vars(own).keys() == vars(expected).keys()
    fields, flowers = vars(own.metadata), vars(expected.metadata)
    clock = {"_created_at", "_ttl"}
    assert {key: fields[key] for key in fields.keys() - clock} == {
        key: flowers[key] for key in flowers.keys() - clock
    }
    for key in clock:
        assert fields[key] == pytest.approx(flowers[key], abs=60.0)
    assert fields["_created_at"] + fields["_ttl"] == pytest.approx(
        flowers["_created_at"] + flowers["_ttl"], abs=1e-3
    )
    # The message that is replied to stays what it is.
    assert (message.metadata.message_id, message.metadata.dst_node_id) == ("some-id", 7)
