"""The optimizers that the hub can run. The classes hold only hyperparameters; the hub does the arithmetic.

In the formulas, `g` is the mean of the workers' gradients, and `w` is a weight. `lr` is the learning rate and `wd` the weight
decay, each times the key's multiplier.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Tuple, Union, get_args

from . import _phub


@dataclasses.dataclass(frozen=True)
class Average:
    """An all-reduce: the hub returns the mean of the gradients, and keeps no weights."""


@dataclasses.dataclass(frozen=True)
class Sum:
    """An all-reduce: the hub returns the sum of the gradients, and keeps no weights. Sums of whole numbers are exact below
    2^24."""


@dataclasses.dataclass(frozen=True)
class Sgd:
    """Plain SGD: `w -= lr * (g + wd * w)`."""

    learning_rate: float
    weight_decay: float = 0.0


@dataclasses.dataclass(frozen=True)
class Momentum:
    """PyTorch's SGD with momentum, without dampening: `g += wd * w; m = momentum * m + g; w -= lr * m`."""

    learning_rate: float
    momentum: float
    weight_decay: float = 0.0


@dataclasses.dataclass(frozen=True)
class Dampened(Momentum):
    """PyTorch's SGD with momentum and dampening: `g += wd * w; m = momentum * m + (1 - dampening) * g; w -= lr * m`. The first
    step sets `m = g`."""

    dampening: float = 0.0


@dataclasses.dataclass(frozen=True)
class Nesterov(Momentum):
    """PyTorch's SGD with Nesterov momentum: `g += wd * w; m = momentum * m + g; w -= lr * (g + momentum * m)`."""


@dataclasses.dataclass(frozen=True)
class Adam:
    """Adam with the L2 penalty in the gradient: PyTorch's Adam."""

    learning_rate: float
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8


@dataclasses.dataclass(frozen=True)
class AdamW(Adam):
    """Adam with the decay separate from the gradient: PyTorch's AdamW."""

    weight_decay: float = 0.01


@dataclasses.dataclass(frozen=True)
class AmsGrad(Adam):
    """PyTorch's Adam with `amsgrad`: a step is divided by the root of the highest mean of squared gradients until now."""


@dataclasses.dataclass(frozen=True)
class AmsGradW(AdamW):
    """PyTorch's AdamW with `amsgrad`: a step is divided by the root of the highest mean of squared gradients until now."""


@dataclasses.dataclass(frozen=True)
class Lion:
    """Lion (Chen et al. 2023): `u = beta1 * m + (1 - beta1) * g; w = w * (1 - lr * wd) - lr * sign(u)`, and then
    `m = beta2 * m + (1 - beta2) * g`. Each step moves every weight by the learning rate, so choose a learning rate three to ten
    times smaller than AdamW's."""

    learning_rate: float
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.99


@dataclasses.dataclass(frozen=True)
class Lars:
    """LARS (You et al. 2017): `t = trust * |w| / (|g| + wd * |w|); m = momentum * m + lr * t * (g + wd * w); w -= m`.

    `|w|` and `|g|` are the norms of a key's weights and of its gradient. `t` is 1 if one of the norms is 0,
    and for keys with `wd_mult` 0. In the usual recipe these keys are biases and scales."""

    learning_rate: float
    momentum: float
    weight_decay: float = 0.0
    trust: float = 0.001


@dataclasses.dataclass(frozen=True)
class Lamb:
    """LAMB (You et al. 2020): `u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + wd * w; w -= lr * |w| / |u| * u`.

    `m` and `v` are Adam's moments, `t` is the number of the step, and `|w|` and `|u|` are norms over a key. The quotient
    `|w| / |u|` counts as 1 if one of the norms is 0, and for keys with `wd_mult` 0."""

    learning_rate: float
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6


Optimizer = Union[Average, Sum, Sgd, Momentum, Nesterov, Adam, AdamW, Lion, Lars, Lamb]


def state_names(optimizer: Optimizer) -> Tuple[str, ...]:
    """Returns PyTorch's names for the optimizer state that the hub keeps of each parameter, in the hub's order."""
    if isinstance(optimizer, (Momentum, Lars)):
        return ("momentum_buffer",)
    if isinstance(optimizer, Lion):
        return ("exp_avg",)
    if isinstance(optimizer, (AmsGrad, AmsGradW)):
        return ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
    if isinstance(optimizer, (Adam, Lamb)):
        return ("exp_avg", "exp_avg_sq")
    return ()


def keeps_weights(optimizer: Optimizer) -> bool:
    """Whether the hub has weights, so that a job can continue with them."""
    return not isinstance(optimizer, (Average, Sum))


def to_json(optimizer: Optimizer) -> str:
    """Returns the optimizer as JSON, for the hub's control port.

    Raises:
        SettingsError: `optimizer` is no optimizer of the hub, or a hyperparameter is no finite number.
    """
    if not isinstance(optimizer, get_args(Optimizer)):
        raise _phub.SettingsError(f"optimizer is {optimizer!r:.60}: expected one of phub's optimizers, such as phub.Adam(learning_rate=1e-3)")
    numbers = {}
    for name, value in dataclasses.asdict(optimizer).items():
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError):
            numbers[name] = math.nan
        if not math.isfinite(numbers[name]):  # JSON has no such number
            raise _phub.SettingsError(f"{type(optimizer).__name__}: {name} is {value!r:.60}; expected a finite number")
    return json.dumps({"name": type(optimizer).__name__.lower(), **numbers})
