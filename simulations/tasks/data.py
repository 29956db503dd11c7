"""Data that tasks have by name: functions that give examples.

Breast cancer and digits come with scikit-learn; MNIST and others come from files or the network. The split
into training and test examples is the same in every run. A function's parameters are options of the task,
such as ``task.data_root=DIRECTORY``.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_privquant import _validation
from fl_privquant.errors import MISSING, InvalidSpecError

# The names that task.data may have.
__all__ = ["Examples", "cancer", "digits", "fashion_mnist", "images", "mnist", "shakespeare"]

_TEST_FRACTION = 0.2


@dataclass(frozen=True)
class Examples:
    """Inputs and labels, split into training and test ones.

    Floats become float32, and whole numbers int64, as models take them.

    Parameters
    ----------
    train_x, test_x
        Inputs, one per row; images as (channels, height, width).
    train_y, test_y
        Labels from 0 on, or whatever else the task's loss compares outputs with.
    users
        For each training example the number of the user that it belongs to, from 0 on; None where the users
        are not known.
    """

    train_x: NDArray[Any]
    train_y: NDArray[Any]
    test_x: NDArray[Any]
    test_y: NDArray[Any]
    users: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None:
                whole = np.issubdtype(np.asarray(value).dtype, np.integer)
                kind = np.int64 if whole else np.float32
                object.__setattr__(self, field.name, np.ascontiguousarray(value, dtype=kind))
        for x, y, split in (
            (self.train_x, self.train_y, "training"),
            (self.test_x, self.test_y, "test"),
        ):
            if len(x) != len(y) or len(y) == 0:
                raise InvalidSpecError(
                    "task.data", MISSING, f"{len(x)} inputs and {len(y)} labels of {split} examples"
                )
        if self.users is not None and self.users.shape != (len(self.train_y),):
            raise InvalidSpecError(
                "task.data",
                MISSING,
                f"users of shape {self.users.shape} for {len(self.train_y)} training examples",
            )

    @property
    def labeled(self) -> bool:
        """Whether each example has one label, a whole number."""
        return self.train_y.ndim == 1 and np.issubdtype(self.train_y.dtype, np.integer)

    @property
    def num_classes(self) -> int:
        """Number of labels; for other targets the number of coordinates of one."""
        if not self.labeled:
            return int(np.prod(self.train_y.shape[1:]))
        return int(max(self.train_y.max(), self.test_y.max())) + 1

    def first(self, count: int | None, num_tests: int | None = None) -> Examples:
        """The same data with at most ``count`` training and ``num_tests`` test examples."""
        return Examples(
            self.train_x[:count],
            self.train_y[:count],
            self.test_x[:num_tests],
            self.test_y[:num_tests],
            None if self.users is None else self.users[:count],
        )

    def with_validation(self, count: int) -> Examples:
        """The same data with the last ``count`` training examples in place of the test examples."""
        total = len(self.train_y)
        if count >= total:
            raise InvalidSpecError(
                "task.validation_examples",
                count,
                f"of {total} training examples leaves none to train on",
                "give fewer",
            )
        cut = total - count
        return Examples(
            self.train_x[:cut],
            self.train_y[:cut],
            self.train_x[cut:],
            self.train_y[cut:],
            None if self.users is None else self.users[:cut],
        )


def cancer() -> Examples:
    """Breast cancer of scikit-learn: 30 features, scaled to unit variance, two labels."""
    from sklearn.datasets import load_breast_cancer

    loaded = load_breast_cancer()
    train_x, train_y, test_x, test_y = _split(loaded.data.astype(np.float64), loaded.target)
    center, scale = train_x.mean(axis=0), train_x.std(axis=0)
    return Examples((train_x - center) / scale, train_y, (test_x - center) / scale, test_y)


def digits() -> Examples:
    """Digits of scikit-learn: images of 8 x 8, ten labels."""
    from sklearn.datasets import load_digits

    loaded = load_digits()
    return Examples(*_split(loaded.images[:, None] / 16.0, loaded.target))


def mnist(data_root: str | None = None) -> Examples:
    """MNIST: images of 28 x 28, ten labels.

    Parameters
    ----------
    data_root
        Directory of its four IDX files; null downloads.
    """
    return images("ylecun/mnist") if data_root is None else _load_idx(Path(data_root))


def fashion_mnist(data_root: str | None = None) -> Examples:
    """Fashion-MNIST: images of 28 x 28, ten labels; ``data_root`` is as for :func:`mnist`."""
    name = "zalando-datasets/fashion_mnist"
    return images(name) if data_root is None else _load_idx(Path(data_root))


def shakespeare(data_root: str | None = None, length: int = 40, stride: int = 10) -> Examples:
    """Roles of Shakespeare's plays: texts of ``length`` characters, and which character comes next.

    Each role is a user. The last tenth of each role is test data.

    Parameters
    ----------
    data_root
        Directory of ``roles.jsonl.gz``: one JSON object per line, with the keys ``role`` and ``text``.
    length
        Characters of an input.
    stride
        Characters from the beginning of one input to that of the next.
    """
    if data_root is None:
        raise InvalidSpecError(
            "task.data_root", MISSING, "missing", "give the directory that holds roles.jsonl.gz"
        )
    path = Path(data_root) / "roles.jsonl.gz"
    _validation.check_integer("task.length", length, 1)
    _validation.check_integer("task.stride", stride, 1)
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            texts = [str(json.loads(line)["text"]) for line in file]
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise InvalidSpecError("task.data_root", path, f"holds no roles ({error})") from error
    places = {character: place for place, character in enumerate(sorted(set("".join(texts))))}
    parts: dict[bool, list[tuple[NDArray[np.int64], NDArray[np.int64], int]]] = {True: [], False: []}
    for user, text in enumerate(texts):
        codes = np.array([places[character] for character in text])
        cut = len(codes) - max(len(codes) // 10, length + 1)
        for training, piece in ((True, codes[:cut]), (False, codes[cut:])):
            if len(piece) > length:
                windows = np.lib.stride_tricks.sliding_window_view(piece, length + 1)[::stride]
                parts[training].append((windows[:, :-1], windows[:, -1], user))
    train, test = parts[True], parts[False]
    return Examples(
        np.concatenate([x for x, _, _ in train]),
        np.concatenate([y for _, y, _ in train]),
        np.concatenate([x for x, _, _ in test]),
        np.concatenate([y for _, y, _ in test]),
        users=np.concatenate([np.full(len(y), user) for _, y, user in train]),
    )


def images(dataset: str) -> Examples:
    """Any data set of labeled images of the Hugging Face hub.

    Parameters
    ----------
    dataset
        Its name, such as ``zalando-datasets/fashion_mnist``.
    """
    from datasets import load_dataset

    try:
        examples = load_dataset(dataset)
    except Exception as error:  # the library raises many kinds of errors where a download fails
        raise InvalidSpecError(
            "task",
            dataset,
            f"could not be downloaded ({type(error).__name__}: {error})",
            "without a network give IDX files with task.data_root=DIRECTORY",
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


def _split(x: NDArray[Any], y: NDArray[Any]) -> list[NDArray[Any]]:
    """Training inputs and labels, test inputs and labels."""
    order = np.random.default_rng(0).permutation(len(y))
    cut = round(_TEST_FRACTION * len(y))
    return [x[order[cut:]], y[order[cut:]], x[order[:cut]], y[order[:cut]]]


def _load_idx(root: Path) -> Examples:
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
                raise InvalidSpecError("task.data_root", path, f"is not an IDX file ({error})") from error
    raise InvalidSpecError(
        "task.data_root", root, f"holds no {name}(.gz)", "it must hold MNIST's four IDX files"
    )
