"""Gradient inversion: what a server can read off one update, without privacy and with it.

    python -m simulations.runner.inversion --output outputs/inversion.png

A client takes one gradient step of softmax regression on a single image x of scikit-learn's digits. With p
the predicted probabilities and y the true class, row c of the weights' gradient is (p_c - [c = y]) x and
that of the bias is p_c - [c = y]: their ratio *is* the image. No optimization is needed, only a division;
over all classes by least squares, x = sum of g_c w_c / sum of g_c^2, which errs least where rows are noisy.

The same attack is then made on the update as the server gets it from each mechanism: clipped, encoded by the
real encoder, decoded. A second row averages the updates of many rounds in which the client sends the same
update: it shows how many rounds the noise withstands, which is what composition counts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from sklearn.datasets import load_digits

import fl_privquant as pq
from fl_privquant._array_types import Floats
from fl_privquant.accounting import PrivacyStatement, Release, Unit, round_statement
from fl_privquant.cli import options, program
from fl_privquant.mechanisms.base import Mechanism
from fl_privquant.plotting import import_pyplot, save_figure

_CLASSES, _PIXELS = 10, 64
_IMAGES = 1797
_ROUNDS = (1, 30)


def compute_gradient(image: Floats, label: int, weights: Floats, bias: Floats) -> tuple[Floats, Floats]:
    """Gradients of the cross entropy of one image: (10, 64) of the weights and (10,) of the bias."""
    scores = weights @ image + bias
    chances = np.exp(scores - scores.max())
    chances /= chances.sum()
    chances[label] -= 1.0
    return np.outer(chances, image), chances


def reconstruct(weight_gradient: Floats, bias_gradient: Floats) -> Floats:
    """The image that the two gradients of one example belong to, by least squares; exact without noise."""
    return np.asarray(bias_gradient @ weight_gradient / max(float(bias_gradient @ bias_gradient), 1e-12))


def simulate_received(update: Floats, mechanism: Mechanism, clip: float, rounds: int, seed: int) -> Floats:
    """The update as the server knows it after the client has sent it in some rounds."""
    total = np.zeros_like(update)
    for number in range(rounds):
        stream = pq.RandomStream.seeded(seed, round=number)
        total += mechanism.decode(mechanism.encode(update, clip=clip, rng=stream), clip=clip)
    return total / rounds


def correlation(reconstructed: Floats, image: Floats) -> float:
    """Correlation of a reconstruction with the image: 1 is all of it, 0 is nothing."""
    return float(np.corrcoef(reconstructed, image)[0, 1]) if reconstructed.std() > 0.0 else 0.0


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def draw(
    output: Annotated[
        Path,
        typer.Option(
            callback=options.check_picture_path, help="Write the picture to this file: PNG, PDF or SVG."
        ),
    ] = Path("outputs/inversion.png"),
    image: Annotated[int, typer.Option(min=0, max=_IMAGES - 1, help="Which of the digits.")] = 7,
    seed: Annotated[int, typer.Option(min=0, help="Addresses the randomness of the encoders.")] = 0,
) -> None:
    """Draw an image, and what is read off the updates of several mechanisms."""
    digits = load_digits()
    pixels = digits.data[image] / 16.0
    label = int(digits.target[image])
    weights, bias = np.zeros((_CLASSES, _PIXELS)), np.zeros(_CLASSES)
    update = np.concatenate([part.ravel() for part in compute_gradient(pixels, label, weights, bias)])
    clip = float(np.abs(update).max())
    shown: list[tuple[str, Mechanism]] = [
        ("none", pq.design("none")),
        *(
            (f"optm, 2 bits\n{mechanism.statement.figures}\n{mechanism.statement.meaning}", mechanism)
            for mechanism in (pq.design("optm", epsilon=epsilon, bits=2) for epsilon in (8.0, 1.0))
        ),
    ]
    figure, axes = import_pyplot().subplots(
        len(_ROUNDS), len(shown) + 1, figsize=(9.2, 5.4), layout="constrained", squeeze=False
    )
    for row, rounds in zip(axes, _ROUNDS, strict=True):
        row[0].imshow(pixels.reshape(8, 8), cmap="gray_r", vmin=0.0, vmax=1.0)
        row[0].set_title("training image", fontsize=9)
        row[0].set_ylabel(f"{rounds} round{'' if rounds == 1 else 's'}", fontsize=10)
        for axis, (name, mechanism) in zip(row[1:], shown, strict=True):
            seen = simulate_received(update, mechanism, clip, rounds, seed)
            reconstructed = reconstruct(
                seen[: _CLASSES * _PIXELS].reshape(_CLASSES, _PIXELS), seen[_CLASSES * _PIXELS :]
            )
            likeness = correlation(reconstructed, pixels)
            # Each picture has a grey scale of its own, as an attacker would choose it.
            axis.imshow(reconstructed.reshape(8, 8), cmap="gray_r")
            axis.set_title(f"{name}\ncorrelation {likeness:.2f}", fontsize=9)
            print(f"{rounds:3d} rounds, {mechanism!r}: correlation {likeness:.4f}")
    for axis in axes.ravel():
        axis.set(xticks=[], yticks=[])
    figure.suptitle(
        f"What the server reads off one client's update ({PrivacyStatement.heading(Unit.COORDINATE)})",
        fontsize=11,
    )
    save_figure(figure, output)
    for _, mechanism in shown[1:]:
        print(f"{mechanism.name}: {round_statement(Release(mechanism, update.size), 1e-5)}")
    print(f"drawn to {output}")


def main() -> None:
    """Run the command; an error is a message and exit code 2, never a traceback."""
    program.run(app)


if __name__ == "__main__":
    main()
