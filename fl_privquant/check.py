"""An independent check of a finished run: what it cost, derived again from the files of its folder.

It shares no code with the rest of the package and needs the standard library only. A stated (ε, δ) is
confirmed if the releases have no larger δ at 1.02 ε: bounds are simple. Draws are assumed exact and secret.
Pairs of distributions (P, Q) are what is seen of a release, for two inputs that are neighbors. H(α) is the
largest Σ max(P - αQ, 0) of the pairs, at α = e^(kh). The broken line through these points is above H, which
is convex, and belongs to one pair, whose losses are multiples of h. Losses of releases add up.
"""

from __future__ import annotations

import cmath
import csv
import hashlib
import itertools
import json
import math
import struct
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

_UPDATES = ("privunit", "cldp_l2", "cldp_linf", "sqkr", "mmrc", "mrc", "shared_codebook", "vqsgd_private")
Pairs = list[list[tuple[float, float]]]


class DisagreementError(Exception):
    """The first line of a run's files that does not agree with the rest."""


class CannotCheckError(Exception):
    """There is no bound here for a statement."""


def check(folder: str | Path) -> list[str]:
    """Check the folder of a finished run.

    Returns
    -------
    list[str]
        A line for each statement that cannot be checked here; empty if the run is confirmed.

    Raises
    ------
    DisagreementError
        With the first line that does not agree, or if the folder cannot be read.
    """
    try:
        return Run(Path(folder)).check()
    except DisagreementError:
        raise
    except Exception as error:  # whatever is in the folder
        raise DisagreementError(f"{folder}: cannot be read ({error!r:.99})") from error


def require(condition: bool, text: str) -> None:
    """Raise DisagreementError with the text unless the condition holds."""
    if not condition:
        raise DisagreementError(text)


def read(path: Path) -> bytes:
    """The bytes of a file in the folder itself."""
    plain = path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 27
    require(plain, f"{path.name}: is not a plain file of less than 128 MB")
    return path.read_bytes()


def make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, in which no key may be twice."""
    require(len(dict(pairs)) == len(pairs), f"a key is twice among {[key for key, _ in pairs]}"[:200])
    return dict(pairs)


def number(value: Any, *kinds: type) -> Any:
    """A number, and none of JSON's other values; neither negative nor NaN."""
    require(type(value) in kinds and value >= 0, f"{str(value)[:40]} is not a number of the right kind")
    return value


def read_mechanism(blob: bytes) -> dict[str, Any]:
    """The header of a mechanism, and the rows of its table."""
    require(hashlib.sha256(blob[:-32]).digest() == blob[-32:], "mechanism: its checksum does not match")
    start = 12 + struct.unpack_from("<6sHI", blob)[2]
    header, table = json.loads(blob[12:start], object_pairs_hook=make_object), []
    if header["kind"].endswith("table"):
        levels, rows = header["levels"], header["rows"]
        weights = struct.unpack_from(f"<{levels * rows}Q", blob, start + 4 * levels)
        for row in (weights[at : at + levels] for at in range(0, levels * rows, levels)):
            require(sum(row) == 1 << 32, "mechanism: a row does not sum to 2^32")
            table.append([weight / 2.0**32 for weight in row])
    return dict(header) | {"table": table}


class Run:
    """The files of a run."""

    def __init__(self, folder: Path) -> None:
        names = ("ledger", "config", "provenance", "summary")
        files = [json.loads(read(folder / f"{name}.json"), object_pairs_hook=make_object) for name in names]
        self.ledger, self.config, self.provenance, self.summary = files
        rows = list(csv.DictReader(read(folder / "rounds.csv").decode().splitlines()))
        self.replies, self.last_row = {int(row["round"]): int(row["num_replies"]) for row in rows}, rows[-1]
        blobs = {name: bytes.fromhex(blob) for name, blob in self.ledger["mechanisms"].items()}
        for name, blob in blobs.items():
            require(hashlib.sha256(blob).hexdigest()[:32] == name, f"ledger: mechanism {name} is another one")
        self.mechanisms = {name: read_mechanism(blob) for name, blob in blobs.items()}
        self.first = hashlib.sha256(read(folder / "mechanism.pqm")).hexdigest()[:32]
        histories = [*(history for history, *_ in self.ledger["nodes"]), self.ledger["before"][0]]
        self.histories = [[(number(at, int), number(n, int)) for at, n in one] for one in histories if one]

    def check(self) -> list[str]:
        """Every statement, and the figures that repeat one."""
        self.check_counts()
        notes, stated = [], set()
        for line in [*self.provenance["statements"], *self.provenance.get("beside", [])]:
            name, view = f"ε, {line['unit']}, {line['view']}, {line['relation']}", line["view"].split()[0]
            epsilon, delta = (number(line[key], int, float) for key in ("epsilon", "delta"))
            require(delta < 0.1, f"{name}: δ = {delta} says nothing")
            hides = line["unit"] == "record total" or view in ("models", "central")
            known = ("replace-one", "zero-out", "add-remove") if hides else ("replace-one", "zero-out")
            require(line["relation"] in known, f"{name}: is no relation of this view")
            column = line["unit"].replace(" ", "_") + {"local": "", "models": "_models"}.get(view, "_sum")
            stated |= {(f"epsilon_{place}", f"{epsilon:.9g}") for place in (column, "coordinate")}
            try:
                for parts in self.releases(line) if epsilon < math.inf else ():
                    derived = delta_of(parts, line["relation"], epsilon * (1.02 if delta else 1.0 + 1e-8))
                    if derived > delta and any(part.get("table") and part["norm"] for part, _ in parts):
                        raise CannotCheckError("tables of updates with an L2 norm")
                    require(derived <= delta, f"{name}: {epsilon:.8g} has δ = {derived:.3g} > {delta:.3g}")
            except CannotCheckError as reason:
                notes.append(f"{name}: {reason}")
        for column, value in [*self.summary.items(), *self.last_row.items()]:
            if column.startswith("epsilon_") and value not in (None, "") and float(value) != math.inf:
                require((column, f"{float(value):.9g}") in stated, f"{column}: {value} is not stated")
        return notes

    def check_counts(self) -> None:
        """Every round, request, coordinate and corrupt client is counted in the ledger."""
        ledger, kinds, rounds = self.ledger, self.ledger["kinds"], self.ledger["rounds"]
        missing = set(self.replies) - {0} - {at for at, _ in rounds}
        require(not missing, f"ledger: it has no release of round {min(missing, default=0)}")
        shown = [kinds[number(at, int)] for at, n in ledger["shown"] for _ in range(min(n, len(rounds)))]
        lost = Counter(text for _, text in rounds) - Counter(text for text, *_ in shown)
        require(not lost, f"ledger: a release is counted less often than it was made: {[*lost]}")
        names = [name for *_, nodes in ledger["nodes"] for name in nodes]
        asked = sum(n * len(nodes) for history, _, nodes in ledger["nodes"] for _, n in history)
        replied, clients = sum(self.replies.values()), self.config["federation"]["num_clients"]
        right = asked >= replied and len(names) == len(set(names)) <= clients
        require(right, f"ledger: {asked} requests to {len(names)} of {clients} clients, {replied} replies")
        parts = (own := self.config["encoding"])["keep"] or own["keep_policy"]["name"] != "constant"
        for text, *_ in kinds:
            dimension, rate = text.split(" ")[1::4]
            right = parts or int(dimension) >= self.provenance["dimension"]
            right &= rate == "-" or float.fromhex(rate) >= self.config["privacy"]["sampling_rate"]
            require(right, f"ledger: {text} has fewer coordinates or records than were used")
        share = Fraction(str(own["corrupt_fraction"] if (own := self.config["secagg"])["enabled"] else 1))
        limits = sorted((n - math.ceil(share * n) for n in self.replies.values()), reverse=True)
        sums = sorted((number(honest or 1, int) for _, honest, *_ in shown), reverse=True)
        for honest, limit in zip(sums, limits, strict=False):
            require(honest <= max(limit, 1), f"ledger: {honest} honest clients in a sum, at most {limit}")

    def releases(self, line: dict[str, Any]) -> Iterator[list[tuple[dict[str, Any], int]]]:
        """What each client released, and how often, as the adversary of a statement sees it."""
        unit, (view, *numbers) = line["unit"], line["view"].split()
        one = {"dimension": 1, "norm": None, "honest": 1, "rate": 1.0}
        if view == "central" and self.config["privacy"]["correlation"] is None:
            own, rounds = self.ledger["central"], max(sum(n for _, n in past) for past in self.histories)
            noise = {"kind": "gaussian", "scale": own["deviation"].hex(), "norm": own["l2_clip"]}
            yield [(one | noise, rounds)]
        elif unit == "coordinate release":
            yield [(self.mechanisms[self.first] | one, 1)]
        elif view in ("local", "aggregate") and unit in ("client round", "client total", "record total"):
            for history in [[(self.ledger["last"], 1)]] if unit == "client round" else self.histories:
                parts = []
                for at, n in history:
                    require(
                        n <= dict(self.ledger["shown"]).get(at, 0), f"ledger: there were fewer of kind {at}"
                    )
                    text, honest, *_ = self.ledger["kinds"][at]
                    name, dimension, l2, _, record, rate = text.split(" ")
                    norm, rate = (record, rate) if unit == "record total" else (l2, "1.0")
                    seen = {"honest": min(int(numbers[1]), honest or 1) if numbers else 1}
                    seen |= {"dimension": int(dimension), "rate": float.fromhex(rate)}
                    seen |= {"norm": None if norm == "-" else float.fromhex(norm)}
                    parts.append((self.mechanisms[name] | seen, n))
                yield parts
        else:
            raise CannotCheckError(f"{unit}, {view}")


def delta_of(parts: list[tuple[dict[str, Any], int]], relation: str, epsilon: float) -> float:
    """The δ at ε of releases, each made a number of times."""
    if any(part["kind"] not in ("gaussian", "rounded_gaussian") for part, _ in parts):
        times = [n if part["kind"] in _UPDATES else n * part["dimension"] for part, n in parts]
        return compose([pairs_of(part, relation) for part, _ in parts], times, epsilon)
    noise = [(*normal_noise(part), part["rate"], n) for part, n in parts]
    left = epsilon - (rounding := sum(n * loss for _, loss, _, n in noise))
    ends = [(1.0, -1.0)] if relation == "replace-one" else [(1.0, 0.0), (0.0, 1.0)]
    if all(rate == 1.0 for _, _, rate, _ in noise):
        shift = (ends[0][0] - ends[0][1]) * math.sqrt(sum(n * shift**2 for shift, *_, n in noise))
        low, high = (math.erfc((left / shift + sign * shift / 2.0) / 2.0**0.5) / 2.0 for sign in (-1.0, 1.0))
        return math.exp(rounding) * low - (math.exp(epsilon + math.log(high)) if high else 0.0)
    drawn = ([sampled_pairs(rate, shift, *end) for shift, _, rate, _ in noise] for end in ends)
    deltas = (compose(pairs, [n for _, n in parts], left) for pairs in drawn)
    return math.exp(rounding) * max(deltas)


def normal_noise(part: dict[str, Any]) -> tuple[float, float]:
    """By how many deviations an input can shift what is seen, and what rounding adds to ε (MATH.md 13)."""
    norm, honest = math.sqrt(part["dimension"]) if part["norm"] is None else part["norm"], part["honest"]
    if part["kind"] == "gaussian":
        return norm / float.fromhex(part["scale"]), 0.0
    deviation = float.fromhex(part["deviation"])
    # Rounding hides as noise of variance 1 / 12 does, but for 1.0008. 1 + η is the mean of a power of thetas.
    hides = math.sqrt(deviation**2 + 1.0 / 12.0) / 1.0008 if honest > 1 and deviation > 1.2 else deviation
    shift, rate = norm / (float.fromhex(part["spacing"]) * hides), 2.0 * (math.pi * deviation) ** 2
    thetas = (sum(math.exp(-rate * (at / 2048 - m) ** 2) for m in range(-3, 5)) for at in range(2048))
    mean = math.fsum(theta**honest for theta in thetas) / 2048
    gap = min(max(math.sqrt(rate * honest / math.pi) * mean - 1.0, 0.0) + 1e-12, 0.9) if honest > 1 else 0.0
    return shift / math.sqrt(honest), part["dimension"] * math.log((1.0 + gap) / (1.0 - gap))


def sampled_pairs(rate: float, shift: float, one: float, other: float) -> Pairs:
    """Normal noise, shifted at that rate, in cells: Q is what the largest ratio in a cell leaves of P."""

    def density(at: float, end: float) -> float:
        return 1.0 - rate + rate * math.exp(min(end * shift * (at - end * shift / 2.0), 700.0))

    if shift > 50.0:
        raise CannotCheckError(f"a record shifts what is seen by {shift:.3g} deviations")
    cells = [at / 1000.0 for at in range(int(-1000 * (9.0 + shift)), int(1000 * (9.0 + shift)))]
    ratios = itertools.pairwise(density(at, one) / density(at, other) for at in cells)
    tails = [(math.erfc(at / 2.0**0.5) / 2.0, math.erfc((at - one * shift) / 2.0**0.5) / 2.0) for at in cells]
    above = itertools.pairwise((1.0 - rate) * plain + rate * moved for plain, moved in tails)
    return [[(a - b, (a - b) / max(ends)) for (a, b), ends in zip(above, ratios, strict=True)]]


def pairs_of(part: dict[str, Any], relation: str) -> Pairs:
    """The pairs of one coordinate, or of a whole update."""
    if part["kind"] in (*_UPDATES, "snapping"):  # no distributions with such an ε are worse than these
        rare = 1.0 / (math.exp(float.fromhex(part["epsilon"])) + 1.0)
        return [[(1.0 - rare, rare), (rare, 1.0 - rare)]]
    if not part["table"] or part["honest"] > 1 or relation != "replace-one":
        raise CannotCheckError(f"{part['name']} ({part['kind']}), but only tables, locally, replace-one")
    return [list(zip(*rows, strict=True)) for rows in itertools.permutations(part["table"], 2)]


def lattice(pairs: Pairs, step: float) -> tuple[int, list[float], float]:
    """The first loss, in steps; the masses of this and the next losses, and of an infinite one."""
    seen = [[(p / q if q else math.inf, p, q) for p, q in pair if p > 1e-18] for pair in pairs]
    losses = [math.log(ratio) for one in seen for ratio, _, _ in one if ratio < math.inf]
    first, last = math.floor(min(losses) / step), math.ceil(max(losses) / step)
    alphas = [math.exp(at * step) for at in range(first, last + 1)]
    heights = [0.0] * len(alphas)
    for order in map(sorted, seen):
        above_p = above_q = 0.0
        for at in reversed(range(len(alphas))):
            while order and order[-1][0] > alphas[at]:
                _, p, q = order.pop()
                above_p, above_q = above_p + p, above_q + q
            heights[at] = max(heights[at], above_p - alphas[at] * above_q)
    points = itertools.pairwise([(0.0, 1.0), *zip(alphas, heights, strict=True)])
    slopes = [*((after - before) / (b - a) for (a, before), (b, after) in points), 0.0]
    rises = (max(after - before, 0.0) for before, after in itertools.pairwise(slopes))
    return first, [alpha * rise for alpha, rise in zip(alphas, rises, strict=True)], heights[-1]


def compose(families: list[Pairs], times: list[int], epsilon: float) -> float:
    """The δ at ε of independent losses L, each a number of times, from E[e^(zL)] at z = λ + it."""
    tops = [max(math.log(p / q) if q else math.inf for x in pairs for p, q in x if p) for pairs in families]
    if sum(n * top for n, top in zip(times, tops, strict=True)) <= epsilon:
        return 0.0
    step = min(epsilon / math.sqrt(sum(times)), *tops) / 100.0
    losses = [(*lattice(pairs, step), n) for pairs, n in zip(families, times, strict=True)]

    def exponent(z: complex) -> complex:
        result = -z * epsilon
        for first, masses, _, n in losses:
            value, base = 0j, cmath.exp(z * step)
            for mass in reversed(masses):
                value = value * base + mass
            result += n * (cmath.log(value or 1e-300) + z * first * step)
        return result

    largest = max(first + len(masses) for first, masses, *_ in losses) * step
    rates = [rate for at in range(4, 24) if (rate := 2.0 ** (at / 2.0) / epsilon) * largest < 300.0]
    rate = min(rates, key=lambda rate: exponent(rate).real - math.log(rate))
    count, gap, total = math.ceil(40.0 / (rate * step)), step - math.fmod(epsilon, step), 0.0
    if count * sum(len(masses) for _, masses, *_ in losses) > 1e8:
        raise CannotCheckError(f"{sum(times)} losses")
    # The mean over N values of t is Σ e^(λmP) δ(ε + mP) over all m, where P is N steps: a bound for all λ.
    for at in range(count):
        z = complex(rate, 2.0 * math.pi * at / (count * step))
        sums = [cmath.exp(-y * gap) / (1.0 - cmath.exp(-y * step)) for y in (z, z + 1.0)]
        total += (cmath.exp(exponent(z)) * (sums[0] - sums[1])).real / count
    return total + sum(infinite * n for _, _, infinite, n in losses)
