"""vqSGD: an update of Euclidean norm at most 1 as one of the 2 d points ± sqrt(d) e_i, at random.

The unit ball lies in the cross-polytope with these corners. So an update x is a weighted mean of them: corner
sign(x_i) e_i has weight |x_i| / sqrt(d), and the remaining weight, 1 - |x|_1 / sqrt(d), is shared equally by
all 2 d corners, which cancel. One corner is drawn with these weights. It takes 1 + log2(d) bits and is an
unbiased estimate.

``vqsgd`` sends that corner. It is *not* private. ``vqsgd_private`` sends it through randomized response
among the 2 d corners: the true one with probability e^epsilon / (e^epsilon + 2 d - 1), else another one,
uniformly. All corners together cancel, so the estimate is the corner times
(e^epsilon + 2 d - 1) / (e^epsilon - 1).

``repeats`` above 1 is the paper's way to reduce the variance: independent draws are averaged. In the private
variant each of them has epsilon / repeats.

Guarantee: ``vqsgd_private``: ``epsilon``-differential privacy of one client round, local view, for any two
updates, certified on the integer chances of the corners. (In the ball no corner's weight reaches 1, so that
the true loss is a little smaller than this bound of the paper.) ``vqsgd``: none, ``epsilon`` is infinite.
Both are unbiased for updates in the ball.
Assumes: nothing about the inputs.
Reference: Gandikota, Kane, Maity, Mazumdar, "vqSGD: Vector Quantized Stochastic Gradient Descent",
AISTATS 2021 (the cross-polytope scheme, and its private version by randomized response).
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from fl_privquant._array_types import Floats
from fl_privquant.mechanisms.registry import register
from fl_privquant.mechanisms.vectors.base import AxisMechanism, PrivateAxisSpec, VectorSpec, respond
from fl_privquant.sampling.stream import Continuation

_SHARES = 1 << 53


class VqsgdMechanism(AxisMechanism, kind="vqsgd"):
    """A corner of the cross-polytope, for updates of norm at most clip; see :class:`AxisMechanism`."""

    private: ClassVar[bool] = False

    @property
    def num_answers(self) -> int:
        return 2 * self.dimension

    @property
    def output_norm(self) -> float:
        return math.sqrt(self.dimension) * self._gain

    def _draw(self, x: Floats, source: Continuation) -> list[int]:
        cumulated = np.cumsum(np.abs(x)) / math.sqrt(x.size)
        return [_draw_corner(x, cumulated, source) for _ in range(self.repeats)]


class PrivateVqsgdMechanism(VqsgdMechanism, kind="vqsgd_private"):
    """The same corner through randomized response; see :class:`AxisMechanism`."""

    private: ClassVar[bool] = True

    def _draw(self, x: Floats, source: Continuation) -> list[int]:
        return [respond(corner, self._weights, source) for corner in super()._draw(x, source)]


register("vqsgd", VectorSpec, 200, "#c77dff")(VqsgdMechanism.of)


register("vqsgd_private", PrivateAxisSpec, 210, "#7b2cbf", plans_for_local=True)(PrivateVqsgdMechanism.of)


def _draw_corner(x: Floats, cumulated: Floats, source: Continuation) -> int:
    """A corner drawn by the cumulated weights of the axes: index 2 i for e_i, 2 i + 1 for its opposite."""
    at = source.below(_SHARES) / _SHARES
    axis = int(np.searchsorted(cumulated, at, side="right"))
    if axis == x.size:
        return source.below(2 * axis)
    return 2 * axis + (1 if x[axis] < 0.0 else 0)
