"""Models and local training, in torch.

The same model, examples and seed give the same arrays to the last bit, whatever else the process does. Sums
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

from simulations.config import FederationConfig
from simulations.data import Examples
from simulations.targets import options_of

__all__ = ["arrays_of", "build_model", "evaluate", "load_arrays", "train"]

Arrays = dict[str, NDArray[Any]]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

# The libraries behind numpy's products of matrices, all loaded by now.
_BLAS = ThreadpoolController().select(user_api="blas").lib_controllers
_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
# Test examples that a model is given at once: what it computes for them is held in memory.
_EVALUATED = 1 << 14


def build_model(
    function: Callable[..., nn.Module],
    examples: Examples,
    seed: int,
    options: Mapping[str, Any] = _NO_OPTIONS,
) -> nn.Module:
    """The model that a function makes, with seeded initial weights.

    It is given those of ``options``, the ``shape`` of an input and the number of ``classes`` that it takes.
    """
    known = {"shape": examples.train_x.shape[1:], "classes": examples.num_classes} | dict(options)
    taken = {key: value for key, value in known.items() if key in options_of(function)}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return function(**taken)


def arrays_of(model: nn.Module) -> Arrays:
    """The model's parameters and buffers, by name."""
    return {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}


def load_arrays(model: nn.Module, arrays: Arrays) -> None:
    """Set the model's parameters and buffers."""
    model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in arrays.items()})


def train(
    model: nn.Module,
    x: NDArray[Any],
    y: NDArray[Any],
    config: FederationConfig,
    seed: int,
    loss_of: Loss = nn.functional.cross_entropy,
) -> float:
    """Train in place by SGD; the mean loss of the last epoch, without the proximal term."""
    _use_one_thread()
    generator = torch.Generator().manual_seed(seed)
    # SGD by hand, on the model's own memory: for models this small, torch's bookkeeping is most of the time.
    parameters = [parameter.detach().numpy() for parameter in _trained(model)]
    known = _is_softmax(model) and loss_of is nn.functional.cross_entropy
    gradients = _by_formula if known else partial(_by_autograd, loss_of)
    start = [parameter.copy() for parameter in parameters] if config.proximal > 0.0 else []
    velocity = [np.zeros_like(parameter) for parameter in parameters] if config.momentum > 0.0 else []
    # Torch's own memory is aligned: where numpy's begins is by chance, and some kernels depend on it.
    features, labels = torch.from_numpy(x), torch.from_numpy(y)
    losses: list[float] = []
    steps_left = config.local_steps
    model.train()
    for _ in range(config.local_epochs if steps_left is None else 10**9):
        losses.clear()
        for batch in torch.randperm(len(y), generator=generator).split(config.batch_size):
            loss, steps = gradients(model, parameters, features[batch], labels[batch])
            losses.append(loss)
            for place, (parameter, step) in enumerate(zip(parameters, steps, strict=True)):
                if start:
                    step += np.float32(config.proximal) * (parameter - start[place])
                if velocity:
                    velocity[place] *= np.float32(config.momentum)
                    velocity[place] += step
                parameter -= np.float32(config.learning_rate) * (velocity[place] if velocity else step)
            if steps_left is not None:
                steps_left -= 1
                if steps_left == 0:
                    return float(np.mean(losses))
    return float(np.mean(losses))


def _use_one_thread() -> None:
    """Compute on one thread in the calling thread, from now on: torch asks each thread for itself."""
    torch.set_num_threads(1)
    for library in _BLAS:
        library.set_num_threads(1)


def _trained(model: nn.Module) -> list[nn.Parameter]:
    """Parameters that training changes: those that are not frozen."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _is_softmax(model: nn.Module) -> bool:
    return [type(layer) for layer in model.children()] == [nn.Flatten, nn.Linear]


def _by_autograd(
    loss_of: Loss, model: nn.Module, parameters: list[NDArray[Any]], x: torch.Tensor, y: torch.Tensor
) -> tuple[float, list[NDArray[Any]]]:
    """The mean loss of a batch and its gradient, in the order of the parameters."""
    loss = loss_of(model(x), y)
    return float(loss.detach()), [slope.numpy() for slope in torch.autograd.grad(loss, _trained(model))]


def _by_formula(
    model: nn.Module, parameters: list[NDArray[Any]], x: torch.Tensor, y: torch.Tensor
) -> tuple[float, list[NDArray[Any]]]:
    """What :func:`_by_autograd` gives for softmax regression, as residual times input: five times faster."""
    weight, bias = parameters
    flat, rows, columns = x.numpy().reshape(len(y), -1), np.arange(len(y)), y.numpy()
    residual = flat @ weight.T
    residual += bias
    residual -= residual.max(axis=1, keepdims=True)
    true = residual[rows, columns]
    np.exp(residual, out=residual)
    totals = residual.sum(axis=1, keepdims=True)
    loss = float(np.mean(np.log(totals[:, 0]) - true))
    residual /= totals
    residual[rows, columns] -= 1.0
    residual /= len(y)
    return loss, [residual.T @ flat, residual.sum(axis=0)]


def evaluate(
    model: nn.Module, examples: Examples, loss_of: Loss = nn.functional.cross_entropy
) -> tuple[float, float]:
    """Accuracy (NaN without labels) and mean loss on the test examples."""
    _use_one_thread()
    model.eval()
    right, loss, count = 0, 0.0, len(examples.test_y)
    with torch.no_grad():
        for start in range(0, count, _EVALUATED):
            # Torch's own memory is aligned.
            x = torch.from_numpy(examples.test_x[start : start + _EVALUATED]).clone()
            y = torch.from_numpy(examples.test_y[start : start + _EVALUATED])
            outputs = model(x)
            loss += float(loss_of(outputs, y)) * (len(y) / count)
            if examples.labelled:
                right += int((outputs.argmax(dim=1) == y).sum())
    return (right / count if examples.labelled else math.nan), loss
