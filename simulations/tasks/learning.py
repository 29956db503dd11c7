"""Models and local training, in torch.

On the CPU the same model, examples and seed give the same arrays to the last bit, whatever else the process
does. Sums of floats depend on how many threads share them, so training and evaluation run on one thread each;
clients train side by side instead, in the processes of Ray.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from hydra.utils import instantiate
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController
from torch import nn

from fl_privquant import _validation
from fl_privquant.errors import MISSING, InvalidSpecError
from simulations.runner.config import FederationConfig
from simulations.runner.targets import options_of
from simulations.tasks.data import Examples

DEVICES = ("auto", "cpu", "cuda", "mps")
"""What ``task.device`` may be."""

Arrays = dict[str, NDArray[Any]]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
# The mean loss of a batch, computed only when it is called.
BatchLoss = Callable[[], float]
Step = Callable[[Any, Any], BatchLoss]
# Inputs and labels of a batch, as the steps take them, for the places of its examples.
Batches = Callable[[torch.Tensor], tuple[Any, Any]]

# The libraries behind numpy's products of matrices, all loaded by now.
_BLAS = ThreadpoolController().select(user_api="blas").lib_controllers
_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
_FIRST = torch.zeros(1, dtype=torch.int64)
# Test examples that a model is given at once: so few that what it computes stays in the cache.
_EVALUATED = 1 << 10


def build_model(
    function: Callable[..., nn.Module],
    examples: Examples,
    seed: int,
    options: Mapping[str, Any] = _NO_OPTIONS,
    device: str = "cpu",
) -> nn.Module:
    """The model that a function makes, with seeded initial weights, on a device.

    The function is called with the ``shape`` of an input, the number of ``classes`` and the ``options``, as
    far as it has parameters for them.
    """
    available = {"shape": examples.train_x.shape[1:], "classes": examples.num_classes} | dict(options)
    arguments = {key: value for key, value in available.items() if key in options_of(function)}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        # Drawn on the CPU, so that every device starts from the same weights.
        return function(**arguments).to(select_device(device))


def select_device(name: str = "cpu") -> torch.device:
    """The device of that name; ``auto`` is a GPU where there is one (CUDA, then Apple's MPS), else the CPU.

    Raises
    ------
    InvalidSpecError
        There is no such device here.
    """
    _validation.check_choice("task.device", name, DEVICES)
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    chosen = next(device for device in available if available[device]) if name == "auto" else name
    if not available[chosen]:
        raise InvalidSpecError(
            "task.device",
            MISSING,
            f"torch {torch.__version__} finds no {chosen} device here",
            "use task.device=auto or cpu, and with engine=ray give clients a GPU by engine.client_gpus",
        )
    return torch.device(chosen)


def model_arrays(model: nn.Module) -> Arrays:
    """The model's parameters and buffers, by name."""
    return {name: value.detach().cpu().numpy().copy() for name, value in model.state_dict().items()}


def load_arrays(model: nn.Module, arrays: Arrays) -> None:
    """Set the model's parameters and buffers."""
    model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in arrays.items()})


class Workspace:
    """A model that is loaded, trained and read many times; on the CPU, this avoids torch's bookkeeping.

    Parameters
    ----------
    model
        The model, whose parameters and buffers stay where they are.
    config, loss_of
        As in :class:`LocalTraining`, which is :attr:`training`.
    """

    def __init__(
        self, model: nn.Module, config: FederationConfig, loss_of: Loss = nn.functional.cross_entropy
    ) -> None:
        self.model = model
        self.training = LocalTraining(model, config, loss_of)
        state = {name: value.detach() for name, value in model.state_dict().items()}
        on_cpu = all(value.device.type == "cpu" for value in state.values())
        self._memory = {name: value.numpy() for name, value in state.items()} if on_cpu else None

    def load(self, arrays: Arrays) -> None:
        """Set the model's parameters and buffers."""
        memory = self._memory
        if memory is None or memory.keys() != arrays.keys():
            # If names differ, torch raises an error that says how.
            load_arrays(self.model, arrays)
            return
        for name, place in memory.items():
            if place.shape != arrays[name].shape:
                load_arrays(self.model, arrays)
                return
            place[...] = arrays[name]

    def arrays(self) -> Arrays:
        """The model's parameters and buffers, by name, in arrays of their own."""
        if self._memory is None:
            return model_arrays(self.model)
        return {name: place.copy() for name, place in self._memory.items()}


class LocalTraining:
    """Local training of one model, again and again: what does not change between two runs is kept.

    Parameters
    ----------
    model
        The model, which is trained in place, on its device. Which parameters are trained is looked up once.
    config
        Epochs or steps, size of batches, rates; SGD, or the optimizer that ``config.optimizer`` names.
    loss_of
        The mean loss of outputs and labels.
    """

    def __init__(
        self, model: nn.Module, config: FederationConfig, loss_of: Loss = nn.functional.cross_entropy
    ) -> None:
        self._model, self._config, self._loss_of = model, config, loss_of
        self._trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._device = self._trained[0].device if self._trained else torch.device("cpu")
        self._on_cpu = self._device.type == "cpu"
        self._by_hand = self._on_cpu and not config.optimizer
        self._parameters = [parameter.detach().numpy() for parameter in self._trained if self._by_hand]
        is_known = loss_of is nn.functional.cross_entropy and _is_perceptron(model, self._trained)
        self.by_formula = self._by_hand and is_known
        self._inputs = np.zeros(0, np.float32)

    def run(self, x: NDArray[Any], y: NDArray[Any], seed: int) -> list[BatchLoss]:
        """Train on these examples; the losses of the last epoch's batches, without the proximal term."""
        _use_one_thread()
        config = self._config
        step = self._make_numpy_step() if self._by_hand else self._make_torch_step()
        batch_of = self._numpy_batches(x, y) if self.by_formula else self._torch_batches(x, y)
        count, size = len(y), config.batch_size
        # A single example needs no random order.
        generator = torch.Generator().manual_seed(seed) if count > 1 else None
        steps_left = math.inf if config.local_steps is None else config.local_steps
        if not self._model.training:
            self._model.train()
        losses: list[BatchLoss] = []
        for _ in range(config.local_epochs if config.local_steps is None else 10**9):
            losses.clear()
            order = _FIRST if generator is None else torch.randperm(count, generator=generator)
            for start in range(0, count, size):
                losses.append(step(*batch_of(order if size >= count else order[start : start + size])))
                steps_left -= 1
                if steps_left == 0:
                    return losses
        return losses

    def _torch_batches(self, x: NDArray[Any], y: NDArray[Any]) -> Batches:
        """Batches for torch, whose memory is aligned: results of its kernels may depend on the alignment."""
        features, labels = torch.from_numpy(x), torch.from_numpy(y)
        if self._on_cpu:
            return lambda batch: (features[batch], labels[batch])
        return lambda batch: (features[batch].to(self._device), labels[batch].to(self._device))

    def _numpy_batches(self, x: NDArray[Any], y: NDArray[Any]) -> Batches:
        """Batches for the formula; their inputs lie in memory with the same alignment as torch's."""
        rows = x.reshape(len(y), -1)
        place = self._aligned_memory(min(len(y), self._config.batch_size), rows.shape[1])

        def batch_of(batch: torch.Tensor) -> tuple[NDArray[Any], NDArray[Any]]:
            chosen = batch.numpy()
            # All places are in range. With this mode numpy need not check that, and writes without a buffer.
            np.take(rows, chosen, axis=0, out=place[: chosen.size], mode="clip")
            return place[: chosen.size], y[chosen]

        return batch_of

    def _aligned_memory(self, rows: int, columns: int) -> NDArray[np.float32]:
        """(rows, columns) memory that begins where torch's would; the same one each time."""
        size = rows * columns
        if self._inputs.size < size:
            self._inputs = torch.empty(size, dtype=torch.float32).numpy()
        return self._inputs[:size].reshape(rows, columns)

    def _make_numpy_step(self) -> Step:
        """Steps of SGD on the model's own memory: with small models torch's bookkeeping takes most time."""
        config, parameters = self._config, self._parameters
        gradients = (
            partial(_gradient_by_formula, parameters)
            if self.by_formula
            else partial(_gradient_by_autograd, self._loss_of, self._model, self._trained)
        )
        rate, momentum, proximal = map(np.float32, (config.learning_rate, config.momentum, config.proximal))
        start = [parameter.copy() for parameter in parameters] if config.proximal > 0.0 else []
        velocity = [np.zeros_like(parameter) for parameter in parameters] if config.momentum > 0.0 else []

        def step(x: Any, y: Any) -> BatchLoss:
            loss, slopes = gradients(x, y)
            for place, (parameter, slope) in enumerate(zip(parameters, slopes, strict=True)):
                if start:
                    slope += proximal * (parameter - start[place])
                if velocity:
                    velocity[place] *= momentum
                    velocity[place] += slope
                parameter -= rate * (velocity[place] if velocity else slope)
            return loss

        return step

    def _make_torch_step(self) -> Step:
        """Steps of an optimizer of torch, with a state that begins anew in each round."""
        config, parameters, model, loss_of = self._config, self._trained, self._model, self._loss_of
        options: dict[str, Any] = {"lr": config.learning_rate}
        if config.momentum > 0.0:
            options["momentum"] = config.momentum
        named = {"_target_": "torch.optim.SGD", **options, **config.optimizer}
        optimizer = instantiate(named, _partial_=True)(parameters)
        start = [parameter.detach().clone() for parameter in parameters] if config.proximal > 0.0 else []

        def step(x: torch.Tensor, y: torch.Tensor) -> BatchLoss:
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            for parameter, first in zip(parameters, start, strict=False):
                if parameter.grad is not None:
                    parameter.grad.add_(parameter.detach() - first, alpha=config.proximal)
            optimizer.step()
            return loss.detach().item

        return step


def train(
    model: nn.Module,
    x: NDArray[Any],
    y: NDArray[Any],
    config: FederationConfig,
    seed: int,
    loss_of: Loss = nn.functional.cross_entropy,
) -> float:
    """Train a model once, in place, as :class:`LocalTraining` does; the mean loss of the last epoch."""
    losses = LocalTraining(model, config, loss_of).run(x, y, seed)
    return float(np.mean([loss() for loss in losses]))


def _use_one_thread() -> None:
    """From now on, compute on one thread in the calling thread: torch has this setting for each thread."""
    torch.set_num_threads(1)
    for library in _BLAS:
        library.set_num_threads(1)


def _is_perceptron(model: nn.Module, trained: list[nn.Parameter]) -> bool:
    """Whether a model is linear layers with rectifiers between them, all trained: softmax regression too."""
    if type(model) is not nn.Sequential:
        return False
    layers = [type(layer) for layer in model]
    depth = len(layers) // 2
    expected = [nn.Flatten, *[nn.Linear, nn.ReLU] * (depth - 1), nn.Linear]
    return (
        layers == expected
        and len(trained) == 2 * depth
        and all(parameter.dtype == torch.float32 for parameter in trained)
    )


def _gradient_by_autograd(
    loss_of: Loss, model: nn.Module, trained: list[nn.Parameter], x: torch.Tensor, y: torch.Tensor
) -> tuple[BatchLoss, list[NDArray[Any]]]:
    """The mean loss of a batch and its gradient, in the order of the parameters."""
    loss = loss_of(model(x), y)
    return loss.detach().item, [slope.numpy() for slope in torch.autograd.grad(loss, trained)]


def _gradient_by_formula(
    parameters: list[NDArray[Any]], x: NDArray[Any], columns: NDArray[Any]
) -> tuple[BatchLoss, list[NDArray[Any]]]:
    """The gradient of linear layers with rectifiers between them, five times faster than autograd."""
    rows = np.arange(columns.size)
    inputs = [x]
    for place in range(0, len(parameters) - 2, 2):
        hidden = inputs[-1] @ parameters[place].T
        hidden += parameters[place + 1]
        inputs.append(np.maximum(hidden, 0.0, out=hidden))
    residual = inputs[-1] @ parameters[-2].T
    residual += parameters[-1]
    residual -= residual.max(axis=1, keepdims=True)
    true = residual[rows, columns]
    np.exp(residual, out=residual)
    totals = residual.sum(axis=1, keepdims=True)
    residual /= totals
    residual[rows, columns] -= 1.0
    residual /= columns.size
    slopes: list[NDArray[Any]] = []
    for place in range(len(parameters) - 2, -1, -2):
        slopes[:0] = [residual.T @ inputs[place // 2], residual.sum(axis=0)]
        if place:
            residual = residual @ parameters[place]
            residual *= inputs[place // 2] > 0.0
    return (lambda: float(np.mean(np.log(totals[:, 0]) - true))), slopes


def evaluate(
    model: nn.Module, examples: Examples, loss_of: Loss = nn.functional.cross_entropy
) -> tuple[float, float]:
    """Accuracy (NaN without labels) and mean loss on the test examples."""
    _use_one_thread()
    model.eval()
    device = next(model.parameters()).device
    right, loss, count = 0, 0.0, len(examples.test_y)
    with torch.no_grad():
        for start in range(0, count, _EVALUATED):
            # Torch's own memory is aligned.
            x = torch.from_numpy(examples.test_x[start : start + _EVALUATED]).clone().to(device)
            y = torch.from_numpy(examples.test_y[start : start + _EVALUATED]).to(device)
            outputs = model(x)
            loss += float(loss_of(outputs, y)) * (len(y) / count)
            if examples.labeled:
                right += int((outputs.argmax(dim=1) == y).sum())
    return (right / count if examples.labeled else math.nan), loss
