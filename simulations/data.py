"""Data sets: breast cancer and digits come with scikit-learn; MNIST and others from files or the network."""

from __future__ import annotations

import gzip
import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_privquant.errors import InvalidSpecError
from simulations.config import TaskConfig

__all__ = ["Examples", "load_examples"]

_TEST_SHARE = 0.2
_ON_THE_HUB = {"mnist": "ylecun/mnist", "fashion_mnist": "zalando-datasets/fashion_mnist"}


@dataclass(frozen=True)
class Examples:
    """Inputs and labels, split into training and test ones; images as (channels, height, width)."""

    train_x: NDArray[np.float32]
    train_y: NDArray[np.int64]
    test_x: NDArray[np.float32]
    test_y: NDArray[np.int64]

    @property
    def num_classes(self) -> int:
        """Number of labels."""
        return int(max(self.train_y.max(), self.test_y.max())) + 1


@lru_cache(maxsize=4)
def load_examples(task: TaskConfig) -> Examples:
    """The examples of a classification task; the test split is the same in every run."""
    if task.name == "cancer":
        from sklearn.datasets import load_breast_cancer

        data = load_breast_cancer()
        examples = _split(data.data.astype(np.float64), data.target)
        centre, scale = examples.train_x.mean(axis=0), examples.train_x.std(axis=0)
        examples = Examples(
            (examples.train_x - centre) / scale,
            examples.train_y,
            (examples.test_x - centre) / scale,
            examples.test_y,
        )
    elif task.name == "digits":
        from sklearn.datasets import load_digits

        data = load_digits()
        examples = _split(data.images[:, None] / 16.0, data.target)
    elif task.data_root is not None:
        examples = _from_idx(Path(task.data_root))
    else:
        examples = _from_hub(_ON_THE_HUB.get(task.name, task.dataset))
    count = task.max_examples
    return Examples(
        examples.train_x[:count].astype(np.float32),
        examples.train_y[:count].astype(np.int64),
        examples.test_x.astype(np.float32),
        examples.test_y.astype(np.int64),
    )


def _split(x: NDArray[Any], y: NDArray[Any]) -> Examples:
    order = np.random.default_rng(0).permutation(len(y))
    cut = round(_TEST_SHARE * len(y))
    return Examples(x[order[cut:]], y[order[cut:]], x[order[:cut]], y[order[:cut]])


def _from_idx(root: Path) -> Examples:
    parts = []
    for prefix in ("train", "t10k"):
        images = _read_idx(root, f"{prefix}-images-idx3-ubyte") / np.float32(255.0)
        parts += [images[:, None], _read_idx(root, f"{prefix}-labels-idx1-ubyte")]
    return Examples(*parts)


def _read_idx(root: Path, name: str) -> NDArray[Any]:
    for path in (root / f"{name}.gz", root / name):
        if path.exists():
            try:
                blob = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
                rank = struct.unpack(">HBB", blob[:4])[2]
                shape = struct.unpack(f">{rank}I", blob[4 : 4 + 4 * rank])
                return np.frombuffer(blob, np.uint8, offset=4 + 4 * rank).reshape(shape)
            except (OSError, ValueError, struct.error, EOFError) as error:
                raise InvalidSpecError(f"task.data_root: {path} is not an IDX file ({error})") from error
    raise InvalidSpecError(
        f"task.data_root: {root} holds no {name}(.gz); it must hold MNIST's four IDX files"
    )


def _from_hub(dataset: str | None) -> Examples:
    if dataset is None:
        raise InvalidSpecError(
            "task.dataset: give a data set of images of the Hugging Face hub, such as "
            "zalando-datasets/fashion_mnist"
        )
    from datasets import load_dataset

    try:
        examples = load_dataset(dataset)
    except Exception as error:  # the library raises many kinds, for one reason: it cannot be had
        raise InvalidSpecError(
            f"task: {dataset!r} could not be downloaded ({type(error).__name__}: {error}); without a network "
            "give IDX files with task.data_root=DIRECTORY"
        ) from error
    parts: list[NDArray[Any]] = []
    for split in ("train", "test"):
        columns = examples[split].column_names
        image = next(name for name in ("image", "img") if name in columns)
        pictures = (
            np.stack([np.asarray(picture, dtype=np.float32) for picture in examples[split][image]]) / 255.0
        )
        pictures = pictures[:, None] if pictures.ndim == 3 else pictures.transpose(0, 3, 1, 2)
        parts += [pictures, np.asarray(examples[split]["label"])]
    return Examples(*parts)
