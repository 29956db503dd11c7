"""Models and local training, in torch.

On the CPU the same model, examples and seed give the same arrays to the last bit, whatever else the process
does. Sums
of floats depend on how many threads share them, so training and evaluation run on one thread each; clients
train side by side instead (``engine.threads``, or the processes of Ray).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController
from torch import nn

from fl_privquant import checks
from fl_privquant.errors import InvalidSpecError
from simulations.config import FederationConfig
from simulations.data import Examples
from simulations.targets import TARGET, located, options_of

__all__ = [
    "DEVICES",
    "Workspace",
    "arrays_of",
    "build_model",
    "device_of",
    "evaluate",
    "load_arrays",
    "train",
]

DEVICES = ("auto", "cpu", "cuda", "mps")
"""What ``task.device`` may be."""

Arrays = dict[str, NDArray[Any]]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Step = Callable[[torch.Tensor, torch.Tensor], float]

# The libraries behind numpy's products of matrices, all loaded by now.
_BLAS = ThreadpoolController().select(user_api="blas").lib_controllers
_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
# Test examples that a model is given at once: as many as leave what it computes in the cache.
_EVALUATED = 1 << 10


def build_model(
    function: Callable[..., nn.Module],
    examples: Examples,
    seed: int,
    options: Mapping[str, Any] = _NO_OPTIONS,
    device: str = "cpu",
) -> nn.Module:
    """The model that a function makes, with seeded initial weights, on a device.

    It is given those of ``options``, the ``shape`` of an input and the number of ``classes`` that it takes.
    """
    known = {"shape": examples.train_x.shape[1:], "classes": examples.num_classes} | dict(options)
    taken = {key: value for key, value in known.items() if key in options_of(function)}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        # Drawn on the CPU, so that every device starts from the same weights.
        return function(**taken).to(device_of(device))


def device_of(name: str = "cpu") -> torch.device:
    """The device of that name; ``auto`` is a GPU where there is one (CUDA, then Apple's MPS), else the CPU.

    Raises
    ------
    InvalidSpecError
        There is no such device here.
    """
    checks.choice("task.device", name, DEVICES)
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    chosen = next(device for device in there if there[device]) if name == "auto" else name
    if not there[chosen]:
        raise InvalidSpecError(
            f"task.device: torch {torch.__version__} finds no {chosen} device here; use task.device=auto or "
            "cpu, and with engine=ray give clients a GPU by engine.client_gpus"
        )
    return torch.device(chosen)


def arrays_of(model: nn.Module) -> Arrays:
    """The model's parameters and buffers, by name."""
    return {name: value.detach().cpu().numpy().copy() for name, value in model.state_dict().items()}


def load_arrays(model: nn.Module, arrays: Arrays) -> None:
    """Set the model's parameters and buffers."""
    model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in arrays.items()})


class Workspace:
    """A model that is loaded and read many times; on the CPU by its own memory, past torch's bookkeeping.

    Parameters
    ----------
    model
        The model, whose parameters and buffers stay where they are.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        state = {name: value.detach() for name, value in model.state_dict().items()}
        on_cpu = all(value.device.type == "cpu" for value in state.values())
        self._memory = {name: value.numpy() for name, value in state.items()} if on_cpu else None

    def load(self, arrays: Arrays) -> None:
        """Set the model's parameters and buffers."""
        memory = self._memory
        if memory is None or memory.keys() != arrays.keys():
            # Torch says what is wrong with other names.
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
            return arrays_of(self.model)
        return {name: place.copy() for name, place in self._memory.items()}


def train(
    model: nn.Module,
    x: NDArray[Any],
    y: NDArray[Any],
    config: FederationConfig,
    seed: int,
    loss_of: Loss = nn.functional.cross_entropy,
) -> float:
    """Train in place, where the model is; the mean loss of the last epoch, without the proximal term.

    By SGD, or by the optimizer that ``config.optimizer`` names.
    """
    _use_one_thread()
    generator = torch.Generator().manual_seed(seed)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    device = trained[0].device if trained else torch.device("cpu")
    by_hand = device.type == "cpu" and not config.optimizer
    step = (_steps_by_hand if by_hand else _steps_by_torch)(model, trained, config, loss_of)
    # Torch's own memory is aligned: where numpy's begins is by chance, and some kernels depend on it.
    features, labels = torch.from_numpy(x), torch.from_numpy(y)
    losses: list[float] = []
    steps_left = config.local_steps
    if not model.training:
        model.train()
    for _ in range(config.local_epochs if steps_left is None else 10**9):
        losses.clear()
        for batch in torch.randperm(len(y), generator=generator).split(config.batch_size):
            losses.append(step(features[batch].to(device), labels[batch].to(device)))
            if steps_left is not None:
                steps_left -= 1
                if steps_left == 0:
                    return float(np.mean(losses))
    return float(np.mean(losses))


def _steps_by_hand(
    model: nn.Module, trained: list[nn.Parameter], config: FederationConfig, loss_of: Loss
) -> Step:
    """Steps of SGD on the model's own memory: for small models, torch's bookkeeping is most of the time."""
    parameters = [parameter.detach().numpy() for parameter in trained]
    known = loss_of is nn.functional.cross_entropy and _is_perceptron(model, trained)
    gradients = partial(_by_formula, parameters) if known else partial(_by_autograd, loss_of, model, trained)
    start = [parameter.copy() for parameter in parameters] if config.proximal > 0.0 else []
    velocity = [np.zeros_like(parameter) for parameter in parameters] if config.momentum > 0.0 else []

    def step(x: torch.Tensor, y: torch.Tensor) -> float:
        loss, slopes = gradients(x, y)
        for place, (parameter, slope) in enumerate(zip(parameters, slopes, strict=True)):
            if start:
                slope += np.float32(config.proximal) * (parameter - start[place])
            if velocity:
                velocity[place] *= np.float32(config.momentum)
                velocity[place] += slope
            parameter -= np.float32(config.learning_rate) * (velocity[place] if velocity else slope)
        return loss

    return step


def _steps_by_torch(
    model: nn.Module, parameters: list[nn.Parameter], config: FederationConfig, loss_of: Loss
) -> Step:
    """Steps of an optimizer of torch, with a state that begins anew in each round."""
    options: dict[str, Any] = {"lr": config.learning_rate}
    if config.momentum > 0.0:
        options["momentum"] = config.momentum
    options |= {key: value for key, value in config.optimizer.items() if key != TARGET}
    kind = located(f"federation.optimizer.{TARGET}", config.optimizer.get(TARGET, "SGD"), "torch.optim")
    optimizer = kind(parameters, **options)
    start = [parameter.detach().clone() for parameter in parameters] if config.proximal > 0.0 else []

    def step(x: torch.Tensor, y: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        for parameter, first in zip(parameters, start, strict=False):
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach() - first, alpha=config.proximal)
        optimizer.step()
        return float(loss.detach())

    return step


def _use_one_thread() -> None:
    """Compute on one thread in the calling thread, from now on: torch asks each thread for itself."""
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


def _by_autograd(
    loss_of: Loss, model: nn.Module, trained: list[nn.Parameter], x: torch.Tensor, y: torch.Tensor
) -> tuple[float, list[NDArray[Any]]]:
    """The mean loss of a batch and its gradient, in the order of the parameters."""
    loss = loss_of(model(x), y)
    return float(loss.detach()), [slope.numpy() for slope in torch.autograd.grad(loss, trained)]


def _by_formula(
    parameters: list[NDArray[Any]], x: torch.Tensor, y: torch.Tensor
) -> tuple[float, list[NDArray[Any]]]:
    """What :func:`_by_autograd` gives for linear layers with rectifiers between them: five times faster."""
    columns = y.numpy()
    rows = np.arange(columns.size)
    inputs = [x.numpy().reshape(columns.size, -1)]
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
    loss = float(np.mean(np.log(totals[:, 0]) - true))
    residual /= totals
    residual[rows, columns] -= 1.0
    residual /= columns.size
    slopes: list[NDArray[Any]] = []
    for place in range(len(parameters) - 2, -1, -2):
        slopes[:0] = [residual.T @ inputs[place // 2], residual.sum(axis=0)]
        if place:
            residual = residual @ parameters[place]
            residual *= inputs[place // 2] > 0.0
    return loss, slopes


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
            if examples.labelled:
                right += int((outputs.argmax(dim=1) == y).sum())
    return (right / count if examples.labelled else math.nan), loss
