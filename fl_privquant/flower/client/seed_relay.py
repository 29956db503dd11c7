"""The client's side of correlated noise: it receives one seed of the round before, and hands its own over.

One round ahead, a client is asked for a public key (:func:`answer_key_request`), and keeps the private key in
its state. The train message then brings the seed of a client of the round before, sealed to that key, and the
public key of a client of the next round, to which this client seals its own seed. The private key is erased
from the state before the seed is used, and a client's own seed is drawn anew for each update. So whatever is
lost in a restart, no seed is used twice: without the key a client takes no noise off, which costs accuracy
only.

If the receiver of its seed is lost, a client is asked for the seed (:func:`answer_seed_request`), so that
the server takes the noise off. Only for this it keeps its own seed, until it answers or takes part again, and
only if the noise was planned for that
(:attr:`~fl_privquant.mechanisms.handed_noise.HandedNoise.num_opened`).

Where codes are not masked (:class:`~fl_privquant.accounting.SimulatedSum`), seeds are not sealed either: the
local view counts private noise alone.
"""

from __future__ import annotations

from dataclasses import replace
from logging import WARNING
from typing import Final

from flwr.app import ConfigRecord, Context

from fl_privquant.codec.update import UpdateCodec
from fl_privquant.errors import MISSING, InvalidSpecError, SecureAggregationError
from fl_privquant.flower._flower_internals import log
from fl_privquant.flower._messages.protocol import RelayedSeed
from fl_privquant.mechanisms.additive.correlated_gaussian import SEED_BYTES, draw_seed
from fl_privquant.mechanisms.handed_noise import NoiseSeeds
from fl_privquant.sampling.stream import Randomness
from fl_privquant.secagg.crypto.sealed_seeds import make_key, open_seed, seal_seed

_STATE: Final = "privquant-noise-key"
_OWN_SEED: Final = "privquant-noise-seed"
_ROUND: Final = "round"
_KEY: Final = "key"


def answer_key_request(data: bytes, ctxt: Context) -> bytes:
    """A fresh public key for the round of that number; its private key replaces an earlier one.

    ``data`` is the number of the round as eight bytes.
    """
    number = _read_number(data)
    private, public = make_key()
    ctxt.state[_STATE] = ConfigRecord({_ROUND: number, _KEY: private})
    return public


def answer_seed_request(data: bytes, ctxt: Context) -> bytes:
    """The seed of this client's own noise in the round of that number, once; its receiver is lost.

    ``data`` is the number of the round as eight bytes. The seed is erased from the state, whatever is asked.

    Raises
    ------
    SecureAggregationError
        The client keeps no seed of that round.
    """
    number, kept = _read_number(data), _pop_record(ctxt, _OWN_SEED)
    seed = kept.get(_KEY) if kept is not None and kept.get(_ROUND) == number else None
    if not isinstance(seed, bytes):
        raise SecureAggregationError(f"noise seed: none is kept of round {number}")
    return seed


def _read_number(data: bytes) -> int:
    if len(data) != 8:
        raise SecureAggregationError(f"noise seed: a round's number of {len(data)} bytes, expected 8")
    return int.from_bytes(data, "little")


def _pop_record(ctxt: Context, name: str) -> ConfigRecord | None:
    """A record of the state, which is erased from it; None if there is none."""
    kept = ctxt.state.get(name)
    if not isinstance(kept, ConfigRecord):
        return None
    del ctxt.state[name]
    return kept


def prepare_codec(
    codec: UpdateCodec, relayed: RelayedSeed, masked: bool, server_round: int, ctxt: Context, rng: Randomness
) -> tuple[UpdateCodec, bytes]:
    """The codec that adds and takes off handed noise, for one update, and what goes to the next round.

    Parameters
    ----------
    codec
        The codec of the request.
    relayed
        What the request says of seeds.
    masked
        Whether codes are masked, and seeds sealed.
    server_round, ctxt
        The round, and the context with the client's state.
    rng
        The stream that this client's seed is drawn from.

    Raises
    ------
    InvalidSpecError
        The round is outside the run that noise was planned for, or the request asks for a seed in clear.
    """
    mechanism, terms = codec.mechanism, codec.mechanism.handed
    if terms is None:
        return codec, b""
    if not 1 <= server_round <= terms.rounds:
        raise InvalidSpecError(
            "round", server_round, f"is outside the {terms.rounds} rounds that noise is correlated over"
        )
    previous = _take_seed(relayed.sealed, masked, server_round, ctxt)
    own = draw_seed(rng)
    _pop_record(ctxt, _OWN_SEED)
    outgoing = b""
    if relayed.receiver is not None:
        if masked:
            outgoing = seal_seed(own, relayed.receiver)
            if terms.num_opened:
                ctxt.state[_OWN_SEED] = ConfigRecord({_ROUND: server_round, _KEY: own})
        elif relayed.receiver == b"":
            outgoing = own
        else:
            raise InvalidSpecError(
                "noise seed", MISSING, "a key for a seed that is not sealed, as codes are not masked"
            )
    bound = mechanism.with_seeds(NoiseSeeds(own, previous))
    return replace(codec, encoding=codec.encoding.with_mechanism(bound)), outgoing


def _take_seed(sealed: bytes | None, masked: bool, server_round: int, ctxt: Context) -> bytes | None:
    """The seed that was handed over to this client; its key is erased. None if there is none."""
    kept = _pop_record(ctxt, _STATE)
    if sealed is None:
        return None
    seed = sealed
    if masked:
        if kept is None or kept[_ROUND] != server_round:
            # Not an error: a client that lost its state takes part all the same.
            log(WARNING, "PrivQuantMod: the key for handed noise is lost; none of it is taken off")
            return None
        key = kept[_KEY]
        try:
            seed = open_seed(sealed, key if isinstance(key, bytes) else b"")
        except SecureAggregationError as error:
            log(WARNING, "PrivQuantMod: %s; no handed noise is taken off", error)
            return None
    if len(seed) != SEED_BYTES:
        # Not an error: a hostile client of the round before must not keep this one out of the sum.
        log(WARNING, "PrivQuantMod: a seed of %d bytes is not used, expected %d", len(seed), SEED_BYTES)
        return None
    return seed
