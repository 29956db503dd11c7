"""What an app costs, and what is wrong with its privacy: each check looks at one kind of its parts."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import takewhile
from pathlib import Path
from typing import Any

from flwr.serverapp import NeighboringRelation, PrivacyAccountant, RdpAccountant
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    Strategy,
)

from fl_privquant.accounting.accountant import Accountant
from fl_privquant.errors import PrivQuantError, pluralize
from fl_privquant.flower._flower_internals import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from fl_privquant.flower._messages.arrays import read_arrays
from fl_privquant.flower.client.mod import PrivQuantMod
from fl_privquant.flower.lint import _sources
from fl_privquant.flower.lint._app import AppParts, is_known, read_parts
from fl_privquant.flower.server.accountant import AccountedAdaptiveClipping, GaussianAccountant
from fl_privquant.flower.server.strategy import PrivQuantStrategy
from fl_privquant.privacy_loss.additive.gaussian import gaussian_epsilon
from fl_privquant.statement import LOCAL, PrivacyStatement, Relation, StatedView, Unit, ViewKind

_DELTA = 1e-5
# With a larger δ an update may be told as it is.
_MAX_DELTA = 0.01
# A total above this is no formal protection.
_MAX_TOTAL = 100.0
# The target of the plan that is suggested, and for how many clients, if the app does not say.
_USUAL_EPSILON, _USUAL_CLIENTS = 8.0, 100
_FIXED = (DifferentialPrivacyServerSideFixedClipping, DifferentialPrivacyClientSideFixedClipping)
_ADAPTIVE = (DifferentialPrivacyServerSideAdaptiveClipping, DifferentialPrivacyClientSideAdaptiveClipping)
_CLIPPED_BY_CLIENTS = {
    DifferentialPrivacyClientSideFixedClipping: fixedclipping_mod,
    DifferentialPrivacyClientSideAdaptiveClipping: adaptiveclipping_mod,
}
_STRATEGIES, _MODS = (*_FIXED, *_ADAPTIVE, PrivQuantStrategy), (LocalDpMod, PrivQuantMod)
_ACCOUNTANTS = (GaussianAccountant, RdpAccountant)
# What an app may change of a class that protects it without changing what that protects.
_HARMLESS = {"__init__", "__repr__", "start", "summary"}
# Epsilons that differ by less count as equal: formulas of the field round.
_SAME = 1.001


class Severity(StrEnum):
    """What a finding means for the app."""

    ERROR = "error"
    """The app does not have the privacy that it claims."""
    WARNING = "warning"
    """Something leaves the clients, or may, that no ε covers."""
    COST = "cost"
    """What the app's own protection costs."""


@dataclass(frozen=True)
class Finding:
    """Something about an app's privacy that its author should know."""

    place: str
    """The object or the line of a file."""
    problem: str
    """What it does, with figures."""
    remedy: str = ""
    """What to write instead."""
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        instead = f". Instead: {self.remedy}" if self.remedy else ""
        return f"{self.severity}: {self.place}: {self.problem}{instead}"


def lint_app(folder: Path, run_config: str = "", relation: Relation = Relation.REPLACE_ONE) -> list[Finding]:
    """What the privacy of the Flower app in a folder costs, and what is wrong with it; errors first.

    Parameters
    ----------
    folder
        The folder of the app's ``pyproject.toml``. Its modules are imported, and its server runs until it
        starts a strategy.
    run_config
        Values for keys of the app's own config, as for ``flwr run``.
    relation
        The neighboring relation to state first; the other one is stated beside it.

    Returns
    -------
    list[Finding]
        What was found.

    Raises
    ------
    InvalidSpecError
        If the folder holds no app, or if its server fails before it starts a strategy.
    """
    sources = _sources.parse_sources(folder)
    legacy = [_of_legacy_sum(place, name) for place, name in _sources.find_legacy_sums(sources)]
    if legacy:
        # Its objects belong to another API, of which nothing more is known.
        return legacy
    app = read_parts(folder, run_config, sources, relation)
    parts = [*app.mods, *app.strategies]
    findings = [
        *(
            finding
            for part in parts
            for kind, check in _PART_CHECKS
            if isinstance(part, kind)
            for finding in check(part, app)
        ),
        *(finding for check in _APP_CHECKS for finding in check(app)),
    ]
    return sorted(findings, key=lambda finding: list(Severity).index(finding.severity))


def central_statement(
    noise_multiplier: float, rounds: int, relation: Relation, delta: float = _DELTA
) -> PrivacyStatement:
    """What rounds of a noisy sum cost a client of all of them; noise is given in clipping norms."""
    return _central_total(relation.distance * math.sqrt(rounds) / noise_multiplier, relation, delta)


def local_statement(mod: LocalDpMod, relation: Relation, rounds: int | None = None) -> PrivacyStatement:
    """What one update costs that passes Flower's ``LocalDpMod``, or all rounds, by the noise that it adds."""
    separation = relation.distance * mod.clipping_norm * math.sqrt(rounds or 1) / local_deviation(mod)
    epsilon, unit = gaussian_epsilon(separation, mod.delta), Unit.TOTAL if rounds else Unit.ROUND
    return PrivacyStatement(epsilon, mod.delta, unit, relation=relation, method="gaussian-exact")


def local_deviation(mod: LocalDpMod) -> float:
    """The standard deviation of the noise that Flower's ``LocalDpMod`` adds to each parameter."""
    return float(mod.sensitivity) * math.sqrt(2.0 * math.log(1.25 / mod.delta)) / float(mod.epsilon)


def _central_total(separation: float, relation: Relation, delta: float) -> PrivacyStatement:
    """The total of Gaussian releases by a trusted server that are together so far apart."""
    epsilon, view = gaussian_epsilon(separation, delta), StatedView(ViewKind.CENTRAL)
    return PrivacyStatement(epsilon, delta, Unit.TOTAL, view, relation, "gaussian-exact")


def _central_relations(app: AppParts) -> tuple[Relation, Relation]:
    """The relations in which a trusted server is stated: it hides who takes part, so add-remove is one."""
    both = Relation.REPLACE_ONE, Relation.ADD_REMOVE
    return both if app.relation is Relation.REPLACE_ONE else both[::-1]


def _in_words(stated: Sequence[PrivacyStatement]) -> str:
    """The same cost in two relations."""
    return f"{stated[0].brief}, or {stated[1].brief}"


def _ours(app: AppParts) -> str:
    """The lines of this package that protect the app."""
    clients, relation = max(app.min_clients, _USUAL_CLIENTS), app.relation
    if relation is Relation.ADD_REMOVE:  # the server of a plan knows who takes part
        relation = Relation.ZERO_OUT
    target = PrivacyStatement(_USUAL_EPSILON, _DELTA, Unit.TOTAL, StatedView(ViewKind.AGGREGATE), relation)
    other = "" if relation is Relation.REPLACE_ONE else f', relation="{relation}"'
    return (
        f"plan = pq.Target({_USUAL_EPSILON:g}, rounds={app.rounds}, num_clients={clients}{other})"
        ".plan(dimension); "
        "PrivQuantStrategy(strategy, plan) on the server, and PrivQuantMod(**plan.client_limits, "
        f"secure_aggregation=True) on the client: {target.brief}, certified"
    )


def _check_protection(app: AppParts) -> Iterator[Finding]:
    by_server = any(isinstance(part, _STRATEGIES) for part in app.strategies)
    if not by_server and not any(isinstance(mod, _MODS) for mod in app.mods):
        name = "no strategy" if app.strategy is None else type(app.strategy).__name__
        problem = "every update is sent as it is, and nothing that is known here hides any client"
        yield Finding(name, problem, _ours(app))


def _check_class(part: Any, app: AppParts) -> Iterator[Finding]:
    """A method that the app replaces, in a subclass or in the object itself, may leave out what protects."""
    if replaced := _replaced_methods(part):
        known = _known_class(part).__name__
        problem = f"it replaces {', '.join(sorted(replaced))} of {known}, so that what it protects is unknown"
        yield Finding(
            type(part).__name__, problem, f"{known} itself, around or inside a strategy of your own"
        )


def _known_class(part: Any) -> type:
    """The first class of an object that is not the app's own."""
    return next(kind for kind in type(part).__mro__ if is_known(kind))


def _replaced_methods(part: Any) -> set[str]:
    """The methods of a known class that the app replaces in its own class, in the object or in the class."""
    known = _known_class(part)
    own = [vars(kind) for kind in takewhile(lambda kind: not is_known(kind), type(part).__mro__)]
    replaced = {
        name for names in (*own, vars(part)) for name in names if callable(getattr(known, name, None))
    }
    for kind in filter(is_known, known.__mro__):
        functions = filter(lambda item: inspect.isfunction(item[1]), vars(kind).items())
        replaced |= {name for name, function in functions if not is_known(function)}
    return replaced - _HARMLESS


def _check_outer_mods(app: AppParts) -> Iterator[Finding]:
    """A mod outside of one that protects gets the protected reply, and may add to it."""
    protecting = [at for at, mod in enumerate(app.mods) if isinstance(mod, _MODS)]
    for mod in app.mods[: protecting[0]] if protecting else []:
        if not is_known(mod if hasattr(mod, "__name__") else type(mod)):
            inside = type(app.mods[protecting[0]]).__name__
            yield Finding(
                getattr(mod, "__name__", type(mod).__name__),
                f"this mod is outside of {inside}, so that nothing protects what it adds to a reply",
                f"put it after {inside} in the list of mods",
                Severity.WARNING,
            )


def _draws_floats(app: AppParts) -> bool:
    """Whether a part of Flower's adds noise."""
    return any(isinstance(part, (*_FIXED, *_ADAPTIVE, LocalDpMod)) for part in (*app.mods, *app.strategies))


def _check_bare_numbers(app: AppParts) -> Iterator[Finding]:
    """Flower clips in place, which changes no array without axes: numpy makes a number of it."""
    bare = [name for name, array in app.model.items() if not array.shape]
    if bare and _draws_floats(app):
        yield Finding(
            ", ".join(bare),
            "Flower does not clip what has no axes, such as a counter of BatchNorm, and no noise hides it",
            "send it with one axis, or leave it out of the model that is sent",
        )


def _check_mod_seed(mod: PrivQuantMod, app: AppParts) -> Iterator[Finding]:
    if mod.seed is not None:
        severity = Severity.WARNING if callable(mod.seed) else Severity.ERROR
        problem = "whoever knows the seed knows the noise, so that privacy is only simulated"
        yield Finding("PrivQuantMod(seed=...)", problem, "leave the seed out", severity)


def _check_simulated(strategy: PrivQuantStrategy, app: AppParts) -> Iterator[Finding]:
    if strategy.simulated:
        reason = f", as {strategy.aggregation.simulated}" if strategy.aggregation.simulated else ""
        problem = f"it says itself that privacy is only simulated{reason}"
        yield Finding("PrivQuantStrategy(simulated=True)", problem, _ours(app))


def _check_seeds(app: AppParts) -> Iterator[Finding]:
    """Noise from a seed can be subtracted by whoever knows the seed."""
    for place, is_written in _sources.find_seeds(app.sources) if _draws_floats(app) else ():
        severity = Severity.ERROR if is_written else Severity.WARNING
        problem = "this seeds the generator that Flower draws its noise from, which can then be subtracted"
        yield Finding(place, problem, "a generator of your own for all else", severity)


def _check_local_mod(mod: LocalDpMod, app: AppParts) -> Iterator[Finding]:
    names = ("clipping_norm", "sensitivity", "epsilon", "delta")
    place = f"LocalDpMod({', '.join(f'{name}={getattr(mod, name):g}' for name in names)})"
    if not (mod.epsilon > 0.0 and 0.0 < mod.delta <= _MAX_DELTA):
        problem = f"it promises nothing without an ε above 0 and a δ above 0 and up to {_MAX_DELTA:g}"
        yield Finding(place, problem, _ours(app))
        return
    sigma = local_deviation(mod)
    if not 0.0 < sigma < math.inf:
        yield Finding(place, f"its noise has σ = {sigma:g}", _ours(app))
        return
    update = [local_statement(mod, relation) for relation in app.relations]
    costs = f"its noise has σ = {sigma:.2g}, so an update costs {_in_words(update)}"
    if local_statement(mod, Relation.ZERO_OUT).epsilon > _SAME * mod.epsilon:
        remedy = f"sensitivity={2.0 * mod.clipping_norm:g}, as two updates may differ by two clipping norms"
        yield Finding(place, f"{costs}, and not what its arguments name", remedy)
        return
    total = [local_statement(mod, relation, app.rounds) for relation in app.relations]
    rounds = pluralize(app.rounds, "round")
    yield _of_cost(place, f"{costs}; {rounds}, which nothing counts, cost {_in_words(total)}", total, app)


def _check_fixed_clipping(strategy: Any, app: AppParts) -> Iterator[Finding]:
    place, z, accountant = type(strategy).__name__, float(strategy.noise_multiplier), strategy.accountant
    if not 0.0 < z < math.inf:
        yield Finding(place, f"a noise_multiplier of {z:g} adds no noise that hides anybody", _ours(app))
        return
    delta = _DELTA if accountant is None else accountant.config.target_delta
    stated = [central_statement(z, app.rounds, relation, delta) for relation in _central_relations(app)]
    costs = f"{pluralize(app.rounds, 'round')} cost {_in_words(stated)}"
    if accountant is not None:
        yield _of_counted(place, costs, stated, app, accountant)
        return
    replies = f"{strategy.num_sampled_clients} clients reply, and all weigh the same"
    yield Finding(
        place,
        f"it has no accountant: {costs} if {replies}, and nothing counts or stops that",
        f"accountant=GaussianAccountant(PrivacyConfig(target_delta={delta:g}, ...)), which counts "
        "them, checks that all clients weigh the same, and stops at max_epsilon",
    )


def _check_upper_bound(strategy: Any, app: AppParts) -> Iterator[Finding]:
    if isinstance(strategy.accountant, RdpAccountant):
        yield Finding(
            type(strategy).__name__,
            f"{type(strategy.accountant).__name__} states an upper bound of that",
            "accountant=GaussianAccountant(config), which is exact and allows more rounds for the same ε",
            Severity.WARNING,
        )


def _check_adaptive_clipping(strategy: Any, app: AppParts) -> Iterator[Finding]:
    place = type(strategy).__name__
    count, mean = (float(z) for z in (strategy.clipped_count_stddev, strategy.noise_multiplier))
    if not (0.0 < count < math.inf and 0.0 < mean < math.inf):
        yield Finding(place, f"noise of {mean:g} and {count:g} hides nobody", _ours(app))
        return
    stated = []
    for relation in _central_relations(app):
        # One client moves the number of clipped updates by one, under either relation.
        separation = math.sqrt(app.rounds) * math.hypot(relation.distance / mean, 1.0 / count)
        stated.append(_central_total(separation, relation, _DELTA))
    costs = (
        f"{pluralize(app.rounds, 'round')} cost {_in_words(stated)}, if the clipping norm stays as it is "
        "and all clients reply"
    )
    counted = [part for part in app.strategies if isinstance(part, AccountedAdaptiveClipping)]
    if counted:
        yield _of_counted(place, costs, stated, app, counted[0].accountant)
        return
    yield Finding(
        place,
        f"{costs}. Flower counts neither its noisy means nor its noisy numbers of clipped updates, and "
        "scales the noise with a clipping norm that the updates were not clipped to",
        "AccountedAdaptiveClipping(strategy, GaussianAccountant(config)), which counts both",
    )


def _check_client_clipping(strategy: Any, app: AppParts) -> Iterator[Finding]:
    for kind, mod in _CLIPPED_BY_CLIENTS.items():
        if isinstance(strategy, kind) and mod not in app.mods:
            yield Finding(
                type(strategy).__name__,
                f"no client clips: {mod.__name__} is not among the mods, so that noise of any size hides "
                "nothing",
                f"ClientApp(mods=[{mod.__name__}])",
            )


def _check_own_parts(app: AppParts) -> Iterator[Finding]:
    on_server = [part for part in app.strategies if isinstance(part, PrivQuantStrategy)]
    if on_server and not app.encodes("train"):
        yield Finding("PrivQuantStrategy", "no client encodes", "ClientApp(mods=[PrivQuantMod(...)])")
    elif on_server:
        yield _of_own_strategy(on_server[0], app)
        masks = any(isinstance(mod, PrivQuantMod) and mod.masks_updates for mod in app.mods)
        if masks != on_server[0].aggregation.masked:
            halves = ("PrivQuantMod", "the server") if masks else ("the server", "PrivQuantMod")
            problem = "{} is for secure aggregation and {} is not, so that every round fails".format(*halves)
            remedy = "PrivQuantMod(..., secure_aggregation=True) with aggregation=SecureSum(), or neither"
            yield Finding(type(on_server[0]).__name__, problem, remedy)
    elif app.encodes("train"):
        yield Finding("PrivQuantMod", "no server asks for codes", "PrivQuantStrategy(strategy, plan)")


def _of_counted(
    place: str,
    costs: str,
    stated: Sequence[PrivacyStatement],
    app: AppParts,
    accountant: PrivacyAccountant,
) -> Finding:
    """What a run costs that an accountant counts, unless that is of the app's own making."""
    if not isinstance(accountant, _ACCOUNTANTS) or _replaced_methods(accountant):
        name = type(accountant).__name__
        problem = (
            f"its accountant, {name}, is of the app's own making, so that nobody knows whether it counts"
        )
        return Finding(place, problem, "accountant=GaussianAccountant(config)")
    config, limit = accountant.config, None
    if config.max_epsilon is not None:
        replaces = config.neighboring_relation is NeighboringRelation.REPLACE_ONE
        relation = Relation.REPLACE_ONE if replaces else Relation.ADD_REMOVE
        view = StatedView(ViewKind.CENTRAL)
        limit = PrivacyStatement(config.max_epsilon, config.target_delta, Unit.TOTAL, view, relation)
    return _of_cost(place, costs, stated, app, limit)


def _of_own_strategy(strategy: PrivQuantStrategy, app: AppParts) -> Finding:
    place, plan, budget = type(strategy).__name__, strategy.plan, strategy.budget
    if plan is not None and plan.target.protects_records:
        both = plan.statement, plan.other_statement
        return _of_cost(place, f"all rounds of its plan cost {_in_words(both)}", both, app)
    codec, release = strategy.request(1).make_codec_and_release(read_arrays(app.model))
    try:
        view = strategy.aggregation.view(app.min_clients)
    except PrivQuantError:  # no sum is that small
        view = LOCAL
    counted = Accountant({release.with_view(view): app.rounds})
    stated = [counted.statement(strategy.delta, relation=relation) for relation in app.relations]
    if math.isinf(stated[0].epsilon):
        problem = f"its mechanism, {codec.mechanism.name}, adds no noise that hides anybody"
        return Finding(place, problem, _ours(app))
    alike = ", if all are like the first" if callable(strategy.encoding) else ""
    costs = f"{pluralize(app.rounds, 'round')} cost {_in_words(stated)}{alike}"
    if budget is None or budget.unlimited:
        return _of_cost(place, costs, stated, app)
    limit = replace(stated[0], epsilon=budget.epsilon, delta=budget.delta, relation=budget.relation)
    return _of_cost(place, costs, stated, app, limit)


def _of_cost(
    place: str,
    costs: str,
    stated: Sequence[PrivacyStatement],
    app: AppParts,
    limit: PrivacyStatement | None = None,
) -> Finding:
    """What the whole run costs: an error if that protects nobody, and no limit stops the run before."""
    kept = [cost for cost in (stated[0], limit) if cost is not None and cost.delta <= _MAX_DELTA]
    if min((cost.epsilon for cost in kept), default=math.inf) > _MAX_TOTAL:
        return Finding(place, f"{costs}, which is no protection", _ours(app))
    stops = "" if limit is None else f"; the run stops before it spends more than {limit.brief}"
    return Finding(place, costs + stops, severity=Severity.COST)


def _check_flowers_noise(part: Any, app: AppParts) -> Iterator[Finding]:
    yield _of_floats(type(part).__name__, "Flower draws its noise as floats from the global np.random")


def _check_draws(app: AppParts) -> Iterator[Finding]:
    for place, draw in _sources.find_draws(app.sources):
        yield _of_floats(place, f"{draw} draws floats. If that is noise for privacy")


def _of_floats(place: str, what: str) -> Finding:
    return Finding(
        place,
        f"{what}: whoever knows the seed can subtract it, and the last bits of its floats tell inputs apart",
        "a mechanism with integer noise from secure randomness, such as rounded_gaussian",
        Severity.WARNING,
    )


def _check_allowed_metrics(mod: PrivQuantMod, app: AppParts) -> Iterator[Finding]:
    names = [*mod.metrics, *(["how much was clipped"] if mod.report_clipping else [])]
    if names:
        yield _of_metrics("PrivQuantMod", names)


def _check_metrics(app: AppParts) -> Iterator[Finding]:
    if not app.encodes("train"):
        for place, names in _sources.find_metrics(app.sources):
            yield _of_metrics(place, names)


def _of_metrics(place: str, names: Sequence[str]) -> Finding:
    return Finding(
        place,
        f"clients send {', '.join(names)} in clear beside their updates, which no ε counts",
        "target.plan(..., private_metrics={name: (low, high)}), or leave them out",
        Severity.WARNING,
    )


def _check_evaluation(strategy: Any, app: AppParts) -> Iterator[Finding]:
    asked = float(getattr(strategy, "fraction_evaluate", 0.0))
    if asked > 0.0 and "evaluate" in app.functions and not app.encodes("evaluate"):
        yield Finding(
            f"{type(strategy).__name__}(fraction_evaluate={asked:g})",
            "clients send what their evaluation measured one by one, in clear",
            "fraction_evaluate=0.0, and evaluate on data of the server",
            Severity.WARNING,
        )


def _check_other_functions(app: AppParts) -> Iterator[Finding]:
    """Mods of one function do not see the replies of another."""
    for name, mods in app.functions.items():
        if name not in ("train", "evaluate") and not any(isinstance(mod, _MODS) for mod in mods):
            yield Finding(
                f"the client's function {name}",
                "a server that asks for it gets its replies as they are",
                "ClientApp(mods=[PrivQuantMod(...)]), which covers all functions, or leave it out",
                Severity.WARNING,
            )


def _check_further_starts(app: AppParts) -> Iterator[Finding]:
    places = _sources.find_starts(app.sources)
    if len(places) > 1:
        yield Finding(
            places[-1],
            f"strategies are started {len(places)} times or more, of which only the first was read",
            "one strategy for the whole run",
            Severity.WARNING,
        )


def _check_own_messages(app: AppParts) -> Iterator[Finding]:
    """Messages besides those of the strategy, which a client without our mod answers as they are."""
    for place in () if app.strategy is None or app.encodes("train") else _sources.find_messages(app.sources):
        yield Finding(
            place,
            "the app sends messages beside those of its strategy, which does not protect their replies",
            "ClientApp(mods=[PrivQuantMod(...)]), which covers all messages, or leave them out",
            Severity.WARNING,
        )


def _of_legacy_sum(place: str, name: str) -> Finding:
    return Finding(
        place,
        f"{name} is Flower's legacy secure aggregation: it rounds floats, weighs by numbers of "
        "examples, which it shows the server, and makes masks from seeds of 32 bits. It adds no "
        "noise, so that no ε is stated",
        "the Message API with PrivQuantStrategy(strategy, plan) and PrivQuantMod(secure_aggregation=True)",
    )


_PART_CHECKS: tuple[tuple[tuple[type, ...], Callable[[Any, AppParts], Iterator[Finding]]], ...] = (
    ((*_STRATEGIES, *_MODS), _check_class),
    ((PrivQuantMod,), _check_mod_seed),
    ((PrivQuantStrategy,), _check_simulated),
    ((LocalDpMod,), _check_local_mod),
    (_FIXED, _check_fixed_clipping),
    (_FIXED, _check_upper_bound),
    (_ADAPTIVE, _check_adaptive_clipping),
    (tuple(_CLIPPED_BY_CLIENTS), _check_client_clipping),
    ((*_FIXED, *_ADAPTIVE, LocalDpMod), _check_flowers_noise),
    ((PrivQuantMod,), _check_allowed_metrics),
    ((Strategy,), _check_evaluation),
)
"""What is checked of a strategy or a mod, by its class."""
_APP_CHECKS: tuple[Callable[[AppParts], Iterator[Finding]], ...] = (
    _check_protection,
    _check_outer_mods,
    _check_bare_numbers,
    _check_seeds,
    _check_own_parts,
    _check_draws,
    _check_metrics,
    _check_other_functions,
    _check_further_starts,
    _check_own_messages,
)
"""What is checked of an app as a whole."""
