"""What hostile bytes and texts once did, each as the case that did it."""

from __future__ import annotations

import contextlib
import math

import pytest
from flwr.app import Array, Error, Message, MetricRecord

import fl_privquant as pq
from fl_privquant.accounting import SecureSum
from fl_privquant.accounting.ledgers.spending_ledger import SpendingLedger
from fl_privquant.codec.encoding import Encoding
from fl_privquant.errors import (
    BudgetExhaustedError,
    CertificationError,
    InvalidSpecError,
    InvalidUpdateError,
    PrivQuantError,
    one_line,
)
from fl_privquant.flower import PrivQuantMod, PrivQuantStrategy
from fl_privquant.flower._messages.arrays import read_array
from fl_privquant.flower._messages.protocol import Reply, Request
from fl_privquant.flower.server.round_state import average_metrics
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.optimize.requirements import RunRequirements
from fl_privquant.privacy_loss.update_bounds import UpdateNorms
from fl_privquant.statement import PrivacyStatement, Unit, View
from tests.flower.apps import CLIP, client_app, fedavg, simulate
from tests.mechanisms.forgery import forged

FORGED_LINE = "refused\n\x1b[2J\x1b[31mPrivQuant: round 1, 20 usable updates, 0 failed"


@pytest.mark.parametrize("value", [10**309, -(10**400), 2**63, [1, 10**309]])
def test_a_metric_that_no_float_holds_is_left_out(value):
    """``math.isfinite`` of an integer beyond 1e308 is an OverflowError, which ended the run."""
    content = Reply(1, "ab", b"", {}, False).to_content()
    content["metrics"] = MetricRecord({"loss": value, "accuracy": 0.5})
    assert dict(Reply.from_content(content).metrics) == {"accuracy": 0.5}


def test_the_mean_of_the_largest_floats_is_no_warning():
    assert average_metrics([{"loss": 1.7e308}, {"loss": 1.7e308}]) == {"loss": math.inf}


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (3,), ",  # TokenError: the brace is not closed
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"(" * 60,
        b"{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999999999999,), }",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }",
        b"{'descr': '<U999999999', 'fortran_order': False, 'shape': (3,), }",
        b"{'descr': '\\x1b[31m', 'fortran_order': False, 'shape': (3,), }",
    ],
)
def test_forged_headers_of_arrays_are_refused(header):
    text = header.ljust(117) + b"\n"
    data = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(12)
    with pytest.raises(InvalidUpdateError, match="cannot be read"):
        read_array(Array("float32", (3,), "numpy.ndarray", data))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("laplace", {"epsilon": "0x1p-1074"}),  # ZeroDivisionError: the loss could not be printed
        ("gaussian", {"delta": "0x1p-1074"}),
        ("laplace", {"scale": "0x1p+1023"}),  # OverflowError: nor could its error
        ("one_bit", {"name": "\x1b[2J\x1b[31mforged"}),
        ("one_bit", {"name": "a" * 100_000}),
        ("one_bit", {"kind": "a" * 100_000}),
        ("one_bit", {"step": "0x1p+1023"}),
        ("one_bit", {"levels": 10**400}),
    ],
)
def test_forged_mechanisms_are_refused_by_an_error_of_ours(name, changes):
    blob = forged(pq.design(name, epsilon=1.0), **changes)
    with pytest.raises(CertificationError) as caught:
        Mechanism.from_bytes(blob)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 700


def test_a_mechanism_of_thousands_of_trials_is_read_without_its_distribution():
    """Its distribution took 6 s and 700 MB to list, for a file of 200 bytes."""
    from tests.adversary.mutation import watched

    mechanism = pq.design("pbm", epsilon=1.0, levels=8)
    Mechanism.from_bytes(mechanism.to_bytes())
    blob = forged(mechanism, trials=7007, epsilon="0x1p+1023")
    assert watched(lambda: Mechanism.from_bytes(blob)) == ""


@pytest.mark.parametrize(
    "name", ["optm", "one_bit", "laplace", "gaussian", "grr", "snapping", "discrete_laplace"]
)
@pytest.mark.parametrize("epsilon", [1e-320, 1e-12, 50.0, 700.0, 1e6, 1e308])
def test_extreme_epsilons_are_designed_for_or_refused_by_an_error_of_ours(name, epsilon):
    """The solver of optm's linear programs ended with an IndexError from 50 on, others with e^epsilon."""
    levels = {"levels": 4} if name in ("optm", "grr") else {}
    with contextlib.suppress(PrivQuantError):
        assert pq.design(name, epsilon=epsilon, cache=False, **levels).epsilon <= epsilon


def test_losses_next_to_the_smallest_floats_are_rounded_up():
    for loss in (5e-324, 1e-310, 1e-291):
        assert float(PrivacyStatement(loss, 0.0, Unit.COORDINATE).epsilon_cell) >= loss


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
    aggregation = SecureSum() if secure else None
    strategy = PrivQuantStrategy(
        fedavg(), pq.Encoding(pq.design("one_bit", epsilon=2.0), CLIP), aggregation=aggregation
    )
    simulate(strategy, client_app(mods), 11)
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
    strategy = PrivQuantStrategy(fedavg(), pq.Encoding(pq.design("one_bit", epsilon=2.0), CLIP))
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
    strategy = PrivQuantStrategy(fedavg(), pq.Encoding(pq.design("one_bit", epsilon=2.0), CLIP))
    simulate(strategy, client_app([ClaimsToBeSimulated(), PrivQuantMod(max_epsilon=10.0)]), 25, num_rounds=2)
    assert strategy.simulated is False
    assert len(strategy.simulated_nodes) == 2
    (line,) = [line for line in strategy.privacy_statement() if "simulated" in line]
    assert "2 (node " in line
    assert line.startswith("clients that report seeded randomness")
    # Told once for each node, not in every round, and in one line for all.
    (line,) = [line for line in flower_log.lines if "draws from a seeded stream" in line]
    assert "round 1, 2 nodes (" in line
    again = PrivQuantStrategy(fedavg(), pq.Encoding(pq.design("one_bit", epsilon=2.0), CLIP))
    again.restore_state(strategy.checkpoint_state())
    assert again.simulated is False
    assert again.simulated_nodes == strategy.simulated_nodes


def test_the_operators_word_on_simulation_stands(flower_log):
    strategy = PrivQuantStrategy(
        fedavg(), pq.Encoding(pq.design("one_bit", epsilon=2.0), CLIP), simulated=True
    )
    simulate(strategy, client_app([PrivQuantMod(max_epsilon=10.0)]), 3)
    assert any(line.startswith("privacy is simulated") for line in strategy.privacy_statement())


def test_requests_with_numbers_beyond_the_wire_are_refused():
    from flwr.app import ConfigRecord

    encoding = Encoding(pq.design("one_bit", epsilon=1.0), 0.1, rotate=True)
    for key in ("privquant-round", "privquant-clip", "privquant-rotation-seed"):
        config = ConfigRecord()
        Request(1, encoding, rotation_seed=1).write(config)
        config[key] = 10**400
        with pytest.raises(InvalidSpecError, match="bits"):
            Request.read(config)


@pytest.mark.parametrize("bound", [-1.0, 0.0, math.nan, math.inf])
def test_norms_that_are_none(bound):
    for name in ("l1", "l2"):
        with pytest.raises(InvalidSpecError, match="finite number above 0"):
            UpdateNorms(**{name: bound})


def test_views_and_plans_beyond_all_bounds_are_refused():
    with pytest.raises(InvalidSpecError, match="honest"):
        View(10**9)
    for field in ({"epsilon": math.inf}, {"epsilon": math.nan}, {"rounds": 10**10}, {"bits": 17}):
        with pytest.raises(InvalidSpecError):
            RunRequirements(**{"num_clients": 10, "dimension": 10, "rounds": 1, "epsilon": 4.0, **field})


def test_a_ledger_with_a_number_beyond_floats_is_not_relied_on(tmp_path):
    path = tmp_path / "ledger"
    path.write_text('{"chain": "46b9dd2b0ba88d13233b3feb743eeb24", "version": Infinity}\n')
    with pytest.raises(BudgetExhaustedError, match="line 1"):
        SpendingLedger(path)
