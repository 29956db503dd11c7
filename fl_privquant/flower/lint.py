"""What the privacy of a Flower app really is: its strategy, mods, config and sources, read without training.

The app's server runs until it starts its strategy, or sends its first model; no client is asked to train.
What was read is then compared with what protects: findings say what is wrong and what to write instead.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import numpy as np
from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, PrivacyAccountant, ServerApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    Strategy,
)

from fl_privquant.errors import MISSING, InvalidSpecError, PrivQuantError, one_line
from fl_privquant.flower._flower_internals import (
    LocalDpMod,
    adaptiveclipping_mod,
    find_mods,
    fixedclipping_mod,
)
from fl_privquant.flower.client.mod import PrivQuantMod
from fl_privquant.flower.server.accountant import AccountedAdaptiveClipping, GaussianAccountant
from fl_privquant.flower.server.strategy import PrivQuantStrategy
from fl_privquant.flower.server.strategy_wrapper import strategy_stack
from fl_privquant.flower.simulation import Federation, InlineEngine
from fl_privquant.flower.simulation.pilot import FirstModelSent, UntilTrainingGrid, make_server, read_app
from fl_privquant.privacy_loss.additive.gaussian import gaussian_epsilon
from fl_privquant.statement import PrivacyStatement, Relation, StatedView, Unit, ViewKind

_DELTA = 1e-5
# With a larger δ an update may be told as it is.
_MAX_DELTA = 0.01
_KNOWN_PACKAGES = ("flwr", "fl_privquant")
# The target of the plan that is suggested.
_USUAL_EPSILON = 8.0
# Nodes that a server finds which waits for some; none of them is asked to train.
_NODES = 100
_FIXED = (DifferentialPrivacyServerSideFixedClipping, DifferentialPrivacyClientSideFixedClipping)
_ADAPTIVE = (DifferentialPrivacyServerSideAdaptiveClipping, DifferentialPrivacyClientSideAdaptiveClipping)
_CLIPPED_BY_CLIENTS = {
    DifferentialPrivacyClientSideFixedClipping: fixedclipping_mod,
    DifferentialPrivacyClientSideAdaptiveClipping: adaptiveclipping_mod,
}
_LEGACY_SUMS = {"SecAggPlusWorkflow", "SecAggWorkflow", "secaggplus_mod", "secagg_mod"}
_GENERATOR = np.random.Generator
_DRAWS = {"randn", "multivariate_normal"} | {
    draw.__name__
    for draw in (_GENERATOR.normal, _GENERATOR.laplace, _GENERATOR.standard_normal, _GENERATOR.exponential)
}
# The metric by which FedAvg weighs, which every app reports.
_WEIGHT = "num-examples"
# Epsilons that differ by less count as equal: formulas of the field round.
_SAME = 1.001


@dataclass(frozen=True)
class Finding:
    """Something about an app's privacy that its author should know."""

    place: str
    """The object or the line of a file."""
    problem: str
    """What it does, with figures."""
    remedy: str
    """What to write instead."""
    is_error: bool = True
    """Whether the app does not have the privacy that it claims; otherwise this is a warning."""

    def __str__(self) -> str:
        kind = "error" if self.is_error else "warning"
        return f"{kind}: {self.place}: {self.problem}. Instead: {self.remedy}"


@dataclass(frozen=True, eq=False)
class AppParts:
    """What was read of an app."""

    sources: dict[str, ast.Module]
    """The Python files of its folder, by relative path."""
    strategy: Strategy | None = None
    """The strategy that the server starts; None if it starts none."""
    rounds: int = 1
    """How many rounds the strategy is started for."""
    client: ClientApp | None = None
    relation: Relation = Relation.REPLACE_ONE
    """The neighboring relation that is stated first, and in which plans are suggested."""

    @cached_property
    def mods(self) -> list[Any]:
        """The mods around the client's training."""
        return [] if self.client is None else find_mods(self.client).get("train", [])

    @cached_property
    def strategies(self) -> list[Strategy]:
        """The strategy, and those that it wraps, from the outside in."""
        return list(strategy_stack(self.strategy))


def lint_app(folder: Path, run_config: str = "", relation: Relation = Relation.REPLACE_ONE) -> list[Finding]:
    """What is wrong with the privacy of the Flower app in a folder; errors first.

    Parameters
    ----------
    folder
        The folder of the app's ``pyproject.toml``. Its modules are imported, and its server runs until it
        starts a strategy.
    run_config
        Values for keys of the app's own config, as for ``flwr run``.
    relation
        The neighboring relation to state first; the other one is stated beside it.

    Raises
    ------
    InvalidSpecError
        If the folder holds no app, or if its server fails before it starts a strategy.
    """
    sources = _parse_sources(folder)
    legacy = list(_legacy_findings(sources))
    if legacy:
        # Its objects belong to another API, of which nothing more is known.
        return legacy
    server, client, config = read_app(folder, run_config)
    strategy, rounds = _capture_strategy(server, client, Federation(_NODES, run_config=config))
    return lint_parts(AppParts(sources, strategy, rounds, client, relation))


def lint_parts(app: AppParts) -> list[Finding]:
    """The findings about an app that was read; errors first."""
    checks = (
        _check_protection,
        _check_local_mods,
        _check_fixed_clipping,
        _check_adaptive_clipping,
        _check_client_clipping,
        _check_own_parts,
        _check_randomness,
        _check_metrics,
    )
    findings = [finding for check in checks for finding in check(app)]
    return sorted(findings, key=lambda finding: not finding.is_error)


def central_statement(
    noise_multiplier: float, rounds: int, relation: Relation, delta: float = _DELTA
) -> PrivacyStatement:
    """What rounds of a noisy mean cost a client, if noise is that many clipping norms in the sum."""
    separation = relation.distance * math.sqrt(rounds) / noise_multiplier
    epsilon = gaussian_epsilon(separation, delta)
    return PrivacyStatement(
        epsilon, delta, Unit.TOTAL, StatedView(ViewKind.CENTRAL), relation, "gaussian-exact"
    )


def local_statement(mod: LocalDpMod, relation: Relation) -> PrivacyStatement:
    """What one update costs that passes Flower's ``LocalDpMod``, by the noise that it adds."""
    separation = relation.distance * mod.clipping_norm / local_deviation(mod)
    epsilon = gaussian_epsilon(separation, mod.delta)
    return PrivacyStatement(epsilon, mod.delta, Unit.ROUND, relation=relation, method="gaussian-exact")


def local_deviation(mod: LocalDpMod) -> float:
    """The standard deviation of the noise that Flower's ``LocalDpMod`` adds to each parameter."""
    return float(mod.sensitivity) * math.sqrt(2.0 * math.log(1.25 / mod.delta)) / float(mod.epsilon)


def _ours(app: AppParts) -> str:
    """The lines of this package that protect the app."""
    clients = max([getattr(part, "min_train_nodes", 0) for part in app.strategies] + [_NODES])
    view, relation = StatedView(ViewKind.AGGREGATE), app.relation
    target = PrivacyStatement(_USUAL_EPSILON, _DELTA, Unit.TOTAL, view, relation)
    other = "" if relation is Relation.REPLACE_ONE else f', relation="{relation}"'
    return (
        f"plan = pq.Target({_USUAL_EPSILON:g}, rounds={app.rounds}, num_clients={clients}{other})"
        ".plan(dimension); "
        "PrivQuantStrategy(strategy, plan) on the server, and PrivQuantMod(**plan.client_limits, "
        f"secure_aggregation=True) on the client: {target.brief}, certified"
    )


def _check_protection(app: AppParts) -> Iterator[Finding]:
    protects = (*_FIXED, *_ADAPTIVE, PrivQuantStrategy)
    by_server = any(isinstance(part, protects) for part in app.strategies)
    if not by_server and not any(isinstance(mod, (LocalDpMod, PrivQuantMod)) for mod in app.mods):
        name = "no strategy" if app.strategy is None else type(app.strategy).__name__
        problem = "every update is sent as it is, and nothing that is known here hides any client"
        yield Finding(name, problem, _ours(app))


def _check_local_mods(app: AppParts) -> Iterator[Finding]:
    for mod in app.mods:
        if not isinstance(mod, LocalDpMod):
            continue
        names = ("clipping_norm", "sensitivity", "epsilon", "delta")
        place = f"LocalDpMod({', '.join(f'{name}={getattr(mod, name):g}' for name in names)})"
        if not (mod.epsilon > 0.0 and 0.0 < mod.delta <= _MAX_DELTA):
            problem = f"it promises nothing without an ε above 0 and a δ above 0 and up to {_MAX_DELTA:g}"
            yield Finding(place, problem, _ours(app))
            continue
        sigma = local_deviation(mod)
        if not 0.0 < sigma < math.inf:
            yield Finding(place, f"its noise has σ = {sigma:g}", _ours(app))
            continue
        zero_out, replace_one = (
            local_statement(mod, relation) for relation in (Relation.ZERO_OUT, Relation.REPLACE_ONE)
        )
        first, second = sorted((replace_one, zero_out), key=lambda cost: cost.relation is not app.relation)
        told = f"its noise has σ = {sigma:.2g}, so an update costs {first.brief}, or {second.brief}"
        if zero_out.epsilon > _SAME * mod.epsilon:
            remedy = (
                f"sensitivity={2.0 * mod.clipping_norm:g}, as two updates may differ by two clipping norms"
            )
            yield Finding(place, f"{told}, and not what its arguments name", remedy)
        else:
            several = f"; {app.rounds} rounds cost more, and nothing counts them" if app.rounds > 1 else ""
            yield Finding(place, told + several, _ours(app), is_error=False)


def _check_fixed_clipping(app: AppParts) -> Iterator[Finding]:
    for strategy in app.strategies:
        if not isinstance(strategy, _FIXED):
            continue
        place, z = type(strategy).__name__, float(strategy.noise_multiplier)
        if not 0.0 < z < math.inf:
            yield Finding(place, f"a noise_multiplier of {z:g} adds no noise that hides anybody", _ours(app))
            continue
        accountant = strategy.accountant
        delta = _DELTA if accountant is None else accountant.config.target_delta
        relations = [Relation.ADD_REMOVE, Relation.REPLACE_ONE]
        if app.relation is Relation.REPLACE_ONE:
            relations.reverse()
        stated = [central_statement(z, app.rounds, relation, delta) for relation in relations]
        costs = (
            f"{app.rounds} rounds cost {stated[0].brief}, or {stated[1].brief}, if all clients weigh the same"
        )
        if accountant is None:
            remedy = (
                f"accountant=GaussianAccountant(PrivacyConfig(target_delta={delta:g}, ...)), which counts "
                "them, checks that all clients weigh the same, and stops at max_epsilon"
            )
            yield Finding(place, f"it has no accountant: {costs}, and nothing counts or stops that", remedy)
        elif not isinstance(accountant, GaussianAccountant):
            yield _of_other_accountant(place, accountant, costs)


def _of_other_accountant(place: str, accountant: PrivacyAccountant, costs: str) -> Finding:
    return Finding(
        place,
        f"{type(accountant).__name__} states an upper bound; exactly, {costs}",
        "accountant=GaussianAccountant(config), which allows more rounds for the same ε",
        is_error=False,
    )


def _check_adaptive_clipping(app: AppParts) -> Iterator[Finding]:
    counted = any(isinstance(part, AccountedAdaptiveClipping) for part in app.strategies)
    for strategy in app.strategies:
        if isinstance(strategy, _ADAPTIVE) and not counted:
            yield Finding(
                type(strategy).__name__,
                "Flower counts neither its noisy means nor its noisy numbers of clipped updates, and scales "
                "the noise with a clipping norm that the updates were not clipped to",
                "AccountedAdaptiveClipping(strategy, GaussianAccountant(config)), which counts both",
            )


def _check_client_clipping(app: AppParts) -> Iterator[Finding]:
    for strategy in app.strategies:
        mod = _CLIPPED_BY_CLIENTS.get(type(strategy))
        if mod is not None and mod not in app.mods:
            yield Finding(
                type(strategy).__name__,
                f"no client clips: {mod.__name__} is not among the mods, so that noise of any size hides "
                "nothing",
                f"ClientApp(mods=[{mod.__name__}])",
            )


def _check_own_parts(app: AppParts) -> Iterator[Finding]:
    on_server = any(isinstance(part, PrivQuantStrategy) for part in app.strategies)
    on_client = any(isinstance(mod, PrivQuantMod) for mod in app.mods)
    if on_server and not on_client:
        yield Finding("PrivQuantStrategy", "no client encodes", "ClientApp(mods=[PrivQuantMod(...)])")
    if on_client and not on_server:
        yield Finding("PrivQuantMod", "no server asks for codes", "PrivQuantStrategy(strategy, plan)")


def _check_randomness(app: AppParts) -> Iterator[Finding]:
    noisy = [part for part in app.strategies if isinstance(part, (*_FIXED, *_ADAPTIVE))]
    noisy_mods = [mod for mod in app.mods if isinstance(mod, LocalDpMod)]
    for part in [*noisy, *noisy_mods]:
        yield _of_floats(type(part).__name__, "Flower draws its noise as floats from the global np.random")
    for path, tree in app.sources.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _is_draw(node.func):
                place = f"{path}, line {node.lineno}"
                yield _of_floats(
                    place, f"{ast.unparse(node.func)} draws floats. If that is noise for privacy"
                )


def _of_floats(place: str, what: str) -> Finding:
    return Finding(
        place,
        f"{what}: whoever knows the seed can subtract it, and the last bits of its floats tell inputs apart",
        "a mechanism with integer noise from secure randomness, such as rounded_gaussian",
        is_error=False,
    )


def _is_draw(function: ast.expr) -> bool:
    """Whether a function draws noise: ``np.random.normal``, or ``normal`` of a generator in ``np.random``."""
    if not isinstance(function, ast.Attribute) or function.attr not in _DRAWS:
        return False
    return "random" in ast.unparse(function.value) or "rng" in ast.unparse(function.value).lower()


def _check_metrics(app: AppParts) -> Iterator[Finding]:
    encodes = any(isinstance(mod, PrivQuantMod) for mod in app.mods)
    for mod in app.mods:
        if isinstance(mod, PrivQuantMod) and mod.metrics:
            yield _of_metrics("PrivQuantMod", mod.metrics)
    for path, tree in app.sources.items():
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef) and not encodes and _trains(function):
                names = [name for name in _metric_names(function) if name != _WEIGHT]
                if names:
                    yield _of_metrics(f"{path}, line {function.lineno}", names)
    registered = {} if app.client is None else find_mods(app.client)
    for strategy in app.strategies:
        asked = float(getattr(strategy, "fraction_evaluate", 0.0))
        if asked > 0.0 and "evaluate" in registered and not encodes:
            yield Finding(
                f"{type(strategy).__name__}(fraction_evaluate={asked:g})",
                "clients send what their evaluation measured one by one, in clear",
                "fraction_evaluate=0.0, and evaluate on data of the server",
                is_error=False,
            )


def _of_metrics(place: str, names: Sequence[str]) -> Finding:
    return Finding(
        place,
        f"clients send {', '.join(names)} in clear beside their updates, which no ε counts",
        "target.plan(..., private_metrics={name: (low, high)}), or leave them out",
        is_error=False,
    )


def _trains(function: ast.FunctionDef) -> bool:
    """Whether a function is decorated as ``@app.train()``."""
    decorators = [node.func if isinstance(node, ast.Call) else node for node in function.decorator_list]
    return any(isinstance(node, ast.Attribute) and node.attr == "train" for node in decorators)


def _metric_names(function: ast.FunctionDef) -> list[str]:
    """The keys of dictionaries that the function makes a ``MetricRecord`` of."""
    assigned = {
        target.id: node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    names: list[str] = []
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "MetricRecord":
            for argument in node.args:
                value = assigned.get(argument.id) if isinstance(argument, ast.Name) else argument
                if isinstance(value, ast.Dict):
                    names += [str(key.value) for key in value.keys if isinstance(key, ast.Constant)]
    return names


def _legacy_findings(sources: dict[str, ast.Module]) -> Iterator[Finding]:
    for path, tree in sources.items():
        for node in ast.walk(tree):
            named = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            for name in sorted(_LEGACY_SUMS.intersection(named)):
                yield Finding(
                    f"{path}, line {node.lineno}",  # type: ignore[attr-defined]
                    f"{name} is Flower's legacy secure aggregation: it rounds floats, weighs by numbers of "
                    "examples, which it shows the server, and makes masks from seeds of 32 bits. It adds no "
                    "noise, so that no ε is stated",
                    "the Message API with PrivQuantStrategy(strategy, plan) and "
                    "PrivQuantMod(secure_aggregation=True)",
                )


class _StrategyStarted(BaseException):
    """Ends the server when it starts its strategy. No app catches it as an error."""


def _capture_strategy(
    server: ServerApp, client: ClientApp, federation: Federation
) -> tuple[Strategy | None, int]:
    """The strategy that a server starts, and for how many rounds; None if it has a loop of its own."""
    signature = inspect.signature(Strategy.start)
    started: list[tuple[Strategy | None, int]] = []

    def stop(self: Strategy, grid: Grid, *arguments: Any, **named: Any) -> NoReturn:
        given = signature.bind(self, grid, *arguments, **named)
        given.apply_defaults()
        started.append((self, int(given.arguments["num_rounds"])))
        raise _StrategyStarted

    def main(grid: Grid, context: Context) -> None:
        server(UntilTrainingGrid(grid), context)

    try:
        with ExitStack() as patched:
            for kind in _subclasses(Strategy):
                # The app's own strategies may start those that they wrap, or those that they extend.
                if "start" in vars(kind) and kind.__module__.partition(".")[0] in _KNOWN_PACKAGES:
                    patched.enter_context(mock.patch.object(kind, "start", stop))
            InlineEngine().run(make_server(main), client, federation)
    except (_StrategyStarted, FirstModelSent, PrivQuantError):
        pass
    except (Exception, SystemExit) as error:  # an app may fail in any way
        if not started:
            reason = f"{type(error).__name__}: {one_line(error)}"
            raise InvalidSpecError("app", MISSING, f"fails before it starts a strategy ({reason})") from error
    return started[0] if started else (None, 1)


def _subclasses(kind: type) -> Iterator[type]:
    yield kind
    below: type
    for below in kind.__subclasses__():
        yield from _subclasses(below)


def _parse_sources(folder: Path) -> dict[str, ast.Module]:
    """The Python files of a folder, without those of virtual environments and hidden folders."""
    parsed: dict[str, ast.Module] = {}
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder)
        if any(part.startswith(".") or part in ("venv", "site-packages") for part in name.parts):
            continue
        try:
            parsed[str(name)] = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError, OSError) as error:
            raise InvalidSpecError(
                "app", str(name), f"cannot be read ({type(error).__name__}: {one_line(error)})"
            ) from error
    return parsed
