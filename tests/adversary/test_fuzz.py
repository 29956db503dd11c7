"""Everything that is read from another party or from a disk, fed with what nobody meant to send.

Mutations are seeded, so a failure repeats. Each target may succeed or raise a PrivQuantError with one line of
printable text, within 200 MB (``watched``). What once failed is tried first.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

import fl_privquant as pq
from fl_privquant.accounting.ledgers.spending_ledger import SpendingLedger, _chain_hash
from fl_privquant.accounting.release import Release
from fl_privquant.codec.array_layout import Layout
from fl_privquant.codec.encoding import Encoding
from fl_privquant.codec.metrics import MetricRange
from fl_privquant.codec.update import UpdateCodec
from fl_privquant.errors import InvalidUpdateError, PrivQuantError
from fl_privquant.flower import CheckpointStrategy, PrivQuantStrategy
from fl_privquant.flower._messages.arrays import read_array
from fl_privquant.flower._messages.protocol import Reply, Request
from fl_privquant.mechanisms._design_cache import DesignCache
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.packing.pack import pack_codes, pack_indices, unpack_codes, unpack_indices
from fl_privquant.secagg import messages
from fl_privquant.secagg._answer_log import AnsweredStages
from fl_privquant.secagg.client import ClientPolicy, ClientRound
from simulations.report.runs import load_runs
from simulations.runner.results import RunDirectory
from tests.adversary.mutation import EXTREMES, any_value, forged_mechanism, mutated, mutated_json, watched
from tests.mechanisms.forgery import forged
from tests.secagg.driver import STAGES, open_round
from tests.simulations.synthetic import write_study
from tests.typical import typical

CASES = 150

NAMES = [*pq.available_mechanisms(), "metric", "fixed_point"]


@pytest.fixture(scope="module")
def blobs() -> dict[str, bytes]:
    """The bytes of one mechanism of every kind."""
    found = {name: typical(name) for name in pq.available_mechanisms()}
    found["metric"] = pq.design("optm", epsilon=1.0, bits=2, metric="l1")
    found["fixed_point"] = pq.design("none").for_sums()
    return {name: mechanism.to_bytes() for name, mechanism in found.items()}


def check(
    cases: int,
    seed: str,
    make: Callable[[random.Random], Any],
    read: Callable[[Any], Any],
    known: Iterable[Any] = (),
) -> None:
    """Read inputs that are known, and as many made-up ones, and tell all problems at once."""
    rng = random.Random(seed)
    problems: dict[str, Any] = {}
    for case in itertools.chain(known, (make(rng) for _ in range(cases))):
        problem = watched(lambda case=case: read(case))
        if problem:
            problems.setdefault(problem[:80], case)
    assert not problems, "\n".join(f"{problem}: {str(case)[:300]}" for problem, case in problems.items())


# Headers that once were an error of Python's, a text that ran on, or a distribution of 700 MB.
_FORGED: dict[str, list[dict[str, Any]]] = {
    "laplace": [{"epsilon": "0x1p-1074"}, {"scale": "0x1p+1023"}],
    "gaussian": [{"delta": "0x1p-1074"}],
    "one_bit": [
        {"name": "\x1b[2J\x1b[31mforged"},
        {"name": "a" * 100_000},
        {"kind": "a" * 100_000},
        {"step": "0x1p+1023"},
        {"levels": 10**400},
    ],
    "pbm": [{"trials": 7007, "epsilon": "0x1p+1023"}],
}


@pytest.mark.parametrize("name", NAMES)
def test_mechanisms(blobs, name):
    def read(blob: bytes) -> None:
        mechanism = Mechanism.from_bytes(blob).for_dimension(37)
        assert mechanism.name.isprintable()
        assert mechanism.statement.brief
        assert mechanism.mse() >= 0.0

    def make(rng: random.Random) -> bytes:
        return forged_mechanism(blobs[name], rng) if rng.random() < 0.8 else mutated(blobs[name], rng)

    known = [forged(Mechanism.from_bytes(blobs[name]), **header) for header in _FORGED.get(name, ())]
    check(CASES, f"mechanism {name}", make, read, known)


@pytest.mark.parametrize(
    "name", ["optm", "one_bit", "laplace", "gaussian", "grr", "snapping", "discrete_laplace"]
)
def test_extreme_epsilons_are_designed_for_or_refused(name):
    """The solver of optm's linear programs ended with an IndexError from 50 on, others with e^epsilon."""
    levels = {"levels": 4} if name in ("optm", "grr") else {}
    for epsilon in (1e-320, 1e-12, 50.0, 700.0, 1e308):
        with contextlib.suppress(PrivQuantError):
            assert pq.design(name, epsilon=epsilon, cache=False, **levels).epsilon <= epsilon


def any_record(rng: random.Random) -> Any:
    """A value that a ConfigRecord takes."""
    value = any_value(rng)
    return (
        value if isinstance(value, bool | int | float | str) else rng.choice((b"", b"\x00" * 99, [1, 2], "x"))
    )


def test_requests(blobs):
    layout = Layout.of({"weights": np.zeros((3, 7), np.float32)})
    good = ConfigRecord()
    metrics = (MetricRange("loss", 0.0, 4.0),)
    encoding = Encoding(Mechanism.from_bytes(blobs["optm"]), 0.1, 0.5, rotate=True)
    request = Request(1, encoding, 3, True, 0.5, metrics, counted_releases=0)
    request.write(good)

    def make(rng: random.Random) -> ConfigRecord:
        config = ConfigRecord(dict(good))
        for key in rng.sample(list(config), rng.choice((1, 1, 2))):
            if rng.random() < 0.2:
                del config[key]
            else:
                config[key] = any_record(rng)
        return config

    def read(config: ConfigRecord) -> None:
        request = Request.read(config)
        request.release(layout)
        request.codec(layout)

    check(CASES, "request", make, read)


def test_replies():
    good = Reply(1, "ab" * 16, b"payload", {"loss": 0.5}, False)

    def make(rng: random.Random) -> RecordDict:
        content = good.to_content()
        info = content["privquant-reply"]
        assert isinstance(info, ConfigRecord)
        for key in rng.sample(list(info), rng.choice((0, 1, 2))):
            info[key] = any_record(rng)
        value = rng.choice((*EXTREMES, 1e308, float("nan"), float("inf"), [1, 10**309], [0.5, float("inf")]))
        content["metrics"] = MetricRecord({"loss": value})
        if rng.random() < 0.2:
            content[rng.choice(list(content))] = ConfigRecord({"a": 1})
        return content

    def read(content: RecordDict) -> None:
        reply = Reply.from_content(content)
        assert all(np.isfinite(value).all() for value in map(np.asarray, reply.metrics.values()))
        assert abs(reply.round) < 1 << 63

    check(4 * CASES, "reply", make, read)


def test_arrays():
    goods = [
        Array(np.arange(105, dtype=np.float32).reshape(3, 5, 7)).data,
        Array(np.asfortranarray(np.ones((4, 6)))).data,
        Array(np.array(3, dtype=">i8")).data,
        Array(np.zeros(3, dtype=[(f"field-{i}", "<f4") for i in range(9)])).data,
    ]
    words = b"{ ( ((((((((((((((((((((( ' \\x lambda 99999999999999999999 'O' (1,)*9**9 0_0".split()
    start = b"{'descr': '%b', 'fortran_order': False, 'shape': %b"
    headers = [
        start % (b"<f4", b"(3,), "),  # the brace is not closed
        start % (b"<f4", b"(" * 60),
        start % (b"|O", b"(3,), }"),
        start % (b"<f4", b"(9999999999999999999,), }"),
        start % (b"<f4", b"(4294967296, 4294967296), }"),
        start % (b"<U999999999", b"(3,), }"),
        start % (b"\\x1b[31m", b"(3,), }"),
    ]
    known = [
        b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + header.ljust(117) + b"\n" + bytes(12)
        for header in headers
    ]

    def make(rng: random.Random) -> bytes:
        data = rng.choice(goods)
        if rng.random() < 0.5:
            return mutated(data, rng, goods)
        at = rng.randrange(10, 128)
        return data[:at] + rng.choice(words) + data[at + rng.choice((0, 3, 9)) :]

    def read(data: bytes) -> None:
        values = read_array(Array("float32", (1,), "numpy.ndarray", data))
        assert values.nbytes <= len(data)

    check(10 * CASES, "array", make, read, known)
    for data in known:
        with pytest.raises(InvalidUpdateError, match="cannot be read"):
            read(data)


def test_payloads(blobs):
    rng = np.random.default_rng(5)
    layout = Layout.of({"weights": np.zeros(77, np.float32)})
    codecs = {
        name: UpdateCodec(layout, Encoding(Mechanism.from_bytes(blobs[name]), 0.1))
        for name in blobs
        if name not in ("mvu", "metric")
    }
    update = {"weights": rng.normal(0.0, 0.1, 77).astype(np.float32)}
    payloads = {name: codec.encode(update) for name, codec in codecs.items()}
    for name, codec in codecs.items():
        codec.decode(payloads[name])

    def read(case: tuple[str, bytes]) -> None:
        name, payload = case
        codecs[name].decode(payload)
        if codecs[name].mechanism.summable:
            codecs[name].add_codes(payload, np.zeros(77, np.int64))

    def make(rng: random.Random) -> tuple[str, bytes]:
        name = rng.choice(list(codecs))
        return name, mutated(payloads[name], rng, list(payloads.values()))

    check(10 * CASES, "payload", make, read)
    indices, codes = pack_indices(np.arange(77) % 5, 5), pack_codes(np.arange(77), 12)
    check(
        CASES, "indices", lambda rng: mutated(indices, rng, [codes]), lambda data: unpack_indices(data, 5, 77)
    )
    check(CASES, "codes", lambda rng: mutated(codes, rng, [indices]), lambda data: unpack_codes(data, 12, 77))


def play_a_round(signed: bool) -> tuple[dict[str, bytes], list[bytes]]:
    """One message of every kind of a round, and a client's state at every stage."""
    round_, states = open_round(5, 9, signed=signed, dropout_fraction=0.2), []
    for stage in STAGES:
        getattr(round_, stage)([31] if stage == "mask" else ())
        states.append(round_.clients[3].to_bytes())
    return {kind: sent[3] for kind, sent in round_.sent.items()}, states


def test_messages_of_secure_aggregation():
    found, states = play_a_round(signed=True)
    assert len(found) == 10
    others = list(found.values())
    for name, data in found.items():
        kind = getattr(messages, name)
        check(CASES, name, lambda rng, data=data: mutated(data, rng, others), kind.from_bytes)
    check(
        6 * CASES,
        "client state",
        lambda rng: mutated(rng.choice(states), rng, states),
        lambda data: ClientRound.from_bytes(data, ClientPolicy()),
    )


def test_invitations_and_rosters_that_are_answered(monkeypatch):
    """A client that joins by a forged invitation, or answers a forged roster, allocates nothing for it."""
    found, _ = play_a_round(signed=False)
    # As in processes of their own: in one process a round is joined once.
    monkeypatch.setattr(AnsweredStages, "claim", lambda *_: True)

    def join(data: bytes) -> ClientRound:
        client = ClientRound.join(data, 3, ClientPolicy(dropout_fraction=0.2))
        client.advertise_keys()
        return client

    def answer(roster: bytes) -> None:
        join(found["Invitation"]).share_keys(roster)

    answer(found["Roster"])
    check(2 * CASES, "join", lambda rng: mutated(found["Invitation"], rng), join)
    check(CASES, "roster", lambda rng: mutated(found["Roster"], rng), answer)


def test_checkpoints(tmp_path):
    path = tmp_path / "run.checkpoint"
    arrays = ArrayRecord({"weights": Array(np.ones((3, 5), np.float32))})

    def strategy() -> CheckpointStrategy:
        inner = PrivQuantStrategy(FedAvg(), pq.Encoding(pq.design("one_bit", epsilon=1.0), clip=0.1))
        return CheckpointStrategy(inner, path)

    saved = strategy()
    saved.resume(arrays)
    saved._save(2, random.Random(1).getstate())
    good = path.read_bytes()
    with np.load(io.BytesIO(good)) as file:
        content = json.loads(file["checkpoint.json"].tobytes())
        stored = {name: file[name] for name in file.files if name != "checkpoint.json"}

    def make(rng: random.Random) -> bytes:
        if rng.random() < 0.4:
            return mutated(good, rng)
        changed = json.dumps(mutated_json(content, rng)).encode()
        buffer = io.BytesIO()
        np.savez(buffer, **stored, **{"checkpoint.json": np.frombuffer(changed, np.uint8)})
        return buffer.getvalue()

    def read(data: bytes) -> None:
        path.write_bytes(data)
        resumed = strategy()
        assert resumed.finished_rounds >= 0
        resumed.resume(arrays)

    state = random.getstate()
    check(2 * CASES, "checkpoint", make, read)
    random.setstate(state)


def test_spending_ledgers(tmp_path):
    path = tmp_path / "ledger"
    ledger = SpendingLedger(path)
    release = Release(pq.design("one_bit", epsilon=0.5), dimension=10)
    for number in range(3):
        ledger.spend(number, release)
    good = path.read_bytes()

    def rechained(rng: random.Random) -> bytes:
        """Lines that were changed by who knows how they are chained."""
        lines = [json.loads(line) for line in good.splitlines()]
        at = rng.randrange(len(lines))
        lines[at] = mutated_json(lines[at], rng)
        chain, texts = "", []
        for line in lines:
            if isinstance(line, dict):
                line.pop("chain", None)
                chain = _chain_hash(chain, line)
                texts.append(json.dumps({**line, "chain": chain}, sort_keys=True))
            else:
                texts.append(json.dumps(line))
        return ("\n".join(texts) + "\n").encode("utf-8", "surrogatepass")

    def read(data: bytes) -> None:
        path.write_bytes(data)
        assert len(SpendingLedger(path).rounds) <= 3

    check(CASES, "ledger bytes", lambda rng: mutated(good, rng), read)
    check(2 * CASES, "ledger lines", rechained, read)


def test_cached_designs(blobs, tmp_path):
    cache = DesignCache(tmp_path)
    mechanism = Mechanism.from_bytes(blobs["optm"])

    def read(blob: bytes) -> None:
        cache.path("key").write_bytes(b"key\n" + blob)
        assert cache.fetch("key", lambda: mechanism, Mechanism.from_bytes).epsilon >= 0.0

    check(CASES // 3, "cache", lambda rng: forged_mechanism(blobs["optm"], rng), read)
    check(CASES // 3, "cache bytes", lambda rng: mutated(blobs["optm"], rng), read)


def test_results_of_runs(tmp_path):
    (run,) = write_study(tmp_path, labels=("one_bit",), seeds=(0,), rounds=3)
    files = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}

    def make(rng: random.Random) -> dict[str, bytes]:
        name = rng.choice(sorted(files))
        if name.endswith(".json") and rng.random() < 0.6:
            data = json.dumps(mutated_json(json.loads(files[name]), rng)).encode()
        else:
            data = mutated(files[name], rng)
        return {**files, name: data}

    def read(changed: dict[str, bytes]) -> None:
        for name, data in changed.items():
            (run / name).write_bytes(data)
        runs, problems = load_runs(tmp_path)
        assert runs or problems
        for found in runs:
            assert isinstance(found.label, str)
            assert found.total.brief
            assert found.certified.brief
            assert found.lines is not None
        RunDirectory(run).summary()

    check(CASES // 3, "results", make, read)


def test_the_watch_sees_what_it_is_there_for():
    """The negative control: foreign errors, forged lines, long texts and large memory are found."""

    def fail(error: Exception) -> Callable[[], None]:
        def action() -> None:
            raise error

        return action

    assert "ZeroDivisionError" in watched(fail(ZeroDivisionError()))
    assert "printable False" in watched(fail(PrivQuantError("one\ntwo")))
    assert "characters" in watched(fail(PrivQuantError("a" * 5000)))
    assert "MB" in watched(lambda: bytearray(210_000_000))
    assert watched(fail(PrivQuantError("refused"))) == ""
