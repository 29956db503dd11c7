"""An app on SuperNodes whose server asks a client to sign two lists of survivors, and whose saves fail."""

import time
from contextlib import suppress
from dataclasses import replace

from flwr.app import ConfigRecord, Message, MessageType
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.supernode.runtime import run_clientapp

from fl_privquant.errors import SecureAggregationError
from fl_privquant.flower import PrivQuantMod
from fl_privquant.flower._messages.grids import GridWrapper
from fl_privquant.flower._messages.stages import (
    CONFIRM,
    KEY_DATA,
    KEY_STAGE,
    protocol_content,
    protocol_record,
)
from fl_privquant.secagg._wire import Subset
from fl_privquant.secagg.messages import SurvivorList
from tests.e2e.secure_app import POLICY, run, train

# Flower ends the process five seconds after it begins to exit.
SLOW = 30.0


def lose_save(message, context, call_next):
    """After a client has confirmed the survivors, its state takes longer to save than Flower waits."""
    record = protocol_record(message)
    if record is not None and record[KEY_STAGE] == CONFIRM:
        run_clientapp.push_task_output = lambda **_: time.sleep(SLOW)
    return call_next(message, context)


client_app = ClientApp()
client_app.train(mods=[lose_save, PrivQuantMod(max_epsilon=2.0, secure_aggregation=POLICY)])(train)


class TwoLists(GridWrapper):
    """Asks the first client that has signed the list of survivors to sign another one, without somebody."""

    signatures = 0
    refusal = ""

    def send_and_receive(self, messages, *, timeout=None):
        sent = list(messages)
        replies = list(super().send_and_receive(sent, timeout=timeout))
        record = protocol_record(sent[0]) if sent else None
        if record is None or record[KEY_STAGE] != CONFIRM:
            return replies
        victim = next(reply.metadata.src_node_id for reply in replies if reply.has_content())
        (asked,) = (message for message in sent if message.metadata.dst_node_id == victim)
        survivors = SurvivorList.from_bytes(protocol_record(asked)[KEY_DATA])
        # The others of the four: one list is without the first, the other without the last, so that one fits.
        for left_out in (0, -1):
            places = list(survivors.survivors.places)
            places.pop(left_out)
            other = replace(survivors, survivors=Subset(survivors.survivors.size, tuple(places)))
            content = protocol_content(other.to_bytes(), CONFIRM)
            again = Message(content, victim, MessageType.TRAIN, group_id=asked.metadata.group_id)
            (answer,) = super().send_and_receive([again], timeout=timeout)
            if answer.has_content():
                self.signatures += 1
            else:
                self.refusal = answer.error.reason
        self.signatures += 1
        return replies


server_app = ServerApp()


@server_app.main()
def main(grid, context):
    lying = TwoLists(grid)
    # Without their states the clients cannot unmask, so that the only round ends without a sum.
    with suppress(SecureAggregationError):
        run(lying, context, secure=True)
    context.state["lists"] = ConfigRecord({"signatures": lying.signatures, "refusal": lying.refusal})
