"""What ``plan`` and ``statement`` print can be pasted, and is true of the simulations that they name."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from typer.testing import CliRunner

import fl_privquant as pq
from fl_privquant.accounting import PerClient
from fl_privquant.cli import _plan_printing
from fl_privquant.cli.main import app
from fl_privquant.cohort import min_clients, min_honest_clients
from fl_privquant.flower import NoUsableReplyError
from fl_privquant.flower.simulation import Federation, InlineEngine
from fl_privquant.planning.target import _round_up
from simulations.runner.config import RunConfig, compose_run
from simulations.runner.planned import plan_run
from simulations.tasks.task import get_task

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def run(*arguments: str, columns: int = 160) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False, env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    return result.output


def pasted(out: str, change: Any = lambda lines: lines) -> dict[str, Any]:
    """The names that the printed lines of Python define, those of the server and those of the client."""
    names: dict[str, Any] = {}
    server, client = out[out.index("Run it in a Flower server app:") :].split("and in its client app:")
    blocks = [server.partition("\n")[2], client]
    code = "\n".join(change("".join(blocks).splitlines()))
    exec(code.replace("def train(message, context): ...", TRAIN), names)
    return names


TRAIN = """def train(message, context):
    return trained(message)"""


def trained(message: Message) -> Message:
    arrays = {
        name: Array(array.numpy() + np.float32(0.01)) for name, array in message.content["arrays"].items()
    }
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)


def run_pasted(names: dict[str, Any]) -> None:
    """One round of the pasted server and client."""
    server = ServerApp()
    plan = names["plan"]
    names["trained"] = trained

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        model = ArrayRecord({"weight": Array(np.zeros(plan.dimension, np.float32))})
        names["strategy"].start(grid, model, num_rounds=1)

    InlineEngine().run(server, names["app"], Federation(num_clients=plan.target.num_clients))


PLANNED = {
    "usual": ("--clients", "20", "--dimension", "30", "--rounds", "2"),
    "other shares": ("--clients", "20", "--dimension", "30", "--rounds", "2", "--corrupt-fraction", "0"),
    "two clients": (
        *("--clients", "2", "--dimension", "30", "--rounds", "2"),
        *("--corrupt-fraction", "0", "--dropout-fraction", "0", "--force"),
    ),
    "a noisy mechanism": (
        *("--clients", "20", "--dimension", "30", "--rounds", "2"),
        *("--mechanism", "skellam", "--kilobytes", "10"),
    ),
}


@pytest.mark.parametrize("case", PLANNED)
def test_the_printed_lines_of_server_and_client_run(case: str) -> None:
    out = run("plan", *PLANNED[case])
    names = pasted(out)
    sent = names["plan"].aggregation.adapt_mechanism(names["plan"].encoding.mechanism)
    printed = {float(limit) for limit in re.findall(r"max_epsilon=([^,)]+)", out)}
    assert len(printed) == 1
    assert sent.epsilon <= min(printed) <= sent.epsilon * 1.001
    assert f"Each client must allow {sent.statement.brief}" in out
    run_pasted(names)


def test_clients_that_allow_less_than_what_is_printed_refuse() -> None:
    """Negative control: the printed limit is needed."""

    def tighter(lines: list[str]) -> list[str]:
        halved = re.compile(r"max_epsilon=([^,)]+)")
        return [halved.sub(lambda limit: f"max_epsilon={0.999 * float(limit[1])}", line) for line in lines]

    with pytest.raises(NoUsableReplyError, match="the mechanism is above this client's limits"):
        run_pasted(pasted(run("plan", *PLANNED["usual"]), tighter))


@pytest.mark.parametrize("value", [1.0, 1.0000000001, 0.99999999, math.pi, 1e-5, 123456.7, 0.1, 5e-324])
def test_limits_are_rounded_up_as_programs_read_them(value: float) -> None:
    rounded = _round_up(value)
    assert value <= rounded == float(f"{rounded:g}")
    assert rounded <= value * 1.001 or value < 1e-300


def test_a_plan_in_python_says_what_clients_must_allow() -> None:
    target = pq.Target(epsilon=8.0, rounds=3, num_clients=30)
    for aggregation, name in ((pq.SecureSum(), None), (PerClient(), "one_bit"), (pq.SecureSum(), "skellam")):
        plan = target.plan(40, mechanism=name, aggregation=aggregation)
        limits = plan.client_limits
        assert limits["max_epsilon"] >= plan.encoding.mechanism.epsilon
        assert limits.get("max_delta", 0.0) >= plan.encoding.mechanism.delta
        printed = ", ".join(f"{key}={value:g}" for key, value in limits.items())
        allowed = f"Each client must allow {plan.encoding.mechanism.statement.brief}"
        if isinstance(aggregation, pq.SecureSum):
            allowed += ", which counts on its own noise alone"
            printed += ", secure_aggregation=True"
        assert f"{allowed}: PrivQuantMod({printed})." in str(plan)


def simulated(out: str) -> RunConfig:
    """The configuration of the printed simulation."""
    command = next(line for line in out.splitlines() if "python -m simulations.run" in line)
    return compose_run(*command.split()[3:])


def test_the_printed_simulation_says_which_task_it_is() -> None:
    out = run("plan", "--clients", "40", "--dimension", "2000", "--rounds", "10", "--bits", "1")
    assert "Simulate it" not in out
    assert "task=digits, whose model has 650 coordinates and not 2000: it is planned anew" in out
    config = simulated(out)
    assert config.task["name"] == "digits"
    task = get_task(config)
    assert sum(array.size for array in task.initial_arrays().values()) == _plan_printing._DIGITS_COORDINATES
    assert sum(task.num_examples(client) for client in range(40)) == _plan_printing._DIGITS_EXAMPLES


@pytest.mark.parametrize(
    ("arguments", "task"),
    [
        (("--clients", "40", "--dimension", "650", "--error", "1.5"), "digits"),
        (("--clients", "1500", "--dimension", "300"), "mean"),
    ],
)
def test_a_printed_simulation_of_as_many_coordinates_has_the_printed_plan(
    arguments: tuple[str, ...], task: str
) -> None:
    out = run("plan", *arguments, "--rounds", "10", "--bits", "1")
    assert f"Simulate it on task={task}" in out
    config = simulated(out)
    assert config.task["name"] == task
    plan = pasted(out)["plan"]
    again = plan_run(config, plan.dimension)
    assert again is not None
    assert (again.statement, again.bytes_per_round) == (plan.statement, plan.bytes_per_round)


@pytest.mark.parametrize(("clients", "left"), [(1, "no honest client"), (2, "no honest client"), (3, "one")])
def test_statements_for_few_clients_say_why_there_is_no_sum(clients: int, left: str) -> None:
    shown = run("statement", "--mechanism", "one_bit", "--clients", str(clients), "--dimension", "10")
    assert shown.count("local") >= 3
    assert "the sum only" not in shown
    said = " ".join(shown.split())
    assert "The local view is the same for any number of clients. The aggregate view is not stated" in said
    assert f"1 corrupt and 1 lost leave {left}" in said
    assert "ask 4 clients or more, or lower --corrupt-fraction (0.1) or --dropout-fraction (0.1)." in said
    # What it advises has a sum, and nothing is said any more.
    enough = run("statement", "--mechanism", "one_bit", "--clients", "4", "--dimension", "10")
    assert "aggregate of 2" in enough
    assert "not stated" not in enough


@pytest.mark.parametrize("listed", [("--compare",), ("--mechanism", "one_bit")])
def test_no_design_is_listed_for_a_sum_that_hides_nobody(listed: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, ["plan", "--clients", "3", "--dimension", "10", *listed])
    text = str(result.exception)
    assert result.exit_code
    assert (
        "--clients: 3 clients: 1 corrupt and 1 lost leave one honest client, which no other client hides"
        in text
    )


@pytest.mark.parametrize("fractions", [(0.0, 0.0), (0.1, 0.1), (0.3, 0.2), (0.01, 0.9), (0.5, 0.49)])
def test_the_min_clients_of_a_sum(fractions: tuple[float, float]) -> None:
    fewest = min_clients(*fractions)
    assert fewest is not None
    assert min_honest_clients(fewest, *fractions) >= 2
    assert all(min_honest_clients(number, *fractions) < 2 for number in range(1, fewest))


ONES = (
    ("plan", "--clients", "5", "--rounds", "1", "--dimension", "1", "--bits", "1", "--force"),
    ("plan", "--clients", "5", "--rounds", "1", "--dimension", "1", "--mechanism", "one_bit"),
    ("plan", "--epsilon", "0.001", "--clients", "5", "--rounds", "1", "--mechanism", "one_bit"),
    ("statement", "--clients", "1", "--rounds", "1", "--dimension", "1", "--mechanism", "one_bit"),
    ("compare", "--dimension", "1", "--mechanism", "one_bit", "--mechanism", "cldp_linf"),
    ("design", "skellam", "--epsilon", "1", "--levels", "4", "--set", "num_clients=1"),
    ("design", "cldp_linf", "--epsilon", "1", "--set", "dimension=1"),
)


@pytest.mark.parametrize("arguments", ONES, ids=" ".join)
def test_one_is_not_printed_in_the_plural(arguments: tuple[str, ...]) -> None:
    shown = " ".join(run(*arguments).split())
    # "1 bits" of a code are a column of numbers; a unit or noun after a one is not.
    many = re.findall(r"(?<![\d.,/^-])1 (?:clients|rounds|coordinates|bits|levels|bytes|nodes)\b", shown)
    assert not many, shown


SMALL = ("--clients", "20", "--rounds", "2", "--dimension", "30")


def test_a_printed_plan_is_what_python_prints_and_says_by_which_bound_it_was_chosen() -> None:
    """Figures once assumed a tenth of each without saying so, and nothing explained the default bound."""
    out = run("plan", *SMALL, columns=1000)
    assert str(pasted(out)["plan"]) in out
    assert "if 2 of 20 clients are corrupt and 2 are lost; planned for nobody corrupt or lost" in out
    assert "within 1.238 times a trusted server's error (--error), by default 1.1 × 18/16: 18 clients" in out
    everybody = run("plan", *SMALL, "--corrupt-fraction", "0", "--dropout-fraction", "0", columns=1000)
    assert "within 1.1 times a trusted server's error (--error)." in everybody
    assert "if nobody is corrupt or lost." in everybody
    assert "planned for nobody" not in everybody


def test_lists_of_designs_give_both_errors_too() -> None:
    out = run("plan", *SMALL, "--compare", "--mechanism", "one_bit")
    row = next(line.split() for line in out.splitlines() if line.split()[:1] == ["one_bit"])
    target = pq.Target(epsilon=8.0, rounds=2, num_clients=20)
    plan = target.plan(30, mechanism="one_bit")
    assert row[3:5] == [f"{plan.ratio_to_central:.4f}", f"{plan.if_all_honest.ratio_to_central:.4f}"]
    assert "included; if 2 of 20 clients are corrupt and 2 are lost." in " ".join(out.split())


def test_the_page_on_plans_has_the_errors_that_its_plan_prints() -> None:
    page = " ".join((Path(__file__).parents[2] / "docs/pages/plan.md").read_text().split())
    assert "pq.Target(epsilon=8.0, delta=1e-5, rounds=10, num_clients=100)" in page
    plan = pq.Target(epsilon=8.0, delta=1e-5, rounds=10, num_clients=100).plan(dimension=900, l2_clip=1.0)
    errors = (
        f"the plan above has {plan.ratio_to_central:.3f} times a trusted server's error if 10 of 100 clients "
        f"are corrupt and 10 are lost, and {plan.if_all_honest.ratio_to_central:.3f} times if it is planned"
    )
    assert errors in page
    assert "1.1 × 90/80 = 1.238" in page


def test_unusual_shares_are_in_the_line_for_clients() -> None:
    target = pq.Target(epsilon=8.0, rounds=3, num_clients=30)
    plan = target.plan(40, aggregation=pq.SecureSum(corrupt_fraction=0.2))
    assert "secure_aggregation=ClientPolicy(corrupt_fraction=0.2, dropout_fraction=0.1))." in str(plan)
