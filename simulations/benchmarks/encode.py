"""How fast an update is encoded, as ratios to other encoders on the same machine, and with how much memory.

Times are medians of several calls, interleaved in one process. Their ratio is reported, because absolute
times say more about the machine than about the code.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import fl_privquant as pq
from fl_privquant.law.codebook import Codebook
from fl_privquant.law.law import Law
from fl_privquant.law.table import CertifiedTable
from fl_privquant.sampling.kernel import Sampler
from simulations.benchmarks.measure import Call, Row, at_most, median_seconds, output_of, resident_bytes

COORDINATES = 10**7
MEMORY_COORDINATES = 10**8
LEVELS = (4, 16)
ROUNDS = 7
CODEBOOK_COORDINATES, CODEBOOK_BITS, CODEBOOK_ROUNDS = 10**5, 10, 3
# The other encoders need n x m temporary numbers; blocks keep these in the cache, to their advantage.
BLOCK = 1 << 16


def run() -> list[Row]:
    """Every measurement of encoding beside its target."""
    return [*(row for levels in LEVELS for row in _throughput(levels)), _shares(), _codebook(), _memory()]


def dithered_table(levels: int) -> CertifiedTable:
    """Unbiased randomized response on a uniform lattice: levels - 1 pieces, every output in each row."""
    keep = 0.5
    values = np.linspace(-1.0, 1.0, levels) / keep
    law = Law.from_knots(values, values * keep, keep * np.eye(levels) + (1.0 - keep) / levels)
    return CertifiedTable.from_law(law, Codebook.from_values(values), law.epsilon + 1e-6)


def _throughput(levels: int) -> list[Row]:
    table = dithered_table(levels)
    sampler = Sampler(table)
    generator = np.random.default_rng(0)
    update = generator.normal(0.0, 0.3, COORDINATES).astype(np.float32)
    uniforms = np.empty(COORDINATES)
    encode: Call = lambda: sampler.encode(update)  # noqa: E731
    fill: Call = lambda: generator.random(out=uniforms)  # noqa: E731
    own, filled = median_seconds([encode, fill], ROUNDS)
    rows = [Row(f"m = {levels}: speed against numpy's fill of as many float64", filled / own, 0.5)]
    others: dict[str, Call] = {"numpy": lambda: numpy_encode(table.law, update, generator)}
    torch_encode = _torch_encoder(table.law, update)
    if torch_encode is not None:
        others["torch"] = torch_encode
    for name, other in others.items():
        own, theirs = median_seconds([encode, other], 3)
        rows.append(Row(f"m = {levels}: speed against the same law in {name}", theirs / own, 8.0))
    return rows


def _shares() -> Row:
    """Rounded Gaussian noise, whose numbers take two words each, against a table of four levels."""
    mechanism = pq.design("rounded_gaussian", epsilon=1.0, deviation=2.0)
    sampler = Sampler(dithered_table(4))
    update = np.random.default_rng(0).normal(0.0, 0.3, COORDINATES).astype(np.float32)
    own, table = median_seconds([lambda: mechanism.encode(update), lambda: sampler.encode(update)], ROUNDS)
    return Row("rounded_gaussian: speed against a table of m = 4", table / own, 0.5)


def _codebook() -> Row:
    """A whole update as an index, over numpy's normal numbers of as many codewords, in single precision.

    The target is 2 s of a core on which numpy draws these numbers in 1.3 s.
    """
    levels, dimension = 1 << CODEBOOK_BITS, CODEBOOK_COORDINATES
    mechanism = pq.design("shared_codebook", epsilon=4.0, dimension=dimension, levels=levels)
    generator = np.random.default_rng(0)
    update = generator.normal(0.0, 1.0 / np.sqrt(dimension), dimension)
    codeword = np.empty(dimension, dtype=np.float32)

    def draw() -> None:
        for _ in range(levels):
            generator.standard_normal(dtype=np.float32, out=codeword)

    own, drawn = median_seconds([lambda: mechanism.encode(update), draw], CODEBOOK_ROUNDS)
    name = f"{levels} codewords of {dimension:.0e} coordinates: time over numpy's as many normal numbers"
    return at_most(name, own / drawn, 1.54)


def numpy_encode(law: Law, x: NDArray[np.float32], generator: np.random.Generator) -> NDArray[np.uint8]:
    """Indices drawn with vectorised numpy, the way one would write it first.

    In blocks, and one column of the table at a time, numpy can be brought to about 2.5 times this.
    """
    start_cdf = np.cumsum(law.start_rows, axis=1)[:, :-1]
    end_cdf = np.cumsum(law.end_rows, axis=1)[:, :-1]
    lengths = law.ends - law.starts
    out = np.empty(x.size, dtype=np.uint8)
    for begin in range(0, x.size, BLOCK):
        inputs = np.clip(x[begin : begin + BLOCK], -1.0, 1.0)
        piece = np.clip(np.searchsorted(law.starts, inputs, side="right") - 1, 0, None)
        share = (inputs - law.starts[piece]) / lengths[piece]
        at_end = generator.random(inputs.size) < share
        cdf = np.where(at_end[:, None], end_cdf[piece], start_cdf[piece])
        out[begin : begin + BLOCK] = (generator.random(inputs.size)[:, None] >= cdf).sum(axis=1)
    return out


def _torch_encoder(law: Law, update: NDArray[np.float32]) -> Call | None:
    """The same law in torch on one thread; None if torch is not installed."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)
    x = torch.from_numpy(update)
    starts, lengths = torch.from_numpy(law.starts), torch.from_numpy(law.ends - law.starts)
    start_cdf = torch.from_numpy(np.cumsum(law.start_rows, axis=1)[:, :-1].copy())
    end_cdf = torch.from_numpy(np.cumsum(law.end_rows, axis=1)[:, :-1].copy())

    def encode() -> object:
        out = torch.empty(x.numel(), dtype=torch.uint8)
        for begin in range(0, x.numel(), BLOCK):
            inputs = x[begin : begin + BLOCK].double().clamp(-1.0, 1.0)
            piece = (torch.searchsorted(starts, inputs, right=True) - 1).clamp(min=0)
            share = (inputs - starts[piece]) / lengths[piece]
            at_end = torch.rand(inputs.numel(), dtype=torch.float64) < share
            cdf = torch.where(at_end[:, None], end_cdf[piece], start_cdf[piece])
            draw = torch.rand(inputs.numel(), dtype=torch.float64)[:, None]
            out[begin : begin + BLOCK] = (draw >= cdf).sum(dim=1)
        return out

    return encode


def _memory() -> Row:
    # In a new process: a peak cannot be reset, and earlier work may have left memory to reuse.
    code = "from simulations.benchmarks.encode import _extra_megabytes; print(_extra_megabytes())"
    name = f"m = 16: MB beyond input and output, {MEMORY_COORDINATES:.0e} coordinates"
    return at_most(name, float(output_of("-c", code)), 64.0)


def _extra_megabytes() -> float:
    """Peak memory of this process beyond what it held before it encoded, less the output."""
    sampler = Sampler(dithered_table(16))
    # The memory of compiled code and of its compiler is not counted as that of encoding.
    sampler.encode(np.zeros(1 << 17, dtype=np.float32))
    update = np.full(MEMORY_COORDINATES, 0.25, dtype=np.float32)
    before = resident_bytes("VmRSS")
    indices = sampler.encode(update)
    return (resident_bytes("VmHWM") - before - indices.nbytes) / 1e6
