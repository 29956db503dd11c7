"""An independent check of a finished run: what it cost, derived again from the files of its folder.

It shares no code with the rest of the package and needs the standard library only. It reads ``ledger.json``
(mechanisms, releases, who was asked, how many honest clients were in each sum), ``config.json``,
``rounds.csv`` and the statements. A stated ε must not be more than 2 % (3 % for records) below the bound that
is derived here; the loss of one coordinate of a table is derived exactly. Draws are taken to be exact and
secret.

How: the hockey-stick divergence H(α) = sup P(S) - αQ(S) of one coordinate, over all pairs of inputs that the
relation makes neighbors (for zero-out, those with 0), is computed for α = e^(k h). The broken line through
these points is above H, which is convex, and belongs to a pair of distributions whose losses are multiples of
h. Those are composed as integers, rounded up: a convolution is one product of long integers. Gaussian noise
composes in closed form.
"""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import math
import struct
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

TOLERANCE = 0.02
_ONE, _FIELD, _POINTS = 1 << 56, 18, 80
_PURE = ("privunit", "cldp_l2", "cldp_linf", "sqkr", "mmrc", "mrc", "shared_codebook", "vqsgd_private")
# Kinds whose distribution is given by integers, so that the loss of one coordinate is exact.
_INTEGERS = ("table", "biased-table", "metric-table", "pbm")
# How far neighbors are apart, in clips, by the name of their relation.
_REACH = {"replace-one": 2.0, "zero-out": 1.0, "add-remove": 1.0}
# Inputs this close to 0 count as 0: the rows next to it are given as rounded numbers.
_NEXT_TO_ZERO = 1e-6
Row = list[float]
# H at increasing α, and a loss that is exceeded with probability below 1e-15 only.
Profile = tuple[Callable[[Row], Row], float]


class DisagreementError(Exception):
    """The first line of a run's files that does not agree with the rest."""


class NotDerivedError(Exception):
    """A statement for which there is no bound here."""


class Release(NamedTuple):
    """An encoded update; ``reach`` is 2 if another update replaces it, and 1 if zero or nothing does."""

    header: Mapping[str, Any]
    rows: tuple[tuple[int, ...], ...]
    codes: tuple[int, ...]
    dimension: int
    l2: float | None
    honest: int
    reach: float
    rate: float = 1.0


def check(folder: str | Path) -> list[str]:
    """Check the folder of a finished run.

    Returns
    -------
    list[str]
        A line for each statement that cannot be derived here; empty if the run is confirmed.

    Raises
    ------
    DisagreementError
        With the first line that does not agree.
    """
    try:
        run = Run(Path(folder))
        run.check_counts()
        return run.check_statements()
    except (OSError, ValueError, KeyError, TypeError, LookupError, struct.error, ArithmeticError) as error:
        raise DisagreementError(f"{folder}: cannot be read ({type(error).__name__}: {error})") from error


def require(condition: bool, text: str) -> None:
    """Raise DisagreementError with the text unless the condition holds."""
    if not condition:
        raise DisagreementError(text)


class Run:
    """The files of a run."""

    def __init__(self, folder: Path) -> None:
        names = ("ledger", "config", "provenance", "summary")
        files = [json.loads((folder / f"{name}.json").read_text()) for name in names]
        self.ledger, self.config, self.provenance, self.summary = files
        with (folder / "rounds.csv").open(newline="") as file:
            self.rows = [row for row in csv.DictReader(file) if int(row["round"]) > 0]
        self.mechanisms = {name: bytes.fromhex(blob) for name, blob in self.ledger["mechanisms"].items()}
        for name, blob in self.mechanisms.items():
            require(hashlib.sha256(blob).hexdigest()[:32] == name, f"ledger: mechanism {name} is another one")
        self.first = (folder / "mechanism.pqm").read_bytes()
        known_names = {read_mechanism(blob)[0]["name"] for blob in self.mechanisms.values()}
        known = read_mechanism(self.first)[0]["name"] in known_names or not known_names
        require(known, "mechanism.pqm: the ledger has none of that name")
        histories = [history for history, *_ in self.ledger["nodes"]] + [self.ledger["before"][0]]
        self.histories = {tuple((int(at), int(n)) for at, n in history) for history in histories if history}

    def check_counts(self) -> None:
        """The ledger has every round, reply and coordinate, and no more honest clients than there were."""
        ledger, encoding = self.ledger, self.config["encoding"]
        texts = [text for _, text in ledger["rounds"]]
        rounds = {int(number) for number, _ in ledger["rounds"]}
        for row in self.rows:
            require(int(row["round"]) in rounds, f"ledger: it has no release of round {row['round']}")
        shown = {int(at): int(count) for at, count in ledger["shown"]}
        for text in set(texts):
            kept = sum(count for at, count in shown.items() if ledger["kinds"][at][0] == text)
            require(kept >= texts.count(text), f"ledger: {kept} of {texts.count(text)} releases {text}")
        asked = sum(int(n) * len(names) for history, _, names in ledger["nodes"] for _, n in history)
        replies = sum(int(row["num_replies"]) for row in self.rows)
        require(asked >= replies, f"ledger: {asked} requests, but {replies} replies")
        parts = encoding["keep"] is not None or encoding["keep_policy"]["name"] != "constant"
        for text, *_ in ledger["kinds"]:
            whole = int(text.split()[1]) >= int(self.provenance["dimension"])
            require(whole or parts, f"ledger: {text} is shorter than an update")
        norms = [float.fromhex(norm) for norm in (text.split()[2] for text in texts) if norm != "-"]
        clips = [float(row["clip"]) for row in self.rows if row["clip"]]
        if norms and clips and encoding["l2_clip"] is not None and not parts:
            bound = max(norms) * max(clips) * (1.0 + 1e-6)
            require(bound >= encoding["l2_clip"], f"ledger: updates of norm {bound:g}, the clip is larger")
        share = Fraction(str(self.config["secagg"]["corrupt_fraction"]))
        replied = [int(row["num_replies"]) for row in self.rows]
        limits = sorted((n - math.ceil(share * n) for n in replied), reverse=True)
        sums = [int(ledger["kinds"][at][1] or 0) for at, count in shown.items() for _ in range(count)]
        for honest, limit in zip(sorted(sums, reverse=True), limits, strict=False):
            require(honest <= max(limit, 1), f"ledger: {honest} honest clients in a sum, at most {limit}")

    def check_statements(self) -> list[str]:
        """Every statement, and the figures of the summary that repeat it."""
        notes, stated = [], {}
        for line in self.provenance["statements"]:
            unit, view, relation = line["unit"], line["view"].split()[0], line["relation"]
            name = f"ε, {unit}, {line['view']}, {relation}"
            figure, delta = float(line["epsilon"]), float(line["delta"])
            require(relation in _REACH, f"{name}: there is no such relation")
            hidden = relation != "add-remove" or unit.startswith("record") or view in ("models", "central")
            require(hidden, f"{name}: in this view it is seen who takes part")
            stated[unit, view] = figure
            if math.isinf(figure):
                continue
            try:
                bound, refined = self.bound(line, delta)
            except NotDerivedError as reason:
                notes.append(f"{name}: {reason}")
                continue
            exact = unit == "coordinate release" and read_mechanism(self.first)[0]["kind"] in _INTEGERS
            # Rounding noise is not counted here, which weighs more where records are drawn by chance.
            room = 1e-12 if exact else TOLERANCE if unit != "record total" else 1.5 * TOLERANCE
            agrees = bound <= figure * (1.0 + room)
            text = f"{name}: {figure:.8g} at δ = {delta:.3g} is stated, but {bound:.8g} is derived"
            require(agrees or refined, text)
            if not agrees:
                notes.append(f"{text} without the L2 norm")
        for unit, view in itertools.product(("round", "total"), ("local", "aggregate")):
            figure = self.summary[f"epsilon_client_{unit}{'_sum' if view == 'aggregate' else ''}"]
            there = stated.get((f"client {unit}", view))
            if figure is not None and there is not None and math.isfinite(float(figure)):
                same = math.isclose(float(figure), there, rel_tol=1e-9)
                require(same, f"summary: client {unit}, {view}: {figure}, but {there} is stated")
        return notes

    def bound(self, line: Mapping[str, Any], delta: float) -> tuple[float, bool]:
        """The loss that a statement must cover, and whether an L2 norm might make it smaller."""
        reach, view = _REACH[line["relation"]], line["view"].split()[0]
        if line["unit"] == "coordinate release":
            return coordinate_epsilon(Release(*read_mechanism(self.first), 1, None, 1, reach), delta), False
        if view == "central":
            central = self.ledger["central"]
            rounds = max(sum(n for _, n in history) for history in self.histories)
            separation = reach * central["l2_clip"] * math.sqrt(rounds) / central["deviation"]
            return gaussian_epsilon(separation, delta), False
        if view not in ("local", "aggregate"):
            raise NotDerivedError(f"the view {view}")
        last = {((int(self.ledger["last"] or 0), 1),)}
        worst, norms = 0.0, False
        for history in last if line["unit"] == "client round" else self.histories:
            parts = [(self.release(at, line, reach), count) for at, count in history]
            worst = max(worst, compose(parts, delta))
            norms |= any(part.l2 is not None and not separation_of(part) for part, _ in parts)
        return worst, norms

    def release(self, at: int, line: Mapping[str, Any], reach: float) -> Release:
        """A kind of release, as the adversary of a statement sees it."""
        text, honest, *_ = self.ledger["kinds"][at]
        name, dimension, *norms = text.split(" ")
        given = [*norms, "-", "-"][:4]
        l2, _, record, rate = [None if norm == "-" else float.fromhex(norm) for norm in given]
        clients = int(honest) if honest and not line["view"].startswith("local") else 1
        mechanism = read_mechanism(self.mechanisms[name])
        if line["unit"] != "record total":
            return Release(*mechanism, int(dimension), l2, clients, reach)
        if record is None or rate is None or reach != 1.0:
            raise NotDerivedError("records, but no bound of what one adds")
        return Release(*mechanism, int(dimension), record, clients, 1.0, rate)


def read_mechanism(blob: bytes) -> tuple[dict[str, Any], tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Header, rows of integer weights, and codes of the columns."""
    require(hashlib.sha256(blob[:-32]).digest() == blob[-32:], "mechanism: its checksum does not match")
    length, start = struct.unpack_from("<6sHI", blob)[2], struct.calcsize("<6sHI")
    header, body = json.loads(blob[start : start + length]), blob[start + length : -32]
    if not header["kind"].endswith("table"):
        return header, (), ()
    levels, count = int(header["levels"]), int(header["rows"])
    weights = struct.unpack_from(f"<{levels * count}Q", body, 4 * levels)
    rows = tuple(weights[at : at + levels] for at in range(0, levels * count, levels))
    require(all(sum(row) == 1 << 32 for row in rows), "mechanism: a row does not sum to 2^32")
    codes = struct.unpack_from(f"<{levels}I", body)
    if header["kind"] == "table":  # the first and the last row of each piece
        header["ends"] = struct.unpack_from(f"<{2 * header['pieces']}I", body, (4 + 8 * count) * levels)
    return header, rows, codes


def coordinate_epsilon(release: Release, delta: float) -> float:
    """The loss of one coordinate in the local view; of tables and bits from integers, to 40 digits."""
    ratios = [(max(column), min(column), 1) for column in zip(*release.rows, strict=True) if max(column)]
    if release.header["kind"] == "pbm":
        rare = int(release.header["rare"])
        ratios = [((1 << 32) - rare, rare, int(release.header["trials"]))]
    if not ratios:
        pure = delta == 0.0 and release.header["kind"] not in ("gaussian", "rounded_gaussian")
        return profile_of(release)[1] if pure else compose([(release, 1)], delta)
    with localcontext() as context:
        context.prec = 40
        if any(low == 0 for _, low, _ in ratios):
            return math.inf
        return float(max(times * (Decimal(high) / Decimal(low)).ln() for high, low, times in ratios))


# The hockey-stick divergence of one coordinate.


def sticks(p: Row, q: Row, alphas: Row) -> Row:
    """H of two distributions at increasing α, in one pass over the outputs in order of p / q."""
    used = [pair for pair in zip(p, q, strict=True) if pair[0]]
    order = sorted(used, key=lambda pair: pair[0] / pair[1] if pair[1] else math.inf)
    above_p = above_q = 0.0
    result = []
    for alpha in reversed(alphas):
        while order and order[-1][0] > alpha * order[-1][1]:
            one, other = order.pop()
            above_p, above_q = above_p + one, above_q + other
        result.append(max(above_p - alpha * above_q, 0.0))
    return result[::-1]


def largest(rows: Iterable[Row]) -> Row:
    """The largest value at each place."""
    return [max(values) for values in zip(*rows, strict=True)]


def convolve(p: Row, q: Row) -> Row:
    """The distribution of the sum of two independent numbers."""
    result, others = [0.0] * (len(p) + len(q) - 1), [(at, value) for at, value in enumerate(q) if value]
    for at, one in enumerate(p):
        if one:
            for to, other in others:
                result[at + to] += one * other
    return result


def powers(distribution: Row, count: int) -> list[Row]:
    """The distributions of sums of 0 to ``count`` numbers."""
    return list(itertools.accumulate([distribution] * count, convolve, initial=[1.0]))


def table_profile(release: Release) -> Profile:
    """Of tables: with others, two rows exactly, and more by a blanket of which the adversary knows K."""
    distributions, others = (
        [spread(row, release.codes) for row in sorted(set(release.rows))],
        release.honest - 1,
    )
    zeros = zeros_of(release)
    least, most = [min(column) for column in zip(*distributions, strict=True)], largest(distributions)
    top = max(math.log(b / a) if a else 700.0 for a, b in zip(least, most, strict=True) if b)
    if len(distributions) == 2:
        return bits_profile(distributions[0], distributions[1], others, 1, top, zeros)
    if others and len(distributions) > 32:
        raise NotDerivedError(f"a sum of draws from {len(distributions)} rows")
    share = sum(least)
    blankets = powers([value / share for value in least], others)
    odds_of = [math.comb(others, k) * share**k * (1.0 - share) ** (others - k) for k in range(others + 1)]
    compared = distributions, zeros or distributions
    seen = [[[convolve(p, q) for q in blankets] for p in inputs] for inputs in compared]

    def mean(one: list[Row], other: list[Row], alphas: Row) -> Row:
        curves = [sticks(p, q, alphas) for p, q in zip(one, other, strict=True)]
        return [sum(map(float.__mul__, odds_of, values)) for values in zip(*curves, strict=True)]

    pairs = [pair for one, other in itertools.product(*seen) for pair in ((one, other), (other, one))]
    return lambda alphas: largest(mean(*pair, alphas) for pair in pairs), top


def spread(row: Iterable[float], codes: Iterable[int]) -> Row:
    """The probabilities of the integers from 0 on, of a row of weights of these codes."""
    distribution = [0.0] * (max(codes) + 1)
    for code, weight in zip(codes, row, strict=True):
        distribution[code] += weight / 2.0**32
    return distribution


def zeros_of(release: Release) -> list[Row]:
    """The distributions that others are compared with if one input is zero, whose own is a mixture of them.

    An input of an unbiased table is the mean of its row; between two rows of a piece they are mixed.
    """
    if release.reach == 2.0:
        return []
    header, rows, zeros = release.header, release.rows, []
    if "ends" not in header:
        raise NotDerivedError("zero, whose row is not known")
    offset, step, half = float.fromhex(header["offset"]), float.fromhex(header["step"]), header["pieces"]
    means = [offset + step * sum(map(int.__mul__, row, release.codes)) / 2.0**32 for row in rows]
    for start, end in zip(header["ends"][:half], header["ends"][half:], strict=True):
        if means[start] <= _NEXT_TO_ZERO and means[end] >= -_NEXT_TO_ZERO:
            share = min(max(-means[start] / (means[end] - means[start]), 0.0), 1.0)
            row = [(1.0 - share) * a + share * b for a, b in zip(rows[start], rows[end], strict=True)]
            zeros.append(spread(row, release.codes))
    return zeros


def bits_profile(low: Row, high: Row, others: int, trials: int, top: float, zeros: list[Row]) -> Profile:
    """Of sums of ``trials`` draws from mixtures of two rows, with those of ``others`` clients.

    H is convex in the row of each draw of the others: in the worst case each has one of the two rows.
    """
    lows, highs = powers(low, others * trials), powers(high, others * trials)
    ends, pairs = [powers(low, trials)[-1], powers(high, trials)[-1]], []
    for count in range(others * trials + 1):
        rest = convolve(highs[count], lows[others * trials - count])
        against = [convolve(zero, rest) for zero in zeros or ends]
        for end, zero in itertools.product([convolve(end, rest) for end in ends], against):
            pairs += [(end, zero), (zero, end)]
    return lambda alphas: largest(sticks(p, q, alphas) for p, q in pairs), top


def noise_profile(release: Release) -> Profile:
    """Of integer noise of all honest clients; it is log-concave, so that the longest shift is the worst."""
    scale, kind, honest = float(Fraction(release.header["noise"])), release.header["kind"], release.honest
    shift = math.ceil((int(release.header["levels"]) - 1) * release.reach / 2.0)
    spread = math.sqrt(scale * honest)
    reach, top = int(12 * spread) + shift + 9, shift / spread * (9.0 + shift / spread)
    if kind == "discrete_laplace":
        side = [math.exp(-at / scale) for at in range(int(40 * scale))]
        distribution, top = powers(unit(side[:0:-1] + side), honest)[-1], shift / scale
    elif kind == "discrete_gaussian":  # a sum of these is one too, up to a factor of 1 + exp(-9 variance)
        distribution = unit([math.exp(-0.5 * (at / spread) ** 2) for at in range(-reach, reach + 1)])
    else:  # Skellam: a difference of two Poisson numbers
        mean = 0.5 * scale * honest
        numbers = range(max(int(mean) - reach, 0), int(mean) + reach)
        poisson = unit([math.exp(at * math.log(mean) - mean - math.lgamma(at + 1.0)) for at in numbers])
        distribution = convolve(poisson, poisson[::-1])
    pair = distribution + [0.0] * shift, [0.0] * shift + distribution
    return lambda alphas: sticks(*pair, alphas), top


def unit(values: Row) -> Row:
    """The values divided by their sum."""
    total = math.fsum(values)
    return [value / total for value in values]


def sampled_profile(separation: float, rate: float, added: bool) -> Profile:
    """Of a record that is drawn with that probability, in normal noise; ``added`` or removed."""

    def stick(alpha: float) -> float:
        # P(S) - αQ(S) for the half-line S on which P > αQ. For the other order of the two distributions,
        # H(P, Q)(α) = 1 - α + α H(Q, P)(1/α).
        level = (alpha - 1.0 + rate) / rate
        cut = math.log(level) / separation + separation / 2.0 if level > 0.0 else -math.inf
        plain, moved = (0.5 * math.erfc((cut - mean) / math.sqrt(2.0)) for mean in (0.0, separation))
        return max((1.0 - rate - alpha) * plain + rate * moved, 0.0)

    top = math.log1p(rate * math.expm1(min(separation * (9.0 + separation), 600.0)))
    if added:
        return lambda alphas: [stick(alpha) for alpha in alphas], top
    return lambda alphas: [max(1.0 - alpha + alpha * stick(1.0 / alpha), 0.0) for alpha in alphas], top


def profile_of(release: Release) -> Profile:
    """H of one coordinate, at its longest distance."""
    header, kind = release.header, release.header["kind"]
    if release.rows:
        return table_profile(release)
    if kind == "pbm":
        rare, trials = int(header["rare"]) / 2.0**32, int(header["trials"])
        top = trials * math.log((1.0 - rare) / rare)
        zeros = [powers([0.5, 0.5], trials)[-1]] if release.reach < 2.0 else []
        return bits_profile([1.0 - rare, rare], [rare, 1.0 - rare], release.honest - 1, trials, top, zeros)
    if kind in ("skellam", "discrete_gaussian", "discrete_laplace"):
        return noise_profile(release)
    if kind == "laplace":
        loss = release.reach / float.fromhex(header["scale"])
        return lambda alphas: [
            max(1.0 - a if a < math.exp(-loss) else -math.expm1(0.5 * (math.log(a) - loss)), 0.0)
            for a in alphas
        ], loss
    if kind == "snapping":  # no distribution of such a loss is worse than randomized response
        loss = float.fromhex(header["epsilon"])
        rare = 1.0 / (math.exp(loss) + 1.0)
        return lambda alphas: sticks([1.0 - rare, rare], [rare, 1.0 - rare], alphas), loss
    raise NotDerivedError(f"mechanism {kind}")


# Gaussian noise.


def gaussian_delta(separation: float, epsilon: float) -> float:
    """δ of normal distributions whose means are ``separation`` standard deviations apart."""
    low, high = (epsilon / separation + sign * separation / 2.0 for sign in (-1.0, 1.0))
    tail = 0.5 * math.erfc(high / math.sqrt(2.0))
    return 0.5 * math.erfc(low / math.sqrt(2.0)) - (math.exp(epsilon + math.log(tail)) if tail else 0.0)


def gaussian_epsilon(separation: float, delta: float) -> float:
    """The least ε of such distributions."""
    low, high = 0.0, 1e-9
    while separation and gaussian_delta(separation, high) > delta:
        low, high = high, 2.0 * high
    for _ in range(60):
        middle = 0.5 * (low + high)
        above = separation and gaussian_delta(separation, middle) > delta
        low, high = (middle, high) if above else (low, middle)
    return high


def rounding_gap(honest: int, deviation: float) -> float:
    """η of fractional parts: 1 + η is the mean of the power of a theta function over its period."""
    rate, steps = 2.0 * (math.pi * deviation) ** 2, 2048
    thetas = [math.fsum(math.exp(-rate * (at / steps - m) ** 2) for m in range(-3, 5)) for at in range(steps)]
    mean = math.fsum(theta**honest for theta in thetas) / steps
    return max(math.sqrt(rate * honest / math.pi) * mean - 1.0, 0.0) + 1e-12


def separation_of(release: Release) -> tuple[float, float] | None:
    """Separation of a whole update, and what rounding adds to ε; None for other noise."""
    header, honest = release.header, release.honest
    distance = release.reach * (math.sqrt(release.dimension) if release.l2 is None else release.l2)
    if header["kind"] == "gaussian":
        return distance / float.fromhex(header["scale"]), 0.0
    if header["kind"] != "rounded_gaussian":
        return None
    deviation = float.fromhex(header["deviation"])
    gap = min(rounding_gap(honest, deviation), 0.9) if honest > 1 else 0.0
    separation = distance / (float.fromhex(header["spacing"]) * deviation * math.sqrt(honest))
    return separation, release.dimension * math.log((1.0 + gap) / (1.0 - gap))


# Composition.


def compose(parts: list[tuple[Release, int]], delta: float) -> float:
    """The ε of releases, each made a number of times, at that δ."""
    normal = [(pair, n) for part, n in parts if (pair := separation_of(part)) is not None]
    if len(normal) == len(parts):
        lost = sum(pair[1] * n for pair, n in normal)
        if all(part.rate == 1.0 for part, _ in parts):
            separation = math.sqrt(sum(pair[0] ** 2 * n for pair, n in normal))
            return gaussian_epsilon(separation, delta * math.exp(-lost)) + lost
        drawn = [(pair[0], part.rate, n) for (pair, n), (part, _) in zip(normal, parts, strict=True)]
        orders = [[(sampled_profile(far, q, added), n) for far, q, n in drawn] for added in (True, False)]
        return lost + max(compose_profiles(order, delta * math.exp(-lost)) for order in orders)
    if all(part.header["kind"] in _PURE for part, _ in parts):  # ε is a parameter: a ratio of two weights
        return sum(float.fromhex(part.header["epsilon"]) * n for part, n in parts)
    return compose_profiles([(profile_of(part), part.dimension * n) for part, n in parts], delta)


def compose_profiles(profiles: list[tuple[Profile, int]], delta: float) -> float:
    """The ε of independent losses, each a number of times."""
    grid = min(top for (_, top), _ in profiles) / _POINTS
    while (spread := max(Loss.of(profile, grid).deviation for profile, _ in profiles)) < 10.0 and grid > 1e-5:
        grid *= 0.3
    step = grid * max(int(0.1 * spread), 1)
    total, whole = sum(n for _, n in profiles), Loss(0, [_ONE], 0.0)
    for profile, n in profiles:
        whole = whole.plus(Loss.of(profile, step).times(n, 1e-5 * delta / total), 1e-5 * delta)
    return whole.epsilon(delta, step)


class Loss(NamedTuple):
    """Masses, of 2^56, of the losses ``first``, ``first`` + 1, ... in steps, and of an infinite one."""

    first: int
    masses: list[int]
    infinity: float

    @classmethod
    def of(cls, profile: Profile, step: float) -> Loss:
        """The pair of distributions whose H is the broken line through the grid points of a profile."""
        reach = math.ceil(profile[1] / step + 1e-6)
        alphas = [math.exp(at * step) for at in range(-reach, reach + 1)]
        values = profile[0](alphas)
        slopes = [(values[0] - 1.0) / alphas[0]]
        slopes += [
            (b - a) / (y - x) for a, b, x, y in zip(values, values[1:], alphas, alphas[1:], strict=False)
        ]
        rises = zip(alphas, slopes, [*slopes[1:], 0.0], strict=True)
        masses = [math.ceil(max(after - before, 0.0) * a * _ONE) for a, before, after in rises]
        return cls(-reach, masses, values[-1])

    @property
    def deviation(self) -> float:
        """The standard deviation, in steps."""
        total = sum(self.masses)
        mean = sum(at * mass for at, mass in enumerate(self.masses)) / total
        return math.sqrt(sum((at - mean) ** 2 * mass for at, mass in enumerate(self.masses)) / total)

    def plus(self, other: Loss, tail: float) -> Loss:
        """The sum of two independent losses, rounded up; a tail of that mass becomes infinite."""
        long = [b"".join(mass.to_bytes(_FIELD, "little") for mass in one.masses) for one in (self, other)]
        count = len(self.masses) + len(other.masses) - 1
        product = int.from_bytes(long[0], "little") * int.from_bytes(long[1], "little")
        fields = product.to_bytes(_FIELD * count, "little")
        masses = [
            (int.from_bytes(fields[at : at + _FIELD], "little") + _ONE - 1) >> 56
            for at in range(0, len(fields), _FIELD)
        ]
        lost = low = 0
        while len(masses) > 1 and lost + masses[-1] <= tail * _ONE:
            lost += masses.pop()
        while low < len(masses) - 1 and sum(masses[low : low + 2]) <= tail * _ONE:
            masses[low + 1] += masses[low]
            low += 1
        infinity = self.infinity + other.infinity + lost / _ONE
        return Loss(self.first + other.first + low, masses[low:], infinity)

    def times(self, count: int, tail: float) -> Loss:
        """The sum of ``count`` such losses."""
        if count == 1:
            return self
        half = self.times(count // 2, tail)
        whole = half.plus(half, tail * count)
        return whole.plus(self, tail * count) if count % 2 else whole

    def epsilon(self, delta: float, step: float) -> float:
        """The least ε at that δ, where δ(ε) = P(larger losses) - e^ε Q(larger losses)."""
        above, others = self.infinity, 0.0
        for at in range(len(self.masses) - 1, -1, -1):
            if above - others > delta:
                return (self.first + at) * step + (math.log((above - delta) / others) if others else math.inf)
            above += self.masses[at] / _ONE
            others = (others + self.masses[at] / _ONE) * math.exp(-step)
        return 0.0
