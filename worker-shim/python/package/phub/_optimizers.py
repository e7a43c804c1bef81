"""The rules by which the hub uses the sum of the gradients. Plain data; the hub does the arithmetic.

`g` is the mean of the workers' gradients, `w` a weight, `lr` the learning rate, `wd` the weight decay, each
times the multiplier of its key.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Tuple, Union


@dataclasses.dataclass(frozen=True)
class Average:
    """The mean of the gradients is returned: an all-reduce."""


@dataclasses.dataclass(frozen=True)
class Sum:
    """The sum of the gradients is returned: an all-reduce. Sums of whole numbers are exact, below 2^24."""


@dataclasses.dataclass(frozen=True)
class Sgd:
    """`w -= lr * (g + wd * w)`"""

    learning_rate: float
    weight_decay: float = 0.0


@dataclasses.dataclass(frozen=True)
class Momentum:
    """`g += wd * w; m = momentum * m + g; w -= lr * m`: PyTorch's SGD without dampening."""

    learning_rate: float
    momentum: float
    weight_decay: float = 0.0


@dataclasses.dataclass(frozen=True)
class Dampened(Momentum):
    """`g += wd * w; m = momentum * m + (1 - dampening) * g; w -= lr * m`: PyTorch's SGD with dampening. The first step sets `m = g`."""

    dampening: float = 0.0


@dataclasses.dataclass(frozen=True)
class Nesterov(Momentum):
    """`g += wd * w; m = momentum * m + g; w -= lr * (g + momentum * m)`"""


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
    """Adam divided by the highest mean of squares until now: PyTorch's Adam with `amsgrad`."""


@dataclasses.dataclass(frozen=True)
class AmsGradW(AdamW):
    """AdamW divided by the highest mean of squares until now: PyTorch's AdamW with `amsgrad`."""


@dataclasses.dataclass(frozen=True)
class Lion:
    """`u = beta1 * m + (1 - beta1) * g; w = w * (1 - lr * wd) - lr * sign(u); m = beta2 * m + (1 - beta2) * g` (Chen et al. 2023).
    All weights move by the learning rate, so it is three to ten times smaller than AdamW's."""

    learning_rate: float
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.99


@dataclasses.dataclass(frozen=True)
class Lars:
    """`t = trust * |w| / (|g| + wd * |w|); m = mu * m + lr * t * (g + wd * w); w -= m` (You et al. 2017). The norms are
    computed for each key.
    `t` is 1 if a norm is 0, and for keys with `wd_mult` 0: biases and scales, in the usual recipe."""

    learning_rate: float
    momentum: float
    weight_decay: float = 0.0
    trust: float = 0.001


@dataclasses.dataclass(frozen=True)
class Lamb:
    """`u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + wd * w; w -= lr * |w| / |u| * u`, with Adam's moments
    (You et al. 2020). The norms are computed for each key. Their quotient is 1 if one is 0, and for keys with `wd_mult`
    0."""

    learning_rate: float
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6


Optimizer = Union[Average, Sum, Sgd, Momentum, Nesterov, Adam, AdamW, Lion, Lars, Lamb]


def state_names(optimizer: Optimizer) -> Tuple[str, ...]:
    """Returns PyTorch's words for the state that the hub keeps of each parameter in addition to its weight, in
    the hub's order."""
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
    """Returns the JSON of the control port."""
    return json.dumps({"name": type(optimizer).__name__.lower(), **dataclasses.asdict(optimizer)})
