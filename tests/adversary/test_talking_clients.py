"""What hostile clients say: it forges no line of the log and no word of the statement."""

from __future__ import annotations

from typing import Any

import pytest
from flwr.app import Error, Message, MetricRecord

import fl_privquant as pq
from fl_privquant.accounting import SecureSum
from fl_privquant.errors import one_line
from fl_privquant.flower import PrivQuantMod, PrivQuantStrategy
from tests.flower.apps import CLIP, client_app, fedavg, simulate

FORGED_LINE = "refused\n\x1b[2J\x1b[31mPrivQuant: round 1, 20 usable updates, 0 failed"


def make_strategy(**options: Any) -> PrivQuantStrategy:
    return PrivQuantStrategy(fedavg(), pq.Encoding(pq.design("one_bit", epsilon=2.0), CLIP), **options)


@pytest.mark.parametrize("text", [FORGED_LINE, "a" * 10**6, "\u202e\x00\r\x85\u2028", "\ud800"])
def test_foreign_texts_become_one_printable_line(text):
    shown = one_line(text)
    assert shown.isprintable()
    assert len(shown) <= 500


class Complaint:
    """A mod of a hostile client: every message is answered by an error with a text of its choice."""

    def __call__(self, msg, ctxt, call_next):
        if ctxt.node_config["partition-id"] == 2:
            return Message(Error(code=1, reason=FORGED_LINE * 1000), reply_to=msg)
        return call_next(msg, ctxt)


@pytest.mark.parametrize("secure", [False, True])
def test_a_client_cannot_forge_lines_of_the_log(flower_log, secure):
    mods = [Complaint(), PrivQuantMod(max_epsilon=10.0, secure_aggregation=secure)]
    simulate(make_strategy(aggregation=SecureSum() if secure else None), client_app(mods), 11)
    told = [line for line in flower_log.lines if "usable updates, 0 failed" in line]
    assert told
    assert all("refused" in line for line in told)
    assert not any("\x1b" in line or "\n" in line or len(line) > 1000 for line in told)


class NamesMetrics:
    """A mod of a hostile client that sends metrics under new names in every round."""

    def __call__(self, msg, ctxt, call_next):
        out = call_next(msg, ctxt)
        if ctxt.node_config["partition-id"] == 1 and not out.has_error():
            number = msg.content["config"]["server-round"]
            names = {f"\x1b[31m{number} {place} " + 1000 * "x": 1.0 for place in range(200)}
            out.content["metrics"] = MetricRecord(names)
        return out


def test_one_client_cannot_make_the_statement_long(flower_log):
    strategy = make_strategy()
    simulate(strategy, client_app([NamesMetrics(), PrivQuantMod(max_epsilon=10.0)]), 3, num_rounds=4)
    (line,) = [line for line in strategy.privacy_statement() if "not counted in any figure" in line]
    assert "and at least 91 more metrics without protection" in line
    assert len(line) < 1000
    assert all(len(str(statement)) < 1500 for statement in strategy.statements())
    assert line.isprintable()
    assert len(strategy.checkpoint_state()["uncounted"]) == 101


class ClaimsToBeSimulated:
    """A mod of a hostile client that draws securely, and says that it does not."""

    def __call__(self, msg, ctxt, call_next):
        out = call_next(msg, ctxt)
        if ctxt.node_config["partition-id"] in (1, 4) and not out.has_error():
            out.content["privquant-reply"]["privquant-simulated"] = True
        return out


def test_one_client_cannot_call_the_run_simulated(flower_log):
    strategy = make_strategy()
    simulate(strategy, client_app([ClaimsToBeSimulated(), PrivQuantMod(max_epsilon=10.0)]), 25, num_rounds=2)
    assert strategy.simulated is False
    assert len(strategy.simulated_nodes) == 2
    (line,) = [line for line in strategy.privacy_statement() if "simulated" in line]
    assert "2 (node " in line
    assert line.startswith("clients that report seeded randomness")
    # Told once for each node, not in every round, and in one line for all.
    (line,) = [line for line in flower_log.lines if "draws from a seeded stream" in line]
    assert "round 1, 2 nodes (" in line
    again = make_strategy()
    again.restore_state(strategy.checkpoint_state())
    assert again.simulated is False
    assert again.simulated_nodes == strategy.simulated_nodes


def test_the_operators_word_on_simulation_stands(flower_log):
    strategy = make_strategy(simulated=True)
    simulate(strategy, client_app([PrivQuantMod(max_epsilon=10.0)]), 3)
    assert any(line.startswith("privacy is simulated") for line in strategy.privacy_statement())
