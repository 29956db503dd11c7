"""Models and local training, in torch.

On the CPU the same model, examples and seed give the same arrays to the last bit, whatever else the process
does. Sums of floats depend on how many threads share them, so training and evaluation run on one thread each;
clients train side by side instead, in the processes of Ray.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
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
Step = Callable[[torch.Tensor, torch.Tensor], None]

# The libraries behind numpy's products of matrices, all loaded by now.
_BLAS = ThreadpoolController().select(user_api="blas").lib_controllers
_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
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
        self.model, self._config, self._loss_of = model, config, loss_of
        self._trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._device = self._trained[0].device if self._trained else torch.device("cpu")
        self._by_hand = self._device.type == "cpu" and not config.optimizer
        known = loss_of is nn.functional.cross_entropy and _is_perceptron(model, self._trained)
        self.by_formula = self._by_hand and known
        """Whether :mod:`simulations.tasks.batched` takes the same steps, for many clients at once."""

    def run(self, x: NDArray[Any], y: NDArray[Any], seed: int) -> None:
        """Train on these examples."""
        use_one_thread()
        config = self._config
        step = self._make_numpy_step() if self._by_hand else self._make_torch_step()
        features, labels = torch.from_numpy(x), torch.from_numpy(y)
        generator = torch.Generator().manual_seed(seed)
        steps_left = math.inf if config.local_steps is None else config.local_steps
        self.model.train()
        for _ in range(config.local_epochs if config.local_steps is None else config.local_steps):
            for batch in torch.randperm(len(y), generator=generator).split(config.batch_size):
                step(features[batch].to(self._device), labels[batch].to(self._device))
                steps_left -= 1
                if steps_left == 0:
                    return

    def _make_numpy_step(self) -> Step:
        """Steps of SGD on the model's own memory: with small models torch's bookkeeping takes most time."""
        config, model, loss_of, trained = self._config, self.model, self._loss_of, self._trained
        parameters = [parameter.detach().numpy() for parameter in trained]
        rate, momentum, proximal = map(np.float32, (config.learning_rate, config.momentum, config.proximal))
        start = [parameter.copy() for parameter in parameters] if config.proximal > 0.0 else []
        velocity = [np.zeros_like(parameter) for parameter in parameters] if config.momentum > 0.0 else []

        def step(x: torch.Tensor, y: torch.Tensor) -> None:
            gradients = torch.autograd.grad(loss_of(model(x), y), trained)
            for place, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
                slope = gradient.numpy()
                if start:
                    slope += proximal * (parameter - start[place])
                if velocity:
                    velocity[place] *= momentum
                    velocity[place] += slope
                parameter -= rate * (velocity[place] if velocity else slope)

        return step

    def _make_torch_step(self) -> Step:
        """Steps of an optimizer of torch, with a state that begins anew in each round."""
        config, parameters, model, loss_of = self._config, self._trained, self.model, self._loss_of
        options: dict[str, Any] = {"lr": config.learning_rate}
        if config.momentum > 0.0:
            options["momentum"] = config.momentum
        named = {"_target_": "torch.optim.SGD", **options, **config.optimizer}
        optimizer = instantiate(named, _partial_=True)(parameters)
        start = [parameter.detach().clone() for parameter in parameters] if config.proximal > 0.0 else []

        def step(x: torch.Tensor, y: torch.Tensor) -> None:
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            for parameter, first in zip(parameters, start, strict=False):
                if parameter.grad is not None:
                    parameter.grad.add_(parameter.detach() - first, alpha=config.proximal)
            optimizer.step()

        return step


def use_one_thread() -> None:
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


def evaluate(
    model: nn.Module, examples: Examples, loss_of: Loss = nn.functional.cross_entropy
) -> tuple[float, float]:
    """Accuracy (NaN without labels) and mean loss on the test examples."""
    use_one_thread()
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
