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
OURS = f"PrivQuantStrategy({FED_AVG}, pq.Encoding(pq.design('one_bit', epsilon=1.0), 0.1))"
OUR_MOD = "PrivQuantMod(max_epsilon=2.0)"
FLOWERS_MOD = "LocalDpMod(1.0, 2.0, 1.0, 1e-5)"
WRAPPED = f"DifferentialPrivacyServerSideFixedClipping({FED_AVG}, z, 1.0, 10{{}})"
COUNTED = WRAPPED.format(", accountant=GaussianAccountant(config(100))")
ON_CLIENTS = COUNTED.replace("ServerSide", "ClientSide")
ADAPTIVE = f"DifferentialPrivacyServerSideAdaptiveClipping({FED_AVG}, 2.0, 100)"
LEGACY = """
from flwr.client import ClientApp
from flwr.client.mod import secaggplus_mod

app = ClientApp(client_fn=lambda context: None, mods=[secaggplus_mod])
"""
OTHER_FUNCTIONS = """

@app.train("second")
def second(message, context):
    noise = np.random.normal(0.0, 1.0, 10)
    told = {"train_loss": 0.5, "num-examples": 10}
    return Message(RecordDict({"metrics": MetricRecord(told)}), reply_to=message)

@app.evaluate()
def evaluate(message, context):
    return message
"""
MOD_OF_TRAINING = CLIENT.replace("mods=[{mods}]", "").replace("@app.train()", "@app.train(mods=[{mods}])")

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
        more_of_server: str = "",
    ) -> Path:
        (tmp_path / name).mkdir()
        (tmp_path / "pyproject.toml").write_text(PROJECT.format(name=name))
        (tmp_path / name / "__init__.py").write_text("")
        server = SERVER.format(strategy=strategy, more_arrays=more_arrays) + more_of_server
        (tmp_path / name / "server.py").write_text(server)
        (tmp_path / name / "client.py").write_text(client.replace("{mods}", mods) + more)
        return tmp_path

    return make


def errors(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity is Severity.ERROR]


def assert_found(findings: list[Finding], *expected: str) -> None:
    """Each text is in a line of its own, and there are no errors besides."""
    lines = [str(finding) for finding in findings]
    for text in expected:
        assert any(text in line for line in lines), (text, lines)
    assert len(errors(findings)) == sum(text.startswith("error: ") for text in expected), lines


def case(*expected: str, **parts: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """What is found of an app with these parts; with a strategy of ours, our mod is around its clients."""
    mods = OUR_MOD if "PrivQuantStrategy" in parts.get("strategy", "") else ""
    return expected, {"mods": mods, **parts}


def metrics_made_by(body: str) -> str:
    """A further training function that makes a record of metrics."""
    return f"""

def told(loss):
    return MetricRecord({{"loss": loss}})

@app.train("second")
def second(message, context):
    {body}
    return Message(RecordDict({{"told": record}}), reply_to=message)
"""


FIXED = "error: DifferentialPrivacyServerSideFixedClipping: "
NO_PROTECTION = ", which is no protection"
SIMULATED = "so that privacy is only simulated"
MADE_ITSELF = "is of the app's own making, so that nobody knows whether it counts"
IN_CLEAR = "in clear beside their updates"
OUTSIDE = "outside of PrivQuantMod"
SEEDED = "this seeds the generator"
FLOATS = "draws floats. If that is noise for privacy"
NOT_THE_ONLY_START = "times or more, of which only the first was read"
GENEROUS = "config(100, max_epsilon=1.0)"
FOUND = [
    case("error: FedAvg: every update is sent as it is", "rounds=7", "PrivQuantStrategy(strategy, plan)"),
    case(
        FIXED + "it has no accountant: 7 rounds cost",
        central_statement(2.0, 7, Relation.ADD_REMOVE).brief,
        central_statement(2.0, 7, Relation.REPLACE_ONE).brief,
        "GaussianAccountant",
        strategy=WRAPPED.format(""),
    ),
    case(
        "RdpAccountant states an upper bound",
        strategy=WRAPPED.format(", accountant=RdpAccountant(config(100))"),
    ),
    case(
        "warning: DifferentialPrivacyServerSideFixedClipping: Flower draws its noise as floats from the",
        "cost: DifferentialPrivacyServerSideFixedClipping: 7 rounds cost ",
        central_statement(2.0, 7, Relation.ADD_REMOVE).brief,
        strategy=COUNTED,
    ),
    case("error: DifferentialPrivacyClientSideFixedClipping: no client clips", strategy=ON_CLIENTS),
    case(strategy=ON_CLIENTS, mods="fixedclipping_mod"),
    case(
        "error: DifferentialPrivacyServerSideAdaptiveClipping: ",
        "AccountedAdaptiveClipping",
        strategy=ADAPTIVE,
    ),
    case(
        "7 rounds cost",
        "if the clipping norm stays as it is",
        strategy=f"AccountedAdaptiveClipping({ADAPTIVE}, GaussianAccountant(config(100)))",
    ),
    case(
        "error: PrivQuantStrategy: its mechanism, stochastic, adds no noise",
        strategy=OURS.replace("'one_bit', epsilon=1.0", "'stochastic', bits=2"),
        mods="PrivQuantMod(float('inf'))",
    ),
    case(
        "error: PrivQuantStrategy: its mechanism, none, adds no noise",
        strategy=OURS.replace("'one_bit', epsilon=1.0", "'none'"),
        mods="PrivQuantMod(float('inf'))",
    ),
    case(
        "error: PrivQuantStrategy: 7 rounds cost",
        NO_PROTECTION,
        strategy=OURS.replace("epsilon=1.0", "epsilon=30.0"),
        mods="PrivQuantMod(float('inf'))",
    ),
    case(FIXED + "7 rounds", NO_PROTECTION, strategy=COUNTED.replace(" z,", " 0.1,")),
    case(
        "error: DifferentialPrivacyServerSideAdaptiveClipping: noise of 0 and",
        strategy=ADAPTIVE.replace("2.0", "0.0"),
    ),
    *(
        case(
            FIXED + "a noise_multiplier of",
            "adds no noise that hides anybody",
            strategy=WRAPPED.format("").replace(" z,", f" {z},"),
        )
        for z in ("float('nan')", "0.0", "float('inf')")
    ),
    case(
        "stops before it spends more than ε = 9, δ = 1e-05 (client total, central view, add-remove)",
        strategy=WRAPPED.format(", accountant=GaussianAccountant(config(100, max_epsilon=9.0))").replace(
            " z,", " 0.5,"
        ),
    ),
    case(
        FIXED + "7 rounds",
        "δ = 0.9 (client total, central view, add-remove)" + NO_PROTECTION,
        strategy=WRAPPED.format(", accountant=GaussianAccountant(config(100, target_delta=0.9))"),
    ),
    case(
        "error: Silent: it replaces aggregate_train of DifferentialPrivacyServerSideFixed",
        strategy=f"Silent({FED_AVG}, z, 1.0, 10, accountant=GaussianAccountant(config(100)))",
    ),
    case("error: SilentMod: it replaces __call__ of LocalDpMod", mods="SilentMod(1.0, 2.0, 1.0, 1e-5)"),
    case(
        FIXED + "it replaces aggregate_train of DifferentialPrivacyServerSideFixed",
        strategy=f"patched({COUNTED}, 'aggregate_train', print)",
    ),
    *(
        case("error: ", MADE_ITSELF, strategy=counted.format(accountant))
        for accountant in (
            f"Generous({GENEROUS})",
            f"patched(GaussianAccountant({GENEROUS}), 'would_exceed', lambda *event: False)",
        )
        for counted in (
            WRAPPED.replace(" z,", " 0.2,").format(", accountant={}"),
            f"AccountedAdaptiveClipping({ADAPTIVE}, {{}})",
        )
    ),
    *(
        case(
            "error: batches: Flower does not clip what has no axes",
            "no noise hides it",
            **parts,
            more_arrays="'batches': Array(np.array(3.0))",
        )
        for parts in ({"mods": FLOWERS_MOD}, {"strategy": COUNTED})
    ),
    case(
        "error: PrivQuantMod(seed=...)", SIMULATED, "cost: ", mods="PrivQuantMod(2.0, seed=3)", strategy=OURS
    ),
    case(
        "warning: PrivQuantMod(seed=...)",
        SIMULATED,
        "cost: ",
        mods="PrivQuantMod(2.0, seed=lambda context: None)",
        strategy=OURS,
    ),
    case(
        "error: PrivQuantStrategy(simulated=True)",
        "privacy is only simulated",
        "cost: ",
        strategy=OURS.replace("0.1))", "0.1), simulated=True)"),
    ),
    *(
        case(
            f"{severity}: ",
            "client.py, line ",
            SEEDED,
            mods=FLOWERS_MOD,
            more=f"\nimport numpy as n\ndef begin():\n    n.random.seed({seed})\n",
        )
        for severity, seed in (("error", "3"), ("warning", "len('x')"))
    ),
    *(
        case(
            "error: PrivQuantStrategy: ",
            "so that every round fails",
            strategy=OURS.replace("0.1))", f"0.1), {summed})"),
            mods=f"PrivQuantMod(2.0, {masks})",
        )
        for masks, summed in (("secure_aggregation=True", ""), ("", "aggregation=pq.SecureSum()"))
    ),
    case("error: PrivQuantStrategy: no client encodes", strategy=OURS, mods=""),
    case(
        f"warning: PrivQuantMod: clients send loss, how much was clipped {IN_CLEAR}",
        mods="PrivQuantMod(2.0, metrics=['loss'], report_clipping=True)",
        strategy=OURS,
    ),
    case(f"warning: leak: this mod is {OUTSIDE}", mods=f"leak, {OUR_MOD}", strategy=OURS),
    case(
        "warning: FedAvg(fraction_evaluate=1): ",
        "warning: the client's function train.second: ",
        strategy=OURS.replace("fraction_evaluate=0.0", ""),
        client=MOD_OF_TRAINING,
        more=OTHER_FUNCTIONS,
    ),
    case(
        f"clients send train_loss {IN_CLEAR}",
        "np.random.normal draws floats",
        "their evaluation measured one by one, in clear",
        strategy=COUNTED.replace("fraction_evaluate=0.0", ""),
        more=OTHER_FUNCTIONS,
    ),
    *(
        case("warning: ", NOT_THE_ONLY_START, more_of_server=f"    {start}\n", strategy=OURS)
        for start in (
            "FedAvg().start(grid, model, num_rounds=100)",
            "FedAvg().start(grid, model, 100)",
            "getattr(FedAvg(), 'start')(grid, model, 100)",
            "[each.start(grid, model) for each in (strategy, FedAvg())]",
        )
    ),
    case(
        "warning: ",
        "beside those of its strategy",
        strategy=COUNTED,
        more_of_server="    grid.send_and_receive([])\n",
    ),
    *(
        case("warning: ", FLOATS, more=f"\n{line}\n", strategy=OURS)
        for line in (
            "from numpy.random import normal as noise\nnoise(0.0, 1.0, 3)",
            "from numpy.random import default_rng\ndraws = default_rng(3)\ndraws.normal(0.0, 1.0, 3)",
            "import numpy as np\nnp.random.default_rng().laplace(size=3)",
            "import numpy\nnumpy.random.RandomState(3).standard_normal(3)",
            "import random\nrandom.gauss(0.0, 1.0)",
        )
    ),
    *(
        case(f"clients send {names} {IN_CLEAR}", strategy=COUNTED, more=metrics_made_by(body))
        for body, names in (
            ("told = dict(loss=0.5); told['norm'] = 3.0; record = MetricRecord(told)", "loss, norm"),
            ("record = MetricRecord(); record['loss'] = 0.5", "loss"),
            ("record = MetricRecord(measure(message))", "metrics with names that cannot be read here"),
            ("record = told(0.5)", "loss"),
            ("record = ConfigRecord({'user': 'somebody'})", "user"),
            ("record = MetricRecord({'num-examples': 3, 'loss': 1.0})", "loss"),
        )
    ),
    case("error: ", "client.py, line 3", "no ε is stated", client=LEGACY),
    case(
        "error: ",
        "secaggplus_mod is Flower's legacy secure aggregation",
        client=LEGACY.replace("from flwr.client.mod import secaggplus_mod", "import flwr.client.mod").replace(
            "[secaggplus_mod", "[flwr.client.mod.secaggplus_mod"
        ),
    ),
    *(
        case(
            "error: Renamed: it has no accountant: 7 rounds cost",
            strategy=kind.format(
                WRAPPED.format("").replace("DifferentialPrivacyServerSideFixedClipping", "Renamed")
            ),
        )
        for kind in ("Delegating({})", "Quiet({})", "{}")
    ),
    case("error: Endless: ", strategy="Endless()"),
    *(
        case(
            "error: ",
            "it promises nothing",
            client=MOD_OF_TRAINING.replace("mods=[{mods}]", "mods=several").replace(
                "@app.train", f"several = [LocalDpMod({arguments})]\n\n@app.train"
            ),
        )
        for arguments in ("1.0, 2.0, 0.0, 1e-5", "1.0, 2.0, 1.0, 0.0", "1.0, 2.0, 1.0, 1.5")
    ),
]


@pytest.mark.parametrize(("expected", "parts"), FOUND, ids=range(len(FOUND)))
def test_findings_say_what_is_wrong_and_no_more_errors_than_there_are(
    make_app: MakeApp, expected: tuple[str, ...], parts: dict[str, str]
) -> None:
    assert_found(lint_app(make_app(**parts)), *expected)


@pytest.mark.parametrize(
    "more",
    [
        {"more": "\nimport numpy\nnumpy.random.seed(3)\n"},
        {"more": "\nclass Surface:\n    def normal(self):\n        return 1\nSurface().normal()\n"},
        {"mods": f"{OUR_MOD}, leak"},
        {},
    ],
)
def test_an_app_of_ours_is_told_what_it_costs_and_nothing_else(
    make_app: MakeApp, more: dict[str, str]
) -> None:
    """A seed that our noise does not come from, what only looks like a draw, and a mod inside of ours."""
    (finding,) = lint_app(make_app(**{"strategy": OURS, "mods": OUR_MOD, **more}))
    assert finding.severity is Severity.COST
    counted = Accountant({Release(pq.design("one_bit", epsilon=1.0), 10): 7})
    for relation in (Relation.REPLACE_ONE, Relation.ZERO_OUT):
        assert counted.statement(1e-5, relation=relation).brief in finding.problem


def test_a_wrong_sensitivity_gives_the_epsilon_that_it_really_has(make_app: MakeApp) -> None:
    """The noise is for a sensitivity of 1e-4, but updates of norm 1 are up to 2 apart."""
    settings = "clipping_norm=1.0, sensitivity=1e-4, epsilon=10.0, delta=1e-5"
    (finding,) = errors(lint_app(make_app(mods=f"LocalDpMod({settings})")))
    assert "σ = 4.8e-05" in finding.problem
    assert "client round, local view, replace-one" in finding.problem
    assert "client round, local view, zero-out" in finding.problem
    assert "sensitivity=2" in finding.remedy
    assert local_statement(LocalDpMod(1.0, 1e-4, 10.0, 1e-5), Relation.REPLACE_ONE).epsilon == pytest.approx(
        0.85e9, rel=0.01
    )


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
    findings, mod = lint_app(make_app(mods=FLOWERS_MOD)), LocalDpMod(1.0, 2.0, 1.0, 1e-5)
    assert_found(findings, "warning: LocalDpMod: Flower draws its noise as floats from the global np.random")
    assert findings[-1].severity is Severity.COST
    for relation in (Relation.REPLACE_ONE, Relation.ZERO_OUT):
        once, total = local_statement(mod, relation), local_statement(mod, relation, 7)
        assert once.epsilon < total.epsilon < 7.0 * once.epsilon
        assert once.brief in findings[-1].problem
        assert total.brief in findings[-1].problem


def test_the_run_config_is_read(make_app: MakeApp) -> None:
    stated = central_statement(4.0, 50, Relation.ADD_REMOVE)
    findings = lint_app(make_app(WRAPPED.format("")), "multiplier=4.0 rounds=50")
    assert_found(findings, FIXED + "it has no accountant: 50 rounds", stated.brief)
    assert stated.epsilon == pytest.approx(8.60, abs=0.005)
    assert central_statement(2.0, 10, Relation.ADD_REMOVE).epsilon == pytest.approx(7.51, abs=0.005)
    assert math.isinf(central_statement(math.nan, 1, Relation.ADD_REMOVE).epsilon)


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


def test_a_class_of_flower_that_the_app_changes_is_an_error(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_app(mods="LocalDpMod(1.0, 2.0, 1.0, 1e-5)")
    assert not errors(lint_app(folder))
    monkeypatch.setattr(LocalDpMod, "__call__", lambda mod, message, context, call_next: None)
    (finding,) = errors(lint_app(folder))
    assert "it replaces __call__ of LocalDpMod" in finding.problem


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
    findings = lint_app(make_app(COUNTED), "", Relation.ADD_REMOVE)
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
