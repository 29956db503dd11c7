"""PyTorch models trained on private records: the client's side of a plan that protects each record.

>>> import fl_privquant as pq
>>> target = pq.Target(
...     epsilon=2.0, rounds=300, num_clients=10, unit="record", records=10_000, sampling_rate=0.05
... )
>>> plan = target.plan(dimension=7850)

In the client app, with ``PrivQuantMod(**plan.client_limits, secure_aggregation=True)``::

    @app.train()
    def train(message: Message, context: Context) -> Message:
        images, labels = load_data(context)
        update = record_update(message, Net(), nn.functional.cross_entropy, images, labels)
        return Message(RecordDict({"arrays": update}), reply_to=message)

This is the only module of the package that imports torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Message
from torch import Tensor, nn

from fl_privquant import _validation
from fl_privquant._array_types import Floats
from fl_privquant.errors import MISSING, InvalidSpecError
from fl_privquant.flower.client.record_update import RecordUpdate, RecordWork, UnfitForRecordsError
from fl_privquant.sampling.stream import RandomStream

__all__ = ["record_update"]

# Memory for the gradients of a microbatch and for what its layers give, of which torch holds about this many
# copies at a time. More is not faster, as they then leave the processor's cache.
_MEMORY_BYTES = 96 << 20
_COPIES = 4
# These compute with statistics of the whole batch, so that a record has no gradient of its own.
_MIXING = (nn.modules.batchnorm._BatchNorm,)

Loss = Callable[[Tensor, Tensor], Tensor]
ClipFactors = Callable[[Floats], Floats]


def record_update(
    message: Message,
    model: nn.Module,
    loss: Loss,
    inputs: Tensor,
    targets: Tensor,
    *,
    per_layer: bool = False,
    microbatch: int | None = None,
    rng: RandomStream | None = None,
) -> RecordUpdate:
    """The update of a model that protects each record: the sum of clipped gradients of randomly drawn ones.

    The received model is loaded into ``model`` first. A step of the server has the learning rate of its
    strategy (``FedAvgM(server_learning_rate=...)``); with ``FedAvg`` it is 1.

    Parameters
    ----------
    message
        The train message, which holds the model and says how records are drawn and clipped.
    model
        A model with the arrays that were received. It is trained in the mode that it is in. ``nn.RNN`` and
        ``nn.GRU`` need a first state that is made from their input, such as ``x.new_zeros(1, len(x), 64)``.
    loss
        A function of outputs and targets, such as ``nn.functional.cross_entropy``; of one record at a time.
    inputs, targets
        The client's records: one row for each person.
    per_layer
        Whether each layer's part of a gradient is clipped by itself, to an equal share of the squared clip.
    microbatch
        How many records are in memory at a time; by default as many as 96 MB hold.
    rng
        A seeded stream, for simulations; by default secure randomness, which keeps the draw a secret.

    Returns
    -------
    RecordUpdate
        What the app replies with as its ArrayRecord.

    Raises
    ------
    UnfitForRecordsError
        A layer mixes the records of a batch, torch has no gradients of single records for the model, or it
        has other arrays than were received. Nothing is sent then.
    InvalidSpecError
        Inputs and targets do not belong together.
    """
    check_layers(model)
    work = RecordWork(message)
    try:
        model.load_state_dict(
            {name: torch.from_numpy(np.array(array)) for name, array in work.arrays.items()}
        )
    except RuntimeError as error:
        raise UnfitForRecordsError(
            "model",
            MISSING,
            problem=f"is not the one that was received ({error})",
            remedy="make the same model as the server",
        ) from error
    if len(inputs) != len(targets):
        raise InvalidSpecError(
            "inputs, targets",
            MISSING,
            problem=f"are {len(inputs)} and {len(targets)} rows, expected one for each record",
        )
    rng = RandomStream.secure() if rng is None else rng
    drawn = torch.from_numpy(work.draw(len(inputs), rng))
    given = (inputs[drawn], targets[drawn], work.clip_factors)
    with torch.random.fork_rng(devices=[]):
        _check_gradients(model, loss, inputs, targets)
        # Masks of dropout go by the place of a record in the batch. If they could be known, one record more
        # would change the gradients of those that follow, and torch starts with the same seed everywhere.
        torch.default_generator.manual_seed(int(rng.words(1)[0] >> np.uint64(1)))
        sums = sum_clipped_gradients(model, loss, *given, per_layer=per_layer, microbatch=microbatch)
    return work.make_update({name: total.numpy() for name, total in sums.items()})


def sum_clipped_gradients(
    model: nn.Module,
    loss: Loss,
    inputs: Tensor,
    targets: Tensor,
    clip_factors: ClipFactors,
    *,
    per_layer: bool = False,
    microbatch: int | None = None,
) -> dict[str, Tensor]:
    """The sum over records of clipped gradients, for each parameter that is trained; as in a step of DP-SGD.

    ``clip_factors`` says what gradients of some norms are multiplied by
    (:meth:`~fl_privquant.codec.record_sampling.RecordSampling.clip_factors`). Other parameters are as for
    :func:`record_update`.
    """
    parameters = _trained_parameters(model)
    if microbatch is None:
        microbatch = _choose_microbatch(model, parameters.values(), inputs)
    size = _validation.check_integer("microbatch", microbatch, 1)
    gradients = _per_record_gradients(model, loss, parameters)
    groups = _group_by_layer(parameters) if per_layer else [list(parameters)]
    sums = {name: torch.zeros(parameter.shape, dtype=torch.float64) for name, parameter in parameters.items()}
    failed: list[Exception] = []
    for start in range(0, len(inputs), size):
        part = slice(start, start + size)
        for of_records in _try_gradients(gradients, inputs[part], targets[part], failed):
            for group in groups:
                _add_clipped(clip_factors, {name: of_records[name] for name in group}, len(groups), sums)
    if failed:
        # Where all fail, the fault is not in the records, and an error tells no more than the sum would.
        if len(failed) == len(inputs):
            raise failed[0]
        clip_factors(np.full(len(failed), np.nan))
    return sums


def _try_gradients(
    gradients: Callable[[Tensor, Tensor], dict[str, Tensor]],
    inputs: Tensor,
    targets: Tensor,
    failed: list[Exception],
) -> Iterator[dict[str, Tensor]]:
    """The gradients of all records that have some, in parts; the errors of others are added to ``failed``.

    One record, such as one with a label that does not exist, must not take the others with it.
    """
    try:
        computed = gradients(inputs, targets)
    except Exception as error:
        middle = len(inputs) // 2
        if middle == 0:
            failed.append(error)
            return
        for part in (slice(middle), slice(middle, None)):
            yield from _try_gradients(gradients, inputs[part], targets[part], failed)
    else:
        yield computed


def check_layers(model: nn.Module) -> None:
    """Raise UnfitForRecordsError, with its name, for a layer that mixes the records of a batch.

    >>> try:
    ...     check_layers(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    ... except InvalidSpecError as error:
    ...     print(error)
    model: layer '1' (BatchNorm1d) mixes the records of a batch; use GroupNorm or LayerNorm in its place
    """
    for name, layer in model.named_modules():
        if isinstance(layer, _MIXING):
            raise UnfitForRecordsError(
                "model",
                MISSING,
                problem=f"layer {name!r} ({type(layer).__name__}) mixes the records of a batch",
                remedy="use GroupNorm or LayerNorm in its place",
            )


def _check_gradients(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> None:
    """Raise UnfitForRecordsError where torch has no gradients of single records for the model.

    It is tried on zeros of the shape of a record, so that the outcome tells of no record.
    """
    if not len(inputs):
        return
    zeros = (rows.new_zeros((1, *rows.shape[1:])) for rows in (inputs, targets))
    with _running_layers(model) as running:
        try:
            _per_record_gradients(model, loss, _trained_parameters(model))(*zeros)
        except Exception as error:
            layer = running[-1] if running else "the model, or the loss"
            raise UnfitForRecordsError(
                "model",
                MISSING,
                problem=f"torch.func gives no gradients of single records for {layer} ({error})",
                remedy="use another layer in its place, or inputs that fit",
            ) from error


@contextlib.contextmanager
def _running_layers(model: nn.Module) -> Iterator[list[str]]:
    """The layers that a forward pass is in, the innermost one last."""
    running: list[str] = []

    def enter(layer: nn.Module, _: Any) -> None:
        running.append(f"layer {names[layer]!r} ({type(layer).__name__})")

    def leave(*_: Any) -> None:
        running.pop()

    names = {layer: name for name, layer in model.named_modules()}
    hooks = [layer.register_forward_pre_hook(enter) for layer in names]
    hooks += [layer.register_forward_hook(leave) for layer in names]
    try:
        yield running
    finally:
        for hook in hooks:
            hook.remove()


def _trained_parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}


def _choose_microbatch(model: nn.Module, parameters: Iterable[Tensor], inputs: Tensor) -> int:
    """The number of records whose gradients, and outputs of layers, fit into the memory."""
    if not len(inputs):
        return 1
    size = sum(parameter.numel() * parameter.element_size() for parameter in parameters)

    def count(layer: nn.Module, given: Any, outputs: Any) -> None:
        nonlocal size
        parts = outputs if isinstance(outputs, tuple) else (outputs,)
        size += sum(part.numel() * part.element_size() for part in parts if isinstance(part, Tensor))

    hooks = [layer.register_forward_hook(count) for layer in model.modules()]
    try:
        with torch.no_grad():
            model(inputs.new_zeros((1, *inputs.shape[1:])))
    finally:
        for hook in hooks:
            hook.remove()
    return max(_MEMORY_BYTES // (_COPIES * max(size, 1)), 1)


def _per_record_gradients(
    model: nn.Module, loss: Loss, parameters: Mapping[str, Tensor]
) -> Callable[[Tensor, Tensor], dict[str, Tensor]]:
    """A function of a microbatch that gives, for each parameter, one gradient for each record."""
    buffers = {name: buffer.detach() for name, buffer in model.named_buffers()}

    def loss_of_one(trained: dict[str, Tensor], one: Tensor, target: Tensor) -> Tensor:
        outputs = torch.func.functional_call(model, {**trained, **buffers}, (one.unsqueeze(0),))
        return loss(outputs, target.unsqueeze(0)).sum()

    of_all = torch.func.vmap(torch.func.grad(loss_of_one), in_dims=(None, 0, 0), randomness="different")

    def gradients(inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        computed: dict[str, Tensor] = of_all(dict(parameters), inputs, targets)
        return computed

    return gradients


def _group_by_layer(parameters: Iterable[str]) -> list[list[str]]:
    """The names of parameters, those of one layer together."""
    groups: dict[str, list[str]] = {}
    for name in parameters:
        groups.setdefault(name.rpartition(".")[0], []).append(name)
    return list(groups.values())


def _add_clipped(
    clip_factors: ClipFactors, gradients: Mapping[str, Tensor], num_groups: int, sums: Mapping[str, Tensor]
) -> None:
    """Add the clipped gradients of a microbatch, those of one group of parameters, to their sums."""
    rows = {name: gradient.flatten(1) for name, gradient in gradients.items()}
    # In double precision, as the squares of an enormous gradient overflow in single precision.
    norms = [torch.linalg.vector_norm(row, dim=1, dtype=torch.float64) for row in rows.values()]
    # Each of k groups is clipped to the clip over the root of k: together they are within the clip.
    scaled: Floats = torch.stack(norms).norm(dim=0).numpy() * num_groups**0.5
    factors = torch.from_numpy(clip_factors(scaled))
    kept = factors > 0.0
    for name, row in rows.items():
        # In double precision, too: what is lost in the sum of others must be nothing next to one record.
        near = row if bool(kept.all()) else row[kept]
        sums[name].add_((factors[kept] @ near.double()).view(sums[name].shape))
