"""An independent check of a finished run: what it cost, derived again from the files of its folder.

A stated (ε, δ) is confirmed if the releases have no larger δ at 1.02 ε, drawn exactly and in secret. Pairs of
distributions (P, Q) are what is seen of a release, for inputs that are neighbors. H(α) is the largest
Σ max(P - αQ, 0) of the pairs, at α = e^(kh). The broken line through these points is above H, as it is
convex, and belongs to one pair. Its losses are multiples of h, and add up. The standard library is enough.
"""

import cmath
import csv
import hashlib
import itertools
import json
import math
import struct
from collections import Counter
from pathlib import Path
from typing import Any

_UPDATES = ("privunit", "cldp_l2", "cldp_linf", "sqkr", "mmrc", "mrc", "shared_codebook", "vqsgd_private")
Pairs = list[list[tuple[float, float]]]


class DisagreementError(Exception):
    """The first line of a run's files that does not agree with the rest."""


class CannotCheckError(Exception):
    """There is no bound here for a statement."""


def check(folder: str | Path) -> list[str]:
    """A line for each statement of a folder that cannot be checked; DisagreementError if one is wrong."""
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


def make_object(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """A JSON object, or a row of a table, in which no key may be twice."""
    require(len(dict(pairs)) == len(pairs), f"a key is twice among {[key for key, _ in pairs]}"[:200])
    return dict(pairs)


def number(value: Any, *kinds: type) -> Any:
    """A number, and none of JSON's other values; neither negative nor NaN."""
    require(type(value) in kinds and value >= 0, f"{str(value)[:40]} is not a number of the right kind")
    return value


def read_mechanism(name: str, blob: bytes) -> dict[str, Any]:
    """The header of a mechanism, and the rows of its table."""
    require(hashlib.sha256(blob).hexdigest()[:32] == name, f"ledger: mechanism {name} is another one")
    start = 12 + struct.unpack_from("<6sHI", blob)[2]
    header, table = json.loads(blob[12:start], object_pairs_hook=make_object), []
    if header["kind"].endswith("table"):
        levels, first = header["levels"], start + 4 * header["levels"]
        rows = struct.iter_unpack(f"<{levels}Q", blob[first : first + 8 * levels * header["rows"]])
        table = [[weight / 2.0**32 for weight in row] for row in rows]
        require(all(sum(row) == 1.0 for row in table), "mechanism: a row does not sum to 2^32")
    return dict(header) | {"table": table}


class Run:
    """The files of a run."""

    def __init__(self, folder: Path) -> None:
        names = ("ledger", "config", "provenance", "summary")
        files = [json.loads(read(folder / f"{name}.json"), object_pairs_hook=make_object) for name in names]
        self.ledger, self.config, self.provenance, self.summary = files
        header, *lines = csv.reader(read(folder / "rounds.csv").decode().splitlines())
        rows = [make_object([*zip(header, line, strict=True)]) for line in lines]
        self.rows = make_object([(int(row["round"]), row) for row in rows])
        self.clients = number(self.config["federation"]["num_clients"], int)
        self.first = hashlib.sha256(read(folder / "mechanism.pqm")).hexdigest()[:32]
        mechanisms = {at: read_mechanism(at, bytes.fromhex(x)) for at, x in self.ledger["mechanisms"].items()}
        self.rounds, self.kinds = self.ledger["rounds"], []
        for text, honest, *_ in self.ledger["kinds"]:
            name, dimension, *bounds = text.split(" ")
            l2, _, record, rate = (None if bound == "-" else float.fromhex(bound) for bound in bounds)
            kind = {"text": text, "dimension": int(dimension), "honest": number(honest or 1, int)}
            kind |= {"norm": l2 if rate is None else record, "rate": 1.0 if rate is None else rate}
            self.kinds.append(mechanisms[name] | kind)
        counts = (self.ledger["shown"], *(past for past, *_ in self.ledger["nodes"]))
        pairs = ([(number(at, int), number(n, int)) for at, n in past] for past in counts)
        self.shown, *self.asked = (Counter(make_object(past)) for past in pairs)

    def check(self) -> list[str]:
        """Every statement, and the figures that repeat one."""
        self.check_counts()
        self.check_releases()
        own = self.provenance["certified_epsilon"], self.provenance["delta"]
        lines, last = self.provenance["statements"], self.rows[max(self.rows)]
        notes, stated, first = [], {"epsilon_coordinate": own}, lines[0]
        require(math.isclose(own[0], first["epsilon"]) and own[1] == first["delta"], f"{own} is not stated")
        for line in [*lines, *self.provenance.get("beside", [])]:
            name = f"ε, {line['unit']}, {line['view']}, {line['relation']}"
            (view, *honest), relation, unit = line["view"].split(" of "), line["relation"], line["unit"]
            epsilon, delta = (number(line[key], int, float) for key in ("epsilon", "delta"))
            hidden = unit == "record total" or view in ("models", "central")
            right = relation in ("replace-one", "zero-out") or (relation == "add-remove" and hidden)
            right &= delta < 0.1 and (view in ("aggregate", "models") or not honest)
            require(right, f"{name}: δ = {delta} says nothing, or there is no such relation or view")
            if relation == last[f"relation_{'record' if unit == 'record total' else 'client'}_total"]:
                seen = {"local": "", "models": "_models"}.get(view, "_sum")
                stated[f"epsilon_{unit.replace(' ', '_')}{seen}"] = epsilon, delta
            try:
                for parts in self.releases(unit, view, *honest) if epsilon < math.inf else ():
                    derived = delta_of(parts, relation, epsilon * (1.02 if delta else 1.0 + 1e-8))
                    if derived > delta and any(part.get("table") and part["norm"] for part, _ in parts):
                        raise CannotCheckError("tables of updates with an L2 norm")
                    require(derived <= delta, f"{name}: {epsilon:.8g} has δ = {derived:.3g} > {delta:.3g}")
            except CannotCheckError as reason:
                notes += [f"{name}: {reason}"] if line in lines else []
        for column, value in [*self.summary.items(), *last.items()]:
            if column.startswith("epsilon_") and value not in (None, "") and float(value) != math.inf:
                epsilon, delta = stated.get(column, (math.nan, 0.0))
                right = delta <= float(last["delta_client_total"]) or "client_total" not in column
                require(right and math.isclose(float(value), epsilon), f"{column}: {value} is not stated")
        for key in ("round", "num_clients", "relation_client_total", "delta_client_total"):
            require(str(self.summary[key]) == last[key], f"summary: {key} is not that of the last round")
        return notes

    def check_counts(self) -> None:
        """Every round, request and corrupt client is counted in the ledger."""
        right = self.shown.total() == len(self.rounds) and all(past <= self.shown for past in self.asked)
        shown = [self.kinds[at] for at in self.shown.elements()] if right else []
        right &= Counter(text for _, text in self.rounds) == Counter(kind["text"] for kind in shown)
        require(right, "ledger: a release is lost, or was never made")
        nodes, texts = [names for *_, names in self.ledger["nodes"]], dict(self.rounds)
        pairs, names = zip(self.asked, nodes, strict=True), [*itertools.chain(*nodes)]
        asked = Counter(self.kinds[at]["text"] for past, own in pairs for at in past.elements() for _ in own)
        replies = Counter({at: number(int(row["num_replies"]), int) for at, row in self.rows.items()})
        right = max(replies.values()) <= len(names) <= self.clients == int(self.summary["num_clients"])
        require(right and len(names) == len(set(names)), f"ledger: {len(names)} of {self.clients} clients")
        lost = Counter(texts.get(at, f"round {at}") for at in replies.elements()) - asked
        require(not lost, f"ledger: {lost.total()} replies were not asked for, in {[*lost]}")
        secagg = self.config["secagg"]
        share = number(secagg["corrupt_fraction"], int, float) if secagg["enabled"] else 1
        sizes = sorted(replies[at] if at in self.rows else self.clients for at, _ in self.rounds)
        for n, honest in zip(sizes, sorted(kind["honest"] for kind in shown), strict=True):
            require(honest <= max(n - math.ceil(share * n - 1e-9), 1), f"ledger: {honest} honest among {n}")

    def check_releases(self) -> None:
        """No release has fewer coordinates, rarer records or shorter updates than the run."""
        own, privacy, l2_clip = self.config["encoding"], self.config["privacy"], self.provenance["l2_clip"]
        whole = not own["keep"] and own["keep_policy"]["name"] == "constant"
        fixed = whole and own["clip_policy"]["name"] != "quantile"
        rate = privacy["sampling_rate"] if privacy["unit"] == "record" else 1.0
        drawn = rate * (privacy["records"] or self.clients) / self.clients
        for at, text in self.rounds:
            kind = next(kind for kind in self.kinds if kind["text"] == text)
            right = kind["rate"] == rate and kind["dimension"] >= max(self.provenance["dimension"] * whole, 1)
            clip = float(self.rows[at]["clip"]) if fixed and at in self.rows else math.inf
            length = kind["norm"] and kind["norm"] * clip * drawn
            right &= length >= (1.0 - 1e-9) * l2_clip if l2_clip and length else length == l2_clip
            require(right, f"ledger: {text} has fewer coordinates or records, or shorter ones, than the run")

    def releases(self, unit: str, view: str, honest: str = "1") -> list[list[tuple[Any, int]]]:
        """What each client released, and how often, as the adversary of a statement sees it."""
        one, privacy = {"dimension": 1, "norm": None, "honest": 1, "rate": 1.0}, self.config["privacy"]
        if view == "central" and privacy["correlation"] is None:
            require(
                self.config["mechanism"]["name"] == "central_gaussian", "ledger: the server added no noise"
            )
            norm = number(self.provenance["l2_clip"], int, float)
            part = {"kind": "gaussian", "scale": self.ledger["central"]["deviation"].hex(), "norm": norm}
            return [[(one | part, max(past.total() for past in self.asked))]]
        if unit == "coordinate release":
            used = [self.kinds[at] for at in +self.shown if self.kinds[at]["text"].startswith(self.first)]
            require(bool(used), "mechanism.pqm: it was not used")
            return [[(used[0] | one, 1)]]
        if view not in ("local", "aggregate") or unit not in ("client round", f"{privacy['unit']} total"):
            raise CannotCheckError(f"{unit}, {view}")
        right = self.shown[last := self.ledger["last"]] > 0 and self.kinds[last]["text"] == self.rounds[-1][1]
        require(right, f"ledger: kind {last} is not the last release")
        parts = [kind | {"honest": min(int(honest), kind["honest"])} for kind in self.kinds]
        pasts = [Counter([last])] if unit == "client round" else filter(None, self.asked)
        return [[(parts[at], n) for at, n in past.items()] for past in pasts]


def delta_of(parts: list[tuple[Any, int]], relation: str, epsilon: float) -> float:
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
        return 1e-14 + math.exp(rounding) * low - (math.exp(epsilon + math.log(high)) if high else 0.0)
    drawn = ([sampled_pairs(rate, shift, *end) for shift, _, rate, _ in noise] for end in ends)
    return 1e-14 + math.exp(rounding) * max(compose(pairs, [n for _, n in parts], left) for pairs in drawn)


def normal_noise(part: dict[str, Any]) -> tuple[float, float]:
    """By how many deviations an input can shift what is seen, and what rounding adds to ε (MATH.md 13)."""
    norm, honest = math.sqrt(part["dimension"]) if part["norm"] is None else part["norm"], part["honest"]
    if part["kind"] == "gaussian":
        return norm / float.fromhex(part["scale"]), 0.0
    deviation = float.fromhex(part["deviation"])
    # η but for a factor; if it is large, a client's own noise alone. Rounding hides too: it was measured.
    gap = 4.0 * honest * math.exp(-2.0 * (math.pi * deviation) ** 2 * (1.0 - 1.0 / honest))
    honest, gap = (honest, gap) if honest > 1 and gap < 0.5 else (1, 0.0)
    hides = math.sqrt(deviation**2 + (deviation > 1.2) / 12.0) / (1.001 + 0.05 / honest)
    shift = norm / (float.fromhex(part["spacing"]) * max(hides, deviation) * math.sqrt(honest))
    return shift, part["dimension"] * math.log((1.0 + gap) / (1.0 - gap))


def sampled_pairs(rate: float, shift: float, one: float, other: float) -> Pairs:
    """Normal noise, shifted at that rate, in cells: Q is what the largest ratio in a cell leaves of P."""

    def density(at: float, end: float) -> float:
        return 1.0 - rate + rate * math.exp(min(end * shift * (at - end * shift / 2.0), 700.0))

    cells = [at * (9.0 + shift) / 10_000.0 for at in range(-10_000, 10_001)]
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
        value = cmath.exp(exponent(z)) * (sums[0] - sums[1]) / count
        total += value.real + 1e-13 * abs(value)
    return total + sum(infinite * n for _, _, infinite, n in losses)
