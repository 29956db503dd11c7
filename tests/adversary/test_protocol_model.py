"""A model of the protocol: what a server with a corrupt client can open, whatever it tells the others.

Six real clients play signed rounds with a server that lies as a plan says: other rosters, thresholds,
requests, lists of survivors, forged signatures, copies of states, and stages that are asked again in a new
process because the state was not saved. What it can then compute is derived from
what it was given: a secret is known from ``threshold`` shares, an input is bare once its self mask is known,
and inputs add up to something only where all masks that are left are known or cancel. Every sum that opens
must hold the promised number of honest clients, all of them asked for the same. With any one of the clients'
checks removed, some plan opens less: the model would notice.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fl_privquant.errors import SecureAggregationError
from fl_privquant.secagg import ClientPolicy, ClientRound, GraphParameters, choose_parameters, draw_session
from fl_privquant.secagg import client as client_module
from fl_privquant.secagg._answer_log import AnsweredStages
from fl_privquant.secagg._wire import RoundId, Subset
from fl_privquant.secagg.crypto import keys
from fl_privquant.secagg.crypto.sharing import derive_share
from fl_privquant.secagg.graph.neighbors import cached_graph
from fl_privquant.secagg.messages import (
    Confirmation,
    Invitation,
    KeyAdvertisement,
    MaskRequest,
    Roster,
    RosterEntry,
    SurvivorList,
    UnmaskRequest,
)
from fl_privquant.secagg.signed.transcript import agreement_digest, masks_digest

CLIENTS = (3, 10, 17, 24, 31, 38)
CORRUPT, HONEST = CLIENTS[0], CLIENTS[1:]
A, B, C, D, E = HONEST
# Whom to call dead to whom, so that three of the five honest ones are called dead by three each.
CALLED_DEAD: Mapping[int, set[int]] = {A: {B, C}, B: {A, C}, C: {B}, D: {A, B}, E: {A, C}, CORRUPT: set()}
IDENTITIES = {i: Ed25519PrivateKey.generate() for i in CLIENTS}
KNOWN = {i: key.public_key().public_bytes_raw() for i, key in IDENTITIES.items()}
LAST_ROUNDS: dict[int, ClientRound] = {}
# Claims are synchronized with the disk, which takes long elsewhere than in memory.
_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


@dataclass(frozen=True)
class Plan:
    """How the server lies."""

    roster: str = "all"
    threshold: int | None = None
    two_requests: bool = False
    lists: str = "honest"
    forge: bool = False
    copies: bool = False
    # After which stage the state is lost and the process ends, so that the stage is asked again.
    lost_save: str = ""
    # How many clients' confirmations count, and whether others' are shown too.
    witnesses: int = 4
    strangers: bool = False


def plans(**values: tuple[Any, ...]) -> list[Plan]:
    """Plans of all combinations of these values."""
    return [Plan(**dict(zip(values, chosen, strict=True))) for chosen in itertools.product(*values.values())]


ROSTERS = ("all", "without one", "invented", "invented identities")
YES_OR_NO = (False, True)
PLANS = [
    *plans(
        roster=ROSTERS,
        two_requests=YES_OR_NO,
        lists=("honest", "small", "split", "split after"),
        forge=YES_OR_NO,
        copies=YES_OR_NO,
    ),
    # A threshold that is too low is refused before anything else is told.
    *plans(roster=ROSTERS, threshold=(1, 3), lists=("honest", "split")),
    *plans(
        roster=("all", "two lists"),
        lists=("honest", "split", "other group"),
        witnesses=(0, 1, 2, 6),
        strangers=YES_OR_NO,
    ),
    *plans(
        roster=("all", "two lists"),
        two_requests=YES_OR_NO,
        lists=("honest", "split"),
        lost_save=("advertise", "share", "mask", "confirm", "unmask"),
    ),
]


@dataclass
class World:
    """What the server got."""

    policy: ClientPolicy
    entries: dict[int, RosterEntry] = field(default_factory=dict)
    rosters: dict[int, dict[int, RosterEntry]] = field(default_factory=dict)
    threshold: int = 4
    invented: dict[int, set[int]] = field(default_factory=dict)
    context: dict[int, bytes] = field(default_factory=dict)
    salt: dict[int, bytes] = field(default_factory=dict)
    graph: dict[int, bytes] = field(default_factory=dict)
    masked_with: dict[int, set[int]] = field(default_factory=dict)
    seed_shares: dict[int, set[int]] = field(default_factory=dict)
    wrapping_shares: dict[int, set[int]] = field(default_factory=dict)
    answered: Counter[tuple[int, str]] = field(default_factory=Counter)

    def known(self, client: int, revealed: Mapping[int, set[int]]) -> bool:
        """Whether enough shares of one of a client's secrets are known."""
        own = {CORRUPT} & self.rosters[client].keys() | self.invented.get(client, set())
        # Holders of another graph derive other shares than the client dealt.
        same = {i for i in revealed.get(client, set()) if self.graph.get(i) == self.graph.get(client)}
        return len(same | own) >= self.threshold

    def openable(self) -> list[set[int]]:
        """The sets of honest clients whose codes' sum the server can compute, none within another."""
        key_known = {i for i in self.rosters if i in HONEST and self.known(i, self.wrapping_shares)}
        bare = {i for i in self.masked_with if i in HONEST and self.known(i, self.seed_shares)}

        def unknown(i: int) -> set[tuple[int, bytes]]:
            fakes = self.invented.get(i, set())
            return {
                (j, self.salt[i])
                for j in self.masked_with[i]
                if j != CORRUPT
                and j not in fakes
                and i not in key_known
                # What a client wrapped are roots of the graph that it was shown, and of no other.
                and not (j in key_known and self.graph.get(j) == self.graph.get(i))
            }

        found, left = [], set(bare)
        while left:
            todo, group, complete = [left.pop()], set(), True
            while todo:
                i = todo.pop()
                group.add(i)
                for j, salt in unknown(i):
                    cancels = j in bare and self.salt[j] == salt and i in self.masked_with[j]
                    complete &= cancels
                    if cancels and j not in group:
                        todo.append(j)
            left -= group
            if complete:
                found.append(group)
        return found

    def violations(self) -> list[set[int]]:
        """Sums that open with fewer honest clients than promised, or of different requests."""
        return [
            group
            for group in self.openable()
            if len(group) < self.policy.min_honest or len({self.context[i] for i in group}) > 1
        ]


class Server:
    """Plays one round by a plan; a client that refuses counts as lost."""

    def __init__(self, plan: Plan, dropout_fraction: float) -> None:
        self.plan = plan
        # As on SuperNodes: what was answered is in a folder, and processes come and go.
        self.folder = tempfile.TemporaryDirectory(dir=_MEMORY)
        base = ClientPolicy(
            min_clients=6,
            corrupt_fraction=1 / 6,
            dropout_fraction=dropout_fraction,
            known_identities=KNOWN,
            answered_folder=Path(self.folder.name),
        )
        self.policies = {i: replace(base, identity=IDENTITIES[i]) for i in CLIENTS}
        self.world = World(base)
        self.round_id = RoundId(draw_session(), 1)
        self.invitation = Invitation(self.round_id, 6, 1, 8, 3, True).to_bytes()
        self.digest = keys.digest(self.invitation)
        self.clients: dict[int, ClientRound] = {}
        self.previous = dict(LAST_ROUNDS)
        self.second: RosterEntry | None = None

    def each(self, answer: Callable[[int], None], stage: str) -> None:
        before = {i: client.to_bytes() for i, client in self.clients.items()}
        for i in CLIENTS if stage == "advertise" else list(self.clients):
            try:
                answer(i)
                self.world.answered[i, stage] += 1
            except SecureAggregationError:
                self.clients.pop(i, None)
        if stage == self.plan.lost_save:
            self.ask_again(answer, stage, before)

    def ask_again(self, answer: Callable[[int], None], stage: str, before: Mapping[int, bytes]) -> None:
        """Ask for a stage in a new process, with the state before it; then go on from the first answers."""
        restart()
        after, self.clients = self.clients, self.restored(before)
        for i in list(after):
            with contextlib.suppress(SecureAggregationError):
                answer(i)
                self.world.answered[i, stage] += 1
        self.clients = after

    def restored(self, stored: Mapping[int, bytes]) -> dict[int, ClientRound]:
        return {i: ClientRound.from_bytes(stored[i], self.policies[i]) for i in stored}

    def play(self) -> World:
        with self.folder:
            self.each(self.advertise, "advertise")
            self.each(self.share, "share")
            self.each(self.mask, "mask")
            stored = {i: client.to_bytes() for i, client in self.clients.items()}
            for swapped in (False, True) if self.plan.copies else (False,):
                restart()
                self.clients = self.restored(stored)
                self.open(swapped)
        return self.world

    def advertise(self, i: int) -> None:
        # A client keeps the keys of its identity from round to round, here from game to game.
        previous = self.previous.get(i)
        LAST_ROUNDS[i] = self.clients[i] = ClientRound.join(self.invitation, i, self.policies[i], previous)
        message = KeyAdvertisement.from_bytes(self.clients[i].advertise_keys())
        self.world.entries[i] = RosterEntry(i, message.public_key, KNOWN[i])

    def share(self, i: int) -> None:
        listed = [j for j in CLIENTS if self.plan.roster != "without one" or j != E]
        entries = {j: self.world.entries[j] for j in listed}
        if self.plan.roster.startswith("invented") and i == A:
            posing = None if self.plan.roster == "invented" else SERVER_IDENTITY
            entries |= {j: invented(entries[j], posing) for j in HONEST if j != A}
        if self.plan.roster == "two lists" and i in (A, B):
            entries[CORRUPT] = self.second_keys(entries[CORRUPT])
        others = [entry for j, entry in entries.items() if j != i]
        everyone = tuple(entries)
        self.world.threshold = self.plan.threshold or 4
        named = [at for at, entry in enumerate(others) if entry.identity != KNOWN[entry.client_id]]
        roster = Roster(
            self.round_id,
            len(entries),
            len(others),
            self.world.threshold,
            self.plan.witnesses,
            False,
            (),
            tuple(entry.public_key for entry in others),
            everyone,
            identified=Subset(len(others), tuple(named)),
            identities=tuple(others[at].identity for at in named),
        )
        self.clients[i].share_keys(roster.to_bytes())
        self.world.rosters[i] = entries
        self.world.graph[i] = self.clients[i]._graph_digest
        if self.plan.roster.startswith("invented") and i == A and self.reads(A, E):
            # It knows the shares that it holds of the client: it can play all of its neighbors from here on.
            self.world.invented[A] = set(HONEST) - {A}
            self.world.masked_with[A], self.world.salt[A], self.world.context[A] = set(), b"", b""

    def reads(self, dealer: int, holder: int) -> bool:
        """Whether the server derives the share of a client whose keys it invented, as the dealer does."""
        ends = [self.world.rosters[dealer][i] for i in (dealer, holder)]
        state = self.clients[dealer]
        posing = keys.derive_identity_pair_keys(SERVER_IDENTITY, [ends[0].identity])
        for identities in (b"", *posing.values()):
            pair = keys.agree(
                INVENTED[holder], ends[1].public_key, ends[0].public_key, state._graph_digest, identities
            )
            # The dealer holds such a share of the holder, from the same pair secret.
            if derive_share(pair, holder, dealer) == state._held_shares[holder]:
                return True
        return False

    def second_keys(self, entry: RosterEntry) -> RosterEntry:
        """Other keys of the corrupt client for the same round: the server shows two lists."""
        if self.second is None:
            self.second = invented(entry)
        return self.second

    def mask(self, i: int) -> None:
        client = self.clients[i]
        everyone = Subset.of(client._all_clients, client._all_clients)
        context = b"other" if self.plan.two_requests and i in (A, B) else b"asked"
        client.settle(MaskRequest(self.round_id, everyone).to_bytes(), context)
        self.world.context[i], self.world.salt[i] = context, client._masks_digest
        self.world.masked_with[i] = set(client._held_shares) - {i}
        client.mask([1])

    def told(self, i: int, swapped: bool) -> tuple[set[int], set[int]]:
        """Those that a client is told are lost: when it confirms, and when it unmasks."""
        everyone = set(self.world.rosters[i])
        if self.plan.copies:
            dead = {C, D} if swapped else {A, B}
            return dead & everyone, dead & everyone
        lists = {
            "honest": (set(), set()),
            "split": (CALLED_DEAD[i], CALLED_DEAD[i]),
            "split after": (set(), CALLED_DEAD[i]),
            "other group": ({A, B} if i not in (A, B) else {D, E},) * 2,
            "small": (set(HONEST[: len(everyone) - 4]),) * 2,
        }[self.plan.lists]
        return lists[0] & everyone, lists[1] & everyone

    def open(self, swapped: bool) -> None:
        signatures: dict[bytes, dict[int, bytes]] = {}
        graphs: dict[bytes, bytes] = {}

        def confirm(i: int) -> None:
            members = set(self.world.rosters[i])
            survivors = tuple(sorted(members - self.told(i, swapped)[0]))
            agreement = agreement_digest(self.clients[i]._masks_digest, survivors)
            named = Subset.of(survivors, self.clients[i]._all_clients)
            signature = self.clients[i].confirm(SurvivorList(self.round_id, named).to_bytes())[-64:]
            signatures.setdefault(agreement, {})[i] = signature
            graphs[agreement] = self.clients[i]._graph_digest

        self.each(confirm, "confirm")
        for agreement, given in signatures.items():
            body = Confirmation(self.round_id, CORRUPT, b"", agreement).body()
            given[CORRUPT] = keys.sign(IDENTITIES[CORRUPT], graphs[agreement], body)
            if self.plan.forge:
                given |= {i: bytes(64) for i in CLIENTS if i not in given}

        def unmask(i: int) -> None:
            client = self.clients[i]
            held = set(client._held_shares)
            dead = self.told(i, swapped)[1] & held
            active = held - dead
            places = cached_graph(client._graph_digest, client._parameters).witnesses(self.plan.witnesses)
            witnesses = [client._all_clients[place] for place in sorted(places)]
            given = {j: mark for j, mark in signatures[client._agreement].items() if j in witnesses}
            if self.plan.strangers:
                # Confirmations of others stand in the places of witnesses that did not confirm.
                missing = [j for j in witnesses if j not in given]
                others = [mark for j, mark in signatures[client._agreement].items() if j not in witnesses]
                given |= dict(zip(missing, others, strict=False))
            request = UnmaskRequest(
                self.round_id,
                Subset.of(active, sorted(held)),
                Subset.of(given, witnesses),
                tuple(given[j] for j in sorted(given)),
            )
            client.unmask(request.to_bytes())
            for shares, owners in ((self.world.seed_shares, active), (self.world.wrapping_shares, dead)):
                for owner in owners:
                    shares.setdefault(owner, set()).add(i)

        self.each(unmask, "unmask")


def restart() -> None:
    """Forget what a process remembers."""
    client_module.answered_stages = AnsweredStages()


INVENTED: dict[int, bytearray] = {}
SERVER_IDENTITY = Ed25519PrivateKey.generate()


def invented(entry: RosterEntry, posing: Ed25519PrivateKey | None = None) -> RosterEntry:
    """The entry with keys of the server's own, and under an identity of its own if one is given."""
    private = keys.draw_secret()
    INVENTED[entry.client_id] = private
    identity = entry.identity if posing is None else posing.public_key().public_bytes_raw()
    return replace(entry, public_key=keys.public_key(private), identity=identity)


def attacks(dropout_fraction: float) -> Iterator[tuple[Plan, World]]:
    for plan in PLANS:
        yield plan, Server(plan, dropout_fraction).play()


@pytest.mark.parametrize("lost", [1, 2])
def test_no_plan_opens_less_than_promised(lost: int) -> None:
    assert choose_parameters(6, corrupt_fraction=1 / 6, dropout_fraction=lost / 6).threshold == 4
    opened = 0
    for plan, world in attacks(lost / 6):
        assert not world.violations(), plan
        # Copies are asked for the stages of a round's end again, with other lists, and give no second answer.
        assert set(world.answered.values()) <= {1}, plan
        opened += bool(world.openable())
    # The model can open sums: of honest plans, or of such as nobody is hurt by.
    assert opened > 0


def test_an_honest_plan_opens_the_sum_of_all() -> None:
    assert Server(Plan(), 1 / 6).play().openable() == [set(HONEST)]


class Forgetful(AnsweredStages):
    def claim(self, *args: Any, **keywords: Any) -> bool:
        return True


def in_memory(folder: Path) -> AnsweredStages:
    return client_module.answered_stages


def without_context(graph: bytes, members: tuple[int, ...], context: bytes) -> bytes:
    return masks_digest(graph, members, b"")


CHECK_ACTIVE = ClientRound._check_active


def unchecked(*args: Any) -> None:
    return None


def any_identity(policy: ClientPolicy, client: int, told: bytes | None) -> bytes:
    return KNOWN[client] if told is None else told


def not_as_confirmed(client: ClientRound, active: tuple[int, ...]) -> None:
    CHECK_ACTIVE(client, active)
    client._active = active


def any_witness(
    policy: ClientPolicy, num_clients: int, num_witnesses: int, told: bytes, confirmations: list[Confirmation]
) -> None:
    signed = [
        any(policy.is_signed_by_sender(replace(each, client_id=client), told) for client in CLIENTS)
        for each in confirmations
    ]
    if sum(signed) < policy.quorum(num_clients, num_witnesses):
        raise SecureAggregationError("too few")


# For each check of a client, the client without it, and the lie that the check is against. That is played
# before the other plans, few of which catch a client.
MUTANTS: dict[str, tuple[Any, str, Any, Plan]] = {
    "fewest clients": (ClientPolicy, "check_size", unchecked, Plan("without one", lists="small")),
    "graph and threshold": (ClientPolicy, "check_graph", unchecked, Plan(threshold=1)),
    "fewest survivors": (ClientPolicy, "check_survivors", unchecked, Plan(lists="small")),
    "quorum of confirmations": (ClientPolicy, "check_quorum", unchecked, Plan(lists="split")),
    "size of the quorum": (ClientPolicy, "quorum", lambda *_: 2, Plan(lists="split", witnesses=6)),
    "signatures of confirmations": (
        ClientPolicy,
        "is_signed_by_sender",
        lambda *_: True,
        Plan(lists="split", forge=True),
    ),
    "confirmations of witnesses only": (
        ClientPolicy,
        "check_quorum",
        any_witness,
        Plan(lists="split", witnesses=2, strangers=True),
    ),
    "known identities": (ClientPolicy, "identity_of", any_identity, Plan("invented identities")),
    "channels of identities": (ClientRound, "_share_identity_keys", lambda *_: {}, Plan("invented")),
    "masks bound to the request": (client_module, "masks_digest", without_context, Plan(two_requests=True)),
    "one answer for all copies": (client_module, "AnsweredFolder", lambda _: Forgetful(), Plan(copies=True)),
    "one answer for all processes": (client_module, "AnsweredFolder", in_memory, Plan(copies=True)),
    "survivors as confirmed": (ClientRound, "_check_active", not_as_confirmed, Plan(lists="split after")),
}


@pytest.mark.parametrize("stage", ["advertise", "share", "mask", "confirm", "unmask"])
def test_without_the_folder_a_lost_save_gets_a_second_answer(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: a new process that remembers nothing answers every stage again."""
    monkeypatch.setattr(client_module, "AnsweredFolder", in_memory)
    answered = Server(Plan(lost_save=stage), 1 / 6).play().answered
    assert {answered[i, stage] for i in HONEST} == {2}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_client_without_one_check_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    *changed, telling_plan = MUTANTS[name]
    monkeypatch.setattr(*changed)
    if name == "graph and threshold":
        # The parameters refuse a threshold of half of the holders by themselves.
        monkeypatch.setattr(GraphParameters, "__post_init__", unchecked)
    # In another order than their own: plans that catch a client are neighbors there, and may all come last.
    telling, games = (list(itertools.product(each, (1 / 6, 2 / 6))) for each in ([telling_plan], PLANS))
    random.Random(0).shuffle(games)
    # Who witnesses is drawn anew in each game. A client that answers every copy is caught in one of all games
    # with odds of a half, so that 30 times as many miss it with odds of 1e-9; in one of 25 by its own lie.
    played = (Server(*game).play().violations() for game in 100 * telling + 30 * games)
    assert any(played)
