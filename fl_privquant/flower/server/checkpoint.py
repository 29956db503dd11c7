"""Checkpoints of the server: a run that was killed goes on where it stopped, and forgets no release.

One file holds everything together: the model, the number of the last finished round, the state of every
strategy of the stack (momenta, the privacy ledger), and the metrics so far. It is replaced atomically, so
that it is always complete. It is written twice a round:

1. *before* the round's messages are sent, with the release already in the ledger. If the run dies while
   clients train, the round is asked for again, and both releases are counted. So epsilon is never
   understated; at worst, a release that did not happen is counted.
2. after the round's replies have been aggregated.

While a run lasts, its process holds a lock beside the file. A second process on the same file is refused,
because each would overwrite what the other has counted. A kill frees the lock.

No pickle: arrays are stored as ``npz`` without it, everything else as JSON.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Iterable, Mapping
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, Final

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from fl_privquant import _validation
from fl_privquant._files import file_lock, remove_leftovers, replace_file
from fl_privquant.errors import (
    MISSING,
    InvalidSpecError,
    PrivQuantError,
    describe_other_version,
    one_line,
    pluralize,
)
from fl_privquant.flower._flower_internals import log
from fl_privquant.flower.server.strategy_wrapper import Aggregate, ResumableRun, strategy_stack

_VERSION: Final = 3
_JSON_ENTRY: Final = "checkpoint.json"
# Types of attributes that are settings of a strategy, rather than what it has learned.
_SETTINGS: Final = (bool, int, float, str)
_PLAIN: Final = frozenset((int, float, str, bool, type(None)))
_METRICS: Final = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")


class CheckpointError(PrivQuantError):
    """A checkpoint cannot be written or read."""


@_validation.check_argument_names
class CheckpointStrategy(ResumableRun):
    """Wraps the outermost strategy: saves a run after every round, and resumes it from the file.

    ``start(num_rounds=n)`` runs the rounds up to number n that are not finished yet, and holds ``path.lock``
    meanwhile. Delete the file to begin anew. If the budget runs out, the run ends with a
    :class:`~fl_privquant.flower.StoppedResult`; with a larger budget it goes on from the file.

    Of each strategy of the stack, from the outermost along ``.strategy``, the file holds what its
    ``checkpoint_state()`` returns, which ``restore_state()`` takes back. Of a strategy without these methods
    it holds the attributes: numbers, texts, arrays, lists and dicts of arrays, ArrayRecords. A strategy with
    any other attribute that could be state is refused when it is wrapped.

    Parameters
    ----------
    strategy
        The strategy to save and to delegate to.
    path
        The file.
    on_saved
        Called with the number of a round once its model is in the file: a run that is killed from then on
        goes on after this round. Errors that it raises end the run.

    Examples
    --------
    >>> from flwr.serverapp.strategy import FedAvgM
    >>> strategy = CheckpointStrategy(FedAvgM(server_momentum=0.9), "outputs/run.checkpoint")
    """

    def __init__(
        self, strategy: Strategy, path: str | Path, on_saved: Callable[[int], object] | None = None
    ) -> None:
        super().__init__(strategy)
        self.path = Path(path)
        self._on_saved = on_saved
        for wrapped in strategy_stack(strategy):
            _collect_state(wrapped)

    @property
    def finished_rounds(self) -> int:
        """Number of the last round that was finished according to the file; 0 without a file."""
        return _read_finished_round(self.path, _read(self.path)[0]) if self.path.exists() else 0

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *args: Any, **keywords: Any) -> Result:
        """Run the rounds that are not done yet, from the checkpoint if there is one."""
        with file_lock(self.path.with_name(f"{self.path.name}.lock"), f"checkpoint {self.path}"):
            remove_leftovers(self.path)
            return super().start(grid, initial_arrays, *args, **keywords)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Delegate, and save what is about to be released before it is sent."""
        # Taken before the draw, so that the same nodes are sampled if the round has to be asked for again.
        random_state = random.getstate()
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self._save(self.rounds_before + server_round - 1, random_state)
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        """Delegate, and save the new model with everything that belongs to it."""
        aggregated = super().aggregate_train(server_round, replies)
        self._save(self.rounds_before + server_round, random.getstate())
        if self._on_saved is not None:
            self._on_saved(self.rounds_before + server_round)
        return aggregated

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Delegate, and save the metrics."""
        metrics = super().aggregate_evaluate(server_round, replies)
        if metrics is not None:
            self._save(self.rounds_before + server_round, random.getstate())
        return metrics

    def summary(self) -> None:
        """Log the file and the settings of the wrapped strategy."""
        log(INFO, "\t├──> Checkpoint: %s (%s done)", self.path, pluralize(self.finished_rounds, "round"))
        super().summary()

    def resume(self, initial_arrays: ArrayRecord) -> None:
        """Set what the loop begins with: the content of the file, if there is one."""
        super().resume(initial_arrays)
        if not self.path.exists():
            return
        content, stored = _read(self.path)
        try:
            self._resume_from(content, stored)
        except PrivQuantError:
            raise
        except Exception as error:  # of whatever kind: the file is not what was written
            raise _damaged_error(self.path, error) from error

    def _resume_from(self, content: dict[str, Any], stored: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what a checkpoint holds."""
        finished = _read_finished_round(self.path, content)
        saved = content["strategies"]
        stack = list(strategy_stack(self.strategy))
        saved_names = [strategy["class"] for strategy in saved]
        names = [type(strategy).__name__ for strategy in stack]
        if saved_names != names:
            raise CheckpointError(
                f"{self.path}: saved by strategies {one_line(saved_names)}, not by {names}; delete the file "
                f"to begin anew"
            )
        arrays = _decode(content["model"], stored)
        if not isinstance(arrays, ArrayRecord) or list(arrays) != list(self.result.arrays):
            raise CheckpointError(f"{self.path}: its model has other arrays than the initial one")
        for strategy, state in zip(stack, saved, strict=True):
            _restore_states(strategy, _decode(state["state"], stored))
        metrics = {
            name: {int(number): MetricRecord(record) for number, record in content["metrics"][name].items()}
            for name in _METRICS
        }
        version, words, gauss = content["random_state"]
        random.setstate((version, tuple(words), gauss))
        self.result, self.rounds_before = Result(arrays, **metrics), finished
        log(INFO, "Checkpoint: going on after round %d of %s", finished, self.path)

    def _save(self, finished_round: int, random_state: tuple[Any, ...]) -> None:
        stored: dict[str, NDArray[Any]] = {}
        content = {
            "version": _VERSION,
            "round": finished_round,
            "model": _encode(self.result.arrays, stored),
            "strategies": [
                {"class": type(strategy).__name__, "state": _encode(_collect_state(strategy), stored)}
                for strategy in strategy_stack(self.strategy)
            ],
            "metrics": {
                name: {number: dict(record) for number, record in getattr(self.result, name).items()}
                for name in _METRICS
            },
            # Flower's strategies sample nodes with it: a resumed run must not repeat earlier draws.
            "random_state": random_state,
        }
        stored[_JSON_ENTRY] = np.frombuffer(json.dumps(content).encode(), dtype=np.uint8)
        _write(self.path, stored)


def _collect_state(strategy: Strategy) -> dict[str, Any]:
    own = getattr(strategy, "checkpoint_state", None)
    if own is not None:
        return dict(own())
    state = {
        name: value
        for name, value in vars(strategy).items()
        # Functions are settings that the program gives again; wrapped strategies are saved themselves.
        if not callable(value) and not isinstance(value, Strategy)
    }
    for name, value in state.items():
        try:
            _encode(value, {})
        except InvalidSpecError as error:
            raise InvalidSpecError(
                f"{type(strategy).__name__}.{name}",
                error.value,
                f"{error.problem}, which a checkpoint cannot keep",
                "give the strategy checkpoint_state() and restore_state(), or run without checkpoints",
            ) from None
    return state


def _restore_states(strategy: Strategy, state: dict[str, Any]) -> None:
    own = getattr(strategy, "restore_state", None)
    if own is not None:
        own(state)
        return
    for name, value in state.items():
        current = getattr(strategy, name, value)
        if isinstance(current, _SETTINGS) and current != value:
            kind = type(strategy).__name__
            log(WARNING, "Checkpoint: %s.%s is %r from the file, not %r", kind, name, value, current)
        setattr(strategy, name, value)


def _encode(value: Any, stored: dict[str, NDArray[Any]]) -> Any:
    """The value as JSON, with its arrays put into ``stored``; tagged so that it comes back as what it was."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise InvalidSpecError("state", MISSING, f"an array of {array.dtype}")
        name = f"array-{len(stored)}"
        stored[name] = array
        return {"array" if isinstance(value, np.ndarray) else "scalar": name}
    if isinstance(value, bytes):
        name = f"array-{len(stored)}"
        stored[name] = np.frombuffer(value, dtype=np.uint8)
        return {"bytes": name}
    if isinstance(value, ArrayRecord):
        return {"record": [[name, _encode(array.numpy(), stored)] for name, array in value.items()]}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        # JSON takes plain items, such as the ids of all nodes, as they are.
        all_plain = _PLAIN.issuperset(map(type, value))
        return {kind: list(value) if all_plain else [_encode(item, stored) for item in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": [[key, _encode(item, stored)] for key, item in value.items()]}
    raise InvalidSpecError("state", value, "is no number, text, array, list or dictionary")


def _decode(value: Any, stored: Mapping[str, NDArray[Any]]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "array":
        return stored[content]
    if kind == "scalar":
        return stored[content][()]
    if kind == "bytes":
        return stored[content].tobytes()
    if kind == "record":
        return ArrayRecord({name: Array(np.asarray(_decode(array, stored))) for name, array in content})
    if kind == "list":
        return [_decode(item, stored) for item in content]
    if kind == "tuple":
        return tuple(_decode(item, stored) for item in content)
    return {key: _decode(item, stored) for key, item in content}


def _write(path: Path, stored: dict[str, NDArray[Any]]) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **stored)
    try:
        # It is on disk before clients are asked: otherwise a power failure could undo what was counted.
        replace_file(path, lambda file: file.write_bytes(buffer.getbuffer()))
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be written ({error.strerror or error}), so no client may be asked; free some "
            f"space, or make it writable, and start again: the run goes on from its last checkpoint"
        ) from error


def _read(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            stored = {name: file[name] for name in file.files}
        content = json.loads(stored.pop(_JSON_ENTRY).tobytes())
    except Exception as error:  # of whatever kind: zip files, numpy's headers and JSON have many
        raise _damaged_error(path, error) from error
    if not isinstance(content, dict) or content.get("version") != _VERSION:
        version = content.get("version") if isinstance(content, dict) else None
        advice = "finish the run with the fl-privquant that began it, or delete the file to begin anew"
        raise CheckpointError(describe_other_version(str(path), version, _VERSION, advice))
    return content, stored


def _read_finished_round(path: Path, content: Mapping[str, Any]) -> int:
    number = content.get("round")
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 63:
        raise _damaged_error(path, f"round {one_line(number, 40)}")
    return number


def _damaged_error(path: Path, reason: object) -> CheckpointError:
    return CheckpointError(f"{path}: not a checkpoint ({one_line(reason)}); delete it to begin anew")
