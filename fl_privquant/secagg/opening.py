"""Opening a secret from shares of which some are wrong, with a commitment as the final judge."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from fl_privquant.errors import InvalidUpdateError
from fl_privquant.secagg import shamir


def correctable(num_shares: int, threshold: int) -> int:
    """How many of these shares may be wrong such that the secret can still be opened.

    Of r shares beyond the threshold the code corrects floor(r / 2). Where r is odd, each share in turn is
    left out, and the commitment tells when it was a wrong one: one more.

    >>> [correctable(shares, threshold=4) for shares in (4, 5, 6, 7)]
    [0, 1, 1, 2]
    """
    return (num_shares - threshold + 1) // 2


def open_secret(
    shares: Mapping[int, bytes],
    threshold: int,
    is_right: Callable[[bytearray], bool],
    suspects: Collection[int] = (),
) -> tuple[bytearray, list[int]] | None:
    """The secret and the points of wrong shares; None if more are wrong than :func:`correctable` says.

    Parameters
    ----------
    shares
        The shares received, by point: at least ``threshold``, each as :func:`~shamir.are_shares` wants it.
    is_right
        Whether these 32 bytes are what the owner committed to. Nothing else is ever returned.
    suspects
        Points to leave out first, where one has to be guessed: those whose other shares were wrong.
    """
    secret = _combined(shares, is_right)
    if secret is not None:
        return secret, []
    left_out: list[int | None] = [None]
    if (len(shares) - threshold) % 2:
        left_out += sorted(shares, key=lambda point: point not in suspects)
    for without in left_out:
        kept = {point: share for point, share in shares.items() if point != without}
        for point in shamir.find_wrong(list(kept), _rows(kept), threshold) or ():
            del kept[point]
        if len(kept) < len(shares):
            secret = _combined(kept, is_right)
            if secret is not None:
                return secret, sorted(shares.keys() - kept.keys())
    return None


def _combined(shares: Mapping[int, bytes], is_right: Callable[[bytearray], bool]) -> bytearray | None:
    """The secret on which all these shares agree, if it is the right one."""
    try:
        secret = shamir.combine(list(shares), _rows(shares))
    except InvalidUpdateError:
        return None
    return secret if is_right(secret) else None


def _rows(shares: Mapping[int, bytes]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(shares.values()), dtype=np.uint8).reshape(-1, shamir.SHARE_BYTES)
