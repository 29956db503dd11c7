"""Small Flower apps in folders of their own, and what is said about their privacy."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod
from typer.testing import CliRunner

import fl_privquant as pq
from fl_privquant.accounting import Accountant, Release
from fl_privquant.cli.main import app as command
from fl_privquant.errors import InvalidSpecError
from fl_privquant.flower._flower_internals import use_server_identity
from fl_privquant.flower.lint import (
    Finding,
    Severity,
    central_statement,
    lint_app,
    local_deviation,
    local_statement,
)
from fl_privquant.statement import Relation

PROJECT = """
[project]
name = "{name}"
version = "1.0.0"
[tool.flwr.app]
publisher = "nobody"
[tool.flwr.app.components]
serverapp = "{name}.server:app"
clientapp = "{name}.client:app"
[tool.flwr.app.config]
rounds = 7
multiplier = 2.0
"""
SERVER = """
import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import NeighboringRelation, PrivacyConfig, RdpAccountant, SamplingMethod, ServerApp
from flwr.serverapp.strategy import *
import fl_privquant as pq
from fl_privquant.flower import *

app = ServerApp()

class Delegating(FedAvg):
    # A wrapper of the user's, whose loop is that of the strategy inside.
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def start(self, *arguments, **named):
        return self.inner.start(*arguments, **named)

class Quiet(Delegating):
    # One that catches everything.
    def start(self, *arguments, **named):
        try:
            return super().start(*arguments, **named)
        except BaseException:
            return None

class Endless(FedAvg):
    # One that wraps itself.
    def __init__(self):
        super().__init__()
        self.strategy = self

class Renamed(DifferentialPrivacyServerSideFixedClipping):
    pass

class Silent(DifferentialPrivacyServerSideFixedClipping):
    # One that leaves the noise out.
    def aggregate_train(self, server_round, replies):
        return self.strategy.aggregate_train(server_round, replies)

def patched(part, name, value):
    setattr(part, name, value)
    return part

class Generous(GaussianAccountant):
    def would_exceed(self, *arguments, **named):
        return False

def config(population, max_epsilon=None, target_delta=1e-5):
    return PrivacyConfig(
        max_epsilon=max_epsilon,
        target_delta=target_delta,
        population_size=population,
        neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        sampling_method=SamplingMethod.NO_AMPLIFICATION,
    )

@app.main()
def main(grid, context):
    z = context.run_config["multiplier"]
    strategy = {strategy}
    model = ArrayRecord({{"w": Array(np.zeros(10)), {more_arrays}}})
    strategy.start(grid, model, num_rounds=context.run_config["rounds"])
"""
CLIENT = """
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from fl_privquant.flower import PrivQuantMod

def leak(message, context, call_next):
    reply = call_next(message, context)
    reply.content["more"] = MetricRecord({"seen": 1})
    return reply

class SilentMod(LocalDpMod):
    def __call__(self, message, context, call_next):
        return call_next(message, context)

app = ClientApp(mods=[{mods}])

@app.train()
def train(message, context):
    raise RuntimeError("the app was asked to train")
"""
FED_AVG = "FedAvg(fraction_evaluate=0.0)"
OURS = "PrivQuantStrategy(FedAvg(fraction_evaluate=0.0), pq.Encoding(pq.design('one_bit', epsilon=1.0), 0.1))"

MakeApp = Callable[..., Path]


@pytest.fixture
def make_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> MakeApp:
    """Writes an app with a strategy and mods; its name is its test's, as Python keeps modules by name."""
    name = "linted_" + "".join(c if c.isalnum() else "_" for c in request.node.name)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def make(
        strategy: str = FED_AVG,
        mods: str = "",
        client: str = CLIENT,
        more: str = "",
        more_arrays: str = "",
    ) -> Path:
        (tmp_path / name).mkdir()
        (tmp_path / "pyproject.toml").write_text(PROJECT.format(name=name))
        (tmp_path / name / "__init__.py").write_text("")
        (tmp_path / name / "server.py").write_text(SERVER.format(strategy=strategy, more_arrays=more_arrays))
        (tmp_path / name / "client.py").write_text(client.replace("{mods}", mods) + more)
        return tmp_path

    return make


def errors(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity is Severity.ERROR]


def test_an_app_without_protection_is_told_what_to_write(make_app: MakeApp) -> None:
    (finding,) = lint_app(make_app())
    assert finding.severity is Severity.ERROR
    assert finding.place == "FedAvg"
    assert "every update is sent as it is" in finding.problem
    assert "rounds=7" in finding.remedy
    assert "PrivQuantStrategy(strategy, plan)" in finding.remedy


def test_a_wrong_sensitivity_gives_the_epsilon_that_it_really_has(make_app: MakeApp) -> None:
    """The noise is for a sensitivity of 1e-4, but updates of norm 1 are up to 2 apart."""
    folder = make_app(mods="LocalDpMod(clipping_norm=1.0, sensitivity=1e-4, epsilon=10.0, delta=1e-5)")
    (finding,) = errors(lint_app(folder))
    assert "σ = 4.8e-05" in finding.problem
    assert "client round, local view, replace-one" in finding.problem
    assert "client round, local view, zero-out" in finding.problem
    mod = LocalDpMod(clipping_norm=1.0, sensitivity=1e-4, epsilon=10.0, delta=1e-5)
    assert local_statement(mod, Relation.REPLACE_ONE).epsilon == pytest.approx(0.85e9, rel=0.01)
    assert "sensitivity=2" in finding.remedy


def test_the_noise_of_flower_has_the_stated_deviation() -> None:
    """Of 200 000 draws the deviation is within 1 % with odds above 1 - 1e-9; twice the noise is not."""
    mod = LocalDpMod(clipping_norm=1.0, sensitivity=0.5, epsilon=2.0, delta=1e-5)
    model = np.full(200_000, 1e-9)

    def train(message: Message, context: Context) -> Message:
        return Message(RecordDict({"arrays": ArrayRecord([model])}), reply_to=message)

    asked = RecordDict({"arrays": ArrayRecord([np.zeros(model.size)])})
    with use_server_identity(1):
        message = Message(asked, dst_node_id=1, message_type="train")
        reply = mod(message, Context(1, 1, {}, RecordDict(), {}), train)
    (noisy,) = next(iter(reply.content.array_records.values())).to_numpy_ndarrays()
    assert np.std(noisy) == pytest.approx(local_deviation(mod), rel=0.01)
    assert np.std(2.0 * noisy) != pytest.approx(local_deviation(mod), rel=0.01)


def test_a_right_sensitivity_is_only_warned_of(make_app: MakeApp) -> None:
    folder = make_app(mods="LocalDpMod(clipping_norm=1.0, sensitivity=2.0, epsilon=1.0, delta=1e-5)")
    findings = lint_app(folder)
    assert not errors(findings)
    mod = LocalDpMod(clipping_norm=1.0, sensitivity=2.0, epsilon=1.0, delta=1e-5)
    for relation in (Relation.REPLACE_ONE, Relation.ZERO_OUT):
        once, total = local_statement(mod, relation), local_statement(mod, relation, 7)
        assert once.epsilon < total.epsilon < 7.0 * once.epsilon
        assert f"{once.brief}" in findings[-1].problem
        assert f"{total.brief}" in findings[-1].problem
    assert findings[-1].severity is Severity.COST
    assert any("global np.random" in finding.problem for finding in findings)


WRAPPED = "DifferentialPrivacyServerSideFixedClipping(FedAvg(fraction_evaluate=0.0), z, 1.0, 10{})"


def test_a_wrapper_without_an_accountant_is_counted(make_app: MakeApp) -> None:
    (finding,) = errors(lint_app(make_app(WRAPPED.format(""))))
    assert "it has no accountant: 7 rounds cost" in finding.problem
    for relation in (Relation.ADD_REMOVE, Relation.REPLACE_ONE):
        assert central_statement(2.0, 7, relation).brief in finding.problem
    assert "GaussianAccountant" in finding.remedy


def test_the_run_config_is_read(make_app: MakeApp) -> None:
    (finding,) = errors(lint_app(make_app(WRAPPED.format("")), "multiplier=4.0 rounds=50"))
    assert "50 rounds" in finding.problem
    stated = central_statement(4.0, 50, Relation.ADD_REMOVE)
    assert stated.brief in finding.problem
    assert stated.epsilon == pytest.approx(8.60, abs=0.005)
    assert central_statement(2.0, 10, Relation.ADD_REMOVE).epsilon == pytest.approx(7.51, abs=0.005)


def test_an_upper_bound_and_an_exact_figure_are_no_errors(make_app: MakeApp) -> None:
    findings = lint_app(make_app(WRAPPED.format(", accountant=RdpAccountant(config(100))")))
    assert not errors(findings)
    assert any("RdpAccountant states an upper bound" in finding.problem for finding in findings)


def test_the_exact_accountant_needs_no_advice(make_app: MakeApp) -> None:
    findings = lint_app(make_app(WRAPPED.format(", accountant=GaussianAccountant(config(100))")))
    warning, cost = findings
    assert "Flower draws its noise as floats from the global np.random" in warning.problem
    assert cost.severity is Severity.COST
    assert central_statement(2.0, 7, Relation.ADD_REMOVE).brief in cost.problem
    assert cost.remedy == ""


def test_noise_for_clients_that_do_not_clip_hides_nothing(make_app: MakeApp) -> None:
    twin = WRAPPED.format(", accountant=GaussianAccountant(config(100))").replace("ServerSide", "ClientSide")
    (finding,) = errors(lint_app(make_app(twin)))
    assert "no client clips" in finding.problem


def test_a_client_that_clips_is_found_among_the_mods(make_app: MakeApp) -> None:
    twin = WRAPPED.format(", accountant=GaussianAccountant(config(100))").replace("ServerSide", "ClientSide")
    assert not errors(lint_app(make_app(twin, mods="fixedclipping_mod")))


ADAPTIVE = "DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(fraction_evaluate=0.0), 2.0, 100)"


def test_adaptive_clipping_is_not_counted_by_flower(make_app: MakeApp) -> None:
    (finding,) = errors(lint_app(make_app(ADAPTIVE)))
    assert "AccountedAdaptiveClipping" in finding.remedy


def test_adaptive_clipping_that_is_counted_is_no_error(make_app: MakeApp) -> None:
    counted = f"AccountedAdaptiveClipping({ADAPTIVE}, GaussianAccountant(config(100)))"
    findings = lint_app(make_app(counted))
    assert not errors(findings)
    assert "7 rounds cost" in findings[-1].problem
    assert "if the clipping norm stays as it is" in findings[-1].problem


def test_an_app_of_ours_is_told_what_it_costs(make_app: MakeApp) -> None:
    (finding,) = lint_app(make_app(OURS, mods="PrivQuantMod(max_epsilon=2.0)"))
    assert finding.severity is Severity.COST
    counted = Accountant({Release(pq.design("one_bit", epsilon=1.0), 10): 7})
    for relation in (Relation.REPLACE_ONE, Relation.ZERO_OUT):
        assert counted.statement(1e-5, relation=relation).brief in finding.problem


@pytest.mark.parametrize("example", ["template", "hospitals"])
def test_the_examples_pass_and_are_told_what_they_cost(example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(__file__).parents[2] / "simulations" / "examples" / example
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    findings = lint_app(folder)
    assert not errors(findings)
    assert [finding.place for finding in findings if finding.severity is Severity.COST] == [
        "PrivQuantStrategy"
    ]


@pytest.mark.parametrize("relation", ["replace-one", "zero-out"])
def test_a_plan_is_told_in_both_relations_with_the_limit_that_it_keeps(
    make_app: MakeApp, relation: str
) -> None:
    """The model has 10 coordinates; the plan is for 60 clients, of whom 48 count."""
    plan = f'pq.Target(epsilon=8.0, rounds=7, num_clients=60, relation="{relation}").plan(10)'
    strategy = f"PrivQuantStrategy(FedAvg(fraction_evaluate=0.0, min_train_nodes=60), {plan})"
    mods = "PrivQuantMod(max_epsilon=math.inf, max_delta=0.01, secure_aggregation=True)"
    client = CLIENT.replace("from flwr.app", "import math\nfrom flwr.app", 1)
    (finding,) = lint_app(make_app(strategy, mods=mods, client=client))
    assert finding.severity is Severity.COST
    planned = pq.Target(epsilon=8.0, rounds=7, num_clients=60, relation=relation).plan(10)
    assert planned.statement.brief in finding.problem
    assert planned.other_statement.brief in finding.problem
    limit = (
        f"stops before it spends more than ε = 8, δ = 1e-05 (client total, aggregate view of 48, {relation})"
    )
    assert limit in finding.problem


@pytest.mark.parametrize(
    ("strategy", "problem"),
    [
        (OURS.replace("'one_bit', epsilon=1.0", "'stochastic', bits=2"), "stochastic, adds no noise"),
        (OURS.replace("'one_bit', epsilon=1.0", "'none'"), "none, adds no noise"),
        (OURS.replace("epsilon=1.0", "epsilon=30.0"), "which is no protection"),
        (
            "DifferentialPrivacyServerSideFixedClipping(FedAvg(fraction_evaluate=0.0), 0.1, 1.0, 10, "
            "accountant=GaussianAccountant(config(100)))",
            "which is no protection",
        ),
        (
            "DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(fraction_evaluate=0.0), 0.0, 100)",
            "noise of 0 and",
        ),
    ],
)
def test_parts_that_protect_nobody_do_not_pass_by_their_names(
    make_app: MakeApp, strategy: str, problem: str
) -> None:
    mods = "PrivQuantMod(max_epsilon=float('inf'))" if "PrivQuantStrategy" in strategy else ""
    (finding,) = errors(lint_app(make_app(strategy, mods=mods)))
    assert problem in finding.problem


def test_a_limit_stops_a_run_that_would_cost_too_much(make_app: MakeApp) -> None:
    limited = "GaussianAccountant(config(100, max_epsilon=9.0))"
    strategy = WRAPPED.format(f", accountant={limited}").replace(" z,", " 0.5,")
    finding = lint_app(make_app(strategy))[-1]
    assert finding.severity is Severity.COST
    assert "spends more than ε = 9, δ = 1e-05 (client total, central view, add-remove)" in finding.problem


@pytest.mark.parametrize(
    ("strategy", "mods", "replaced"),
    [
        ("Silent(FedAvg(), z, 1.0, 10)", "", "aggregate_train of DifferentialPrivacyServerSideFixed"),
        (FED_AVG, "SilentMod(1.0, 2.0, 1.0, 1e-5)", "__call__ of LocalDpMod"),
        (
            "patched(Renamed(FedAvg(), z, 1.0, 10), 'aggregate_train', print)",
            "",
            "aggregate_train of DifferentialPrivacyServerSideFixed",
        ),
    ],
)
def test_a_class_or_an_object_that_replaces_what_protects_is_an_error(
    make_app: MakeApp, strategy: str, mods: str, replaced: str
) -> None:
    found = errors(lint_app(make_app(strategy, mods=mods)))
    assert any(f"it replaces {replaced}" in finding.problem for finding in found)


def test_a_class_of_flower_that_the_app_changes_is_an_error(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_app(mods="LocalDpMod(1.0, 2.0, 1.0, 1e-5)")
    assert not errors(lint_app(folder))
    monkeypatch.setattr(LocalDpMod, "__call__", lambda mod, message, context, call_next: None)
    (finding,) = errors(lint_app(folder))
    assert "it replaces __call__ of LocalDpMod" in finding.problem


@pytest.mark.parametrize(
    "accountant",
    [
        "Generous(config(100, max_epsilon=1.0))",
        "patched(GaussianAccountant(config(100, max_epsilon=1.0)), 'would_exceed', lambda *event: False)",
    ],
)
@pytest.mark.parametrize(
    "counted",
    [
        "DifferentialPrivacyServerSideFixedClipping(" + FED_AVG + ", 0.2, 1.0, 10, accountant={})",
        "AccountedAdaptiveClipping(DifferentialPrivacyServerSideAdaptiveClipping("
        + FED_AVG
        + ", 2.0, 100), {})",
    ],
)
def test_an_accountant_of_the_apps_own_is_not_believed(
    make_app: MakeApp, counted: str, accountant: str
) -> None:
    (finding,) = errors(lint_app(make_app(counted.format(accountant))))
    assert "is of the app's own making, so that nobody knows whether it counts" in finding.problem


def test_a_delta_within_which_all_may_be_told_is_no_protection(make_app: MakeApp) -> None:
    generous = ", accountant=GaussianAccountant(config(100, target_delta=0.9))"
    (finding,) = errors(lint_app(make_app(WRAPPED.format(generous))))
    assert "δ = 0.9 (client total, central view, add-remove), which is no protection" in finding.problem


@pytest.mark.parametrize(
    ("strategy", "mods"),
    [
        (FED_AVG, "LocalDpMod(1.0, 2.0, 1.0, 1e-5)"),
        (
            f"DifferentialPrivacyServerSideFixedClipping({FED_AVG}, z, 1.0, 10, "
            "accountant=GaussianAccountant(config(100)))",
            "",
        ),
    ],
)
def test_an_array_without_axes_passes_flowers_clipping(make_app: MakeApp, strategy: str, mods: str) -> None:
    folder = make_app(strategy, mods, more_arrays="'batches': Array(np.array(3.0))")
    (finding,) = errors(lint_app(folder))
    assert (finding.place, "no noise hides it" in finding.problem) == ("batches", True)


def test_flowers_clipping_leaves_an_array_without_axes_as_it_is() -> None:
    """What the finding says, shown on Flower's mod; the array beside it is clipped and gets noise."""
    received, trained = ({"w": np.full(3, value), "n": np.array(value)} for value in (0.0, 7.0))

    def train(message: Message, context: Context) -> Message:
        return Message(RecordDict({"arrays": ArrayRecord(as_arrays(trained))}), reply_to=message)

    with use_server_identity(1):
        content = RecordDict({"arrays": ArrayRecord(as_arrays(received))})
        message = Message(content, dst_node_id=1, message_type="train")
        reply = LocalDpMod(1.0, 2.0, 1.0, 1e-5)(message, Context(1, 1, {}, RecordDict(), {}), train)
    sent = next(iter(reply.content.array_records.values()))
    assert sent["n"].numpy() == 7.0
    assert not np.allclose(sent["w"].numpy(), 7.0)


def as_arrays(arrays: dict[str, np.ndarray]) -> dict[str, Array]:
    return {name: Array(array) for name, array in arrays.items()}


@pytest.mark.parametrize(
    ("strategy", "mod", "severities"),
    [
        (OURS, "PrivQuantMod(max_epsilon=2.0, seed=3)", ["error", "cost"]),
        (OURS, "PrivQuantMod(max_epsilon=2.0, seed=lambda context: None)", ["warning", "cost"]),
        (OURS.replace("0.1))", "0.1), simulated=True)"), "PrivQuantMod(max_epsilon=2.0)", ["error", "cost"]),
    ],
)
def test_noise_from_a_seed_is_only_simulated(
    make_app: MakeApp, strategy: str, mod: str, severities: list[str]
) -> None:
    findings = lint_app(make_app(strategy, mods=mod))
    assert [finding.severity.value for finding in findings] == severities
    assert "only simulated" in findings[0].problem


@pytest.mark.parametrize(("seed", "severity"), [("3", Severity.ERROR), ("len('x')", Severity.WARNING)])
def test_a_seed_of_the_generator_that_flower_draws_from_is_found(
    make_app: MakeApp, seed: str, severity: Severity
) -> None:
    folder = make_app(
        mods="LocalDpMod(1.0, 2.0, 1.0, 1e-5)",
        more=f"\nimport numpy as n\ndef begin():\n    n.random.seed({seed})\n",
    )
    (finding,) = [finding for finding in lint_app(folder) if "this seeds the generator" in finding.problem]
    assert finding.severity is severity
    assert "client.py, line " in finding.place


def test_a_seed_beside_our_own_noise_is_no_finding(make_app: MakeApp) -> None:
    more = "\nimport numpy\nnumpy.random.seed(3)\n"
    assert len(lint_app(make_app(OURS, mods="PrivQuantMod(max_epsilon=2.0)", more=more))) == 1


@pytest.mark.parametrize("mod", ["secure_aggregation=True", ""])
def test_halves_that_do_not_fit_are_an_error(make_app: MakeApp, mod: str) -> None:
    summed = "aggregation=pq.SecureSum())" if not mod else ")"
    strategy = OURS.replace("0.1))", f"0.1), {summed}")
    (finding,) = errors(lint_app(make_app(strategy, mods=f"PrivQuantMod(max_epsilon=2.0, {mod})")))
    assert "so that every round fails" in finding.problem


def test_what_clipping_tells_is_named_among_what_leaves_in_clear(make_app: MakeApp) -> None:
    mods = "PrivQuantMod(max_epsilon=2.0, metrics=['loss'], report_clipping=True)"
    (warning, _) = lint_app(make_app(OURS, mods=mods))
    assert "clients send loss, how much was clipped in clear" in warning.problem


@pytest.mark.parametrize(("mods", "warned"), [("leak, {}", True), ("{}, leak", False)])
def test_a_mod_outside_of_the_one_that_protects_is_named(make_app: MakeApp, mods: str, warned: bool) -> None:
    findings = lint_app(make_app(OURS, mods=mods.format("PrivQuantMod(max_epsilon=2.0)")))
    assert any("outside of PrivQuantMod" in finding.problem for finding in findings) is warned
    assert len(findings) == 1 + warned


def test_replies_that_no_mod_covers_are_named(make_app: MakeApp) -> None:
    """The mod is around training alone, so that evaluation and another training function bypass it."""
    client = CLIENT.replace("mods=[{mods}]", "").replace(
        "@app.train()", "@app.train(mods=[PrivQuantMod(max_epsilon=2.0)])"
    )
    strategy = OURS.replace("fraction_evaluate=0.0", "")
    findings = lint_app(make_app(strategy, client=client, more=TRAINING_WITH_METRICS))
    warned = {finding.place for finding in findings if finding.severity is Severity.WARNING}
    assert {"FedAvg(fraction_evaluate=1)", "the client's function train.second"} <= warned


@pytest.mark.parametrize(
    "start",
    [
        "FedAvg().start(grid, model, num_rounds=100)",
        "FedAvg().start(grid, model, 100)",
        "getattr(FedAvg(), 'start')(grid, model, 100)",
        "[each.start(grid, model) for each in (strategy, FedAvg())]",
    ],
)
def test_a_second_strategy_is_not_overlooked(make_app: MakeApp, start: str) -> None:
    folder = make_app(OURS, mods="PrivQuantMod(max_epsilon=2.0)")
    (server,) = folder.glob("*/server.py")
    server.write_text(server.read_text() + f"    {start}\n")
    warning, _ = lint_app(folder)
    assert "times or more, of which only the first was read" in warning.problem


def test_messages_beside_those_of_the_strategy_are_named(make_app: MakeApp) -> None:
    folder = make_app(WRAPPED.format(", accountant=GaussianAccountant(config(100))"))
    (server,) = folder.glob("*/server.py")
    server.write_text(server.read_text() + "    grid.send_and_receive([])\n")
    warned = [finding for finding in lint_app(folder) if finding.severity is Severity.WARNING]
    assert any("beside those of its strategy" in finding.problem for finding in warned)


@pytest.mark.parametrize(
    "line",
    [
        "from numpy.random import normal as noise\nnoise(0.0, 1.0, 3)",
        "from numpy.random import default_rng\ndraws = default_rng(3)\ndraws.normal(0.0, 1.0, 3)",
        "import numpy as np\nnp.random.default_rng().laplace(size=3)",
        "import numpy\nnumpy.random.RandomState(3).standard_normal(3)",
        "import random\nrandom.gauss(0.0, 1.0)",
    ],
)
def test_floats_are_found_however_their_generator_is_called(make_app: MakeApp, line: str) -> None:
    folder = make_app(OURS, mods="PrivQuantMod(max_epsilon=2.0)", more=f"\n{line}\n")
    warning, _ = lint_app(folder)
    assert "draws floats. If that is noise for privacy" in warning.problem


def test_what_only_looks_like_a_draw_is_no_finding(make_app: MakeApp) -> None:
    more = "\nclass Surface:\n    def normal(self):\n        return 1\nSurface().normal()\n"
    assert len(lint_app(make_app(OURS, mods="PrivQuantMod(max_epsilon=2.0)", more=more))) == 1


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("    told = dict(loss=0.5)\n    told['norm'] = 3.0\n    record = MetricRecord(told)", "loss, norm"),
        ("    record = MetricRecord()\n    record['loss'] = 0.5", "loss"),
        ("    record = MetricRecord(measure(message))", "metrics with names that cannot be read here"),
        ("    record = told(0.5)", "loss"),
        ("    record = ConfigRecord({'user': 'somebody'})", "user"),
        ("    record = MetricRecord({'num-examples': 3, 'loss': 1.0})", "loss"),
    ],
)
def test_metrics_are_found_however_they_are_made(make_app: MakeApp, body: str, names: str) -> None:
    more = f"""

def told(loss):
    return MetricRecord({{"loss": loss}})

@app.train("second")
def second(message, context):
{body}
    return Message(RecordDict({{"told": record}}), reply_to=message)
"""
    findings = lint_app(make_app(WRAPPED.format(", accountant=GaussianAccountant(config(100))"), more=more))
    assert any(f"clients send {names} in clear" in finding.problem for finding in findings)


def test_one_half_of_an_app_of_ours_is_an_error(make_app: MakeApp) -> None:
    (finding,) = errors(lint_app(make_app(OURS)))
    assert finding.problem == "no client encodes"


TRAINING_WITH_METRICS = """

@app.train("second")
def second(message, context):
    noise = np.random.normal(0.0, 1.0, 10)
    told = {"train_loss": 0.5, "num-examples": 10}
    return Message(RecordDict({"metrics": MetricRecord(told)}), reply_to=message)

@app.evaluate()
def evaluate(message, context):
    return message
"""


def test_metrics_noise_and_evaluation_beside_the_updates_are_named(make_app: MakeApp) -> None:
    wrapped = WRAPPED.format(", accountant=GaussianAccountant(config(100))")
    wrapped = wrapped.replace("fraction_evaluate=0.0", "")
    findings = lint_app(make_app(wrapped, more=TRAINING_WITH_METRICS))
    problems = [finding.problem for finding in findings]
    assert not errors(findings)
    assert any("clients send train_loss in clear" in problem for problem in problems)
    assert any("np.random.normal draws floats" in problem for problem in problems)
    assert any("their evaluation measured one by one, in clear" in problem for problem in problems)


LEGACY = """
from flwr.client import ClientApp
from flwr.client.mod import secaggplus_mod

app = ClientApp(client_fn=lambda context: None, mods=[secaggplus_mod])
"""


def test_legacy_secure_aggregation_is_found_in_the_sources(make_app: MakeApp) -> None:
    (finding,) = lint_app(make_app(client=LEGACY))
    assert finding.severity is Severity.ERROR
    assert "client.py, line 3" in finding.place
    assert "no ε is stated" in finding.problem


def test_legacy_secure_aggregation_is_found_by_its_full_name(make_app: MakeApp) -> None:
    named = LEGACY.replace("from flwr.client.mod import secaggplus_mod", "import flwr.client.mod")
    (finding,) = lint_app(
        make_app(client=named.replace("[secaggplus_mod", "[flwr.client.mod.secaggplus_mod"))
    )
    assert "secaggplus_mod is Flower's legacy secure aggregation" in finding.problem


def test_the_command_has_an_exit_code_for_continuous_integration(make_app: MakeApp) -> None:
    folder = make_app(WRAPPED.format(""))
    shown = CliRunner().invoke(command, ["lint", str(folder)])
    assert shown.exit_code == 1, shown.output
    text = " ".join(shown.output.split())
    assert "error: DifferentialPrivacyServerSideFixedClipping: it has no accountant" in text
    assert "1 error, 1 warning; nothing was trained" in text


def test_the_command_ends_well_for_an_app_that_protects(make_app: MakeApp) -> None:
    folder = make_app(OURS, mods="PrivQuantMod(max_epsilon=2.0)")
    shown = CliRunner().invoke(command, ["lint", str(folder)])
    assert (shown.exit_code, "0 errors" in shown.output) == (0, True)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("__import__('time').sleep(1000)", "starts no strategy within 20 seconds"),
        ("__import__('os')._exit(0)", "ends its process before it starts a strategy"),
    ],
)
def test_the_command_outlives_the_app(make_app: MakeApp, line: str, told: str) -> None:
    """An app that hangs, or ends its process as if all were well, cannot be read."""
    shown = CliRunner().invoke(command, ["lint", str(make_app(line)), "--timeout", "20"])
    assert isinstance(shown.exception, InvalidSpecError)
    assert told in str(shown.exception)


def test_add_remove_is_for_apps_whose_server_is_trusted(make_app: MakeApp) -> None:
    findings = lint_app(
        make_app(WRAPPED.format(", accountant=GaussianAccountant(config(100))")), "", Relation.ADD_REMOVE
    )
    first, second = (
        central_statement(2.0, 7, each).brief for each in (Relation.ADD_REMOVE, Relation.REPLACE_ONE)
    )
    assert f"{first}, or {second}" in findings[-1].problem


@pytest.mark.parametrize("view", ["local view", "aggregate view of 48"])
def test_add_remove_is_refused_where_the_view_shows_who_takes_part(make_app: MakeApp, view: str) -> None:
    strategy, mods = FED_AVG, "LocalDpMod(1.0, 2.0, 1.0, 1e-5)"
    if view != "local view":
        plan = "pq.Target(epsilon=8.0, rounds=7, num_clients=60).plan(10)"
        strategy = f"PrivQuantStrategy(FedAvg(fraction_evaluate=0.0, min_train_nodes=60), {plan})"
        mods = "PrivQuantMod(max_epsilon=9.0, max_delta=0.01, secure_aggregation=True)"
    with pytest.raises(InvalidSpecError, match=f"hides who takes part, but the {view} shows it"):
        lint_app(make_app(strategy, mods), "", Relation.ADD_REMOVE)


def test_a_folder_without_an_app_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpecError, match=r"pyproject\.toml"):
        lint_app(tmp_path)


def test_a_server_that_fails_says_so(make_app: MakeApp) -> None:
    with pytest.raises(InvalidSpecError, match=r"before it starts a strategy .*ZeroDivisionError"):
        lint_app(make_app("1 / 0"))


@pytest.mark.parametrize("kind", ["Delegating({})", "Quiet({})", "{}"])
def test_a_wrapper_around_or_below_flowers_is_seen_through(make_app: MakeApp, kind: str) -> None:
    renamed = WRAPPED.format("").replace("DifferentialPrivacyServerSideFixedClipping", "Renamed")
    (finding,) = errors(lint_app(make_app(kind.format(renamed))))
    assert finding.place == "Renamed"
    assert "7 rounds cost" in finding.problem


def test_a_strategy_that_wraps_itself_is_read_once(make_app: MakeApp) -> None:
    (finding,) = lint_app(make_app("Endless()"))
    assert finding.place == "Endless"


@pytest.mark.parametrize("z", ["float('nan')", "0.0", "float('inf')"])
def test_a_noise_multiplier_that_is_none_has_no_epsilon(make_app: MakeApp, z: str) -> None:
    (finding,) = errors(lint_app(make_app(WRAPPED.format("").replace(" z,", f" {z},"))))
    assert "adds no noise that hides anybody" in finding.problem
    assert math.isinf(central_statement(math.nan, 1, Relation.ADD_REMOVE).epsilon)


@pytest.mark.parametrize("arguments", ["1.0, 2.0, 0.0, 1e-5", "1.0, 2.0, 1.0, 0.0", "1.0, 2.0, 1.0, 1.5"])
def test_a_mod_for_an_epsilon_or_delta_that_promises_nothing_is_an_error(
    make_app: MakeApp, arguments: str
) -> None:
    """A mod in a variable, around the training alone: with these values its formula gives any noise."""
    client = CLIENT.replace("mods=[{mods}]", "").replace(
        "@app.train()", f"several = [LocalDpMod({arguments})]\n\n@app.train(mods=several)"
    )
    (finding,) = errors(lint_app(make_app(client=client)))
    assert "it promises nothing" in finding.problem


def test_the_relation_that_is_asked_for_comes_first_and_the_other_beside_it(make_app: MakeApp) -> None:
    folder = make_app(WRAPPED.format(""), mods="LocalDpMod(1.0, 1e-4, 10.0, 1e-5)")
    for relation, others in (("zero-out", ("zero-out", "add-remove")), ("replace-one", ("replace-one",) * 2)):
        shown = CliRunner().invoke(command, ["lint", str(folder), "--relation", relation])
        assert shown.exit_code == 1
        costs = re.findall(
            r"costs? ε = [^)]*?([\w-]+)\), or ε = [^)]*?([\w-]+)\)", " ".join(shown.output.split())
        )
        assert [first for first, _ in costs] == list(others)
        assert all((first == "replace-one") != (second == "replace-one") for first, second in costs)


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("pyproject.toml", "[project", "TOMLDecodeError"),
        ("pyproject.toml", "[project]\nname = 'x'\nversion = '1'\n", r"Missing \[tool.flwr.app\]"),
        ("{name}/server.py", "def (:", "SyntaxError"),
        ("{name}/unused.py", "def (:", "SyntaxError"),
        ("{name}/server.py", "", "attribute"),
        ("{name}/server.py", "import sys; sys.exit(0)", "SystemExit: 0"),
        (
            "{name}/server.py",
            SERVER.format(strategy="__import__('sys').exit(0)", more_arrays=""),
            "SystemExit: 0",
        ),
    ],
)
def test_an_app_that_cannot_be_read_never_passes(make_app: MakeApp, file: str, text: str, told: str) -> None:
    folder = make_app()
    (name,) = (path.name for path in folder.iterdir() if path.is_dir())
    (folder / file.format(name=name)).write_text(text)
    with pytest.raises(InvalidSpecError, match=told):
        lint_app(folder)
