"""The groups of a torch optimizer, as settings of the hub's optimizer and of its keys."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Optional, Tuple

import torch

from .. import _optimizers
from .._phub import Error, SettingsError


class UnsupportedOptimizerError(Error):
    """The hub cannot run this optimizer."""


_HOW = (
    "the hub runs torch.optim.SGD (with momentum and Nesterov), Adam and AdamW; to keep another optimizer local, leave "
    "it as it is and average gradients: DistributedDataParallel with phub.torch.ddp_hook"
)

# Settings that change how a step is computed, not what it is.
_IMPLEMENTATION = ("foreach", "fused", "capturable", "decoupled_weight_decay")

# Settings that the hub does not have, and the values that they must have.
_REFUSED: Dict[str, Any] = {"dampening": 0, "maximize": False, "amsgrad": False, "differentiable": False}


@dataclasses.dataclass(frozen=True)
class Multipliers:
    """The multipliers of a parameter group: of the job's learning rate and weight decay."""

    learning_rate: float
    weight_decay: float


@dataclasses.dataclass(frozen=True)
class Settings:
    """The hub's settings for a torch optimizer."""

    optimizer: _optimizers.Optimizer
    groups: Tuple[Multipliers, ...]
    fixed: Tuple[Tuple[Tuple[str, Any], ...], ...]
    """What the hub cannot change after the join: everything of each group but its learning rate."""

    def learning_rate(self, groups: List[Dict[str, Any]]) -> float:
        """The job's learning rate, from the groups' current settings.

        Raises:
            UnsupportedOptimizerError: a group has changed in a way that the hub cannot follow.
        """
        for number, (group, fixed) in enumerate(zip(groups, self.fixed)):
            for name, value in fixed:
                if group.get(name) != value:
                    raise UnsupportedOptimizerError(
                        f"parameter group {number}: {name} was {value} at the join and is {group.get(name)} now: the "
                        f"hub follows learning rates only"
                    )
        rates = [float(group["lr"]) for group in groups]
        number = max(range(len(rates)), key=lambda each: self.groups[each].learning_rate)
        if self.groups[number].learning_rate == 0.0:
            rate = max(rates)
        else:
            rate = rates[number] / self.groups[number].learning_rate
        for number, (seen, multipliers) in enumerate(zip(rates, self.groups)):
            expected = rate * multipliers.learning_rate
            if abs(seen - expected) > 1e-5 * max(abs(rate), abs(seen)):
                raise UnsupportedOptimizerError(
                    f"parameter group {number}: its learning rate is {seen}, and was {multipliers.learning_rate} times "
                    f"the job's ({rate}) at the join, which would be {expected}: the hub keeps the ratios of groups"
                )
        return rate


def read(optimizer: torch.optim.Optimizer, kind: Optional[type] = None) -> Settings:
    """The hub's settings for a torch optimizer, which is of this kind; default its class.

    Raises:
        UnsupportedOptimizerError: the hub cannot run it; the message says which setting, and what to do.
    """
    kind, groups = kind or type(optimizer), optimizer.param_groups
    if kind not in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        raise UnsupportedOptimizerError(f"{kind.__module__}.{kind.__qualname__}: {_HOW}")
    for number, group in enumerate(groups):
        for name, expected in _REFUSED.items():
            if group.get(name, expected) != expected:
                raise UnsupportedOptimizerError(
                    f"{kind.__name__}: parameter group {number} has {name}={group[name]}, which the hub has not "
                    f"(expected {expected}); {_HOW}"
                )
    first = groups[0]
    rates, decays = [float(group["lr"]) for group in groups], [float(group["weight_decay"]) for group in groups]
    rate, decay = rates[0] or max(rates), max(decays)
    for name in ("momentum", "nesterov", "betas", "eps"):
        if any(group.get(name) != first.get(name) for group in groups):
            raise UnsupportedOptimizerError(
                f"{kind.__name__}: its parameter groups differ in {name}; in the hub they may differ in lr and "
                f"weight_decay only; {_HOW}"
            )
    multipliers = tuple(
        Multipliers(each / rate if rate else 1.0, penalty / decay if decay else 1.0)
        for each, penalty in zip(rates, decays)
    )
    changing = ("params", "lr", "initial_lr", *_IMPLEMENTATION)
    kept = [name for name in sorted(optimizer.defaults) if name not in changing]
    fixed = tuple(tuple((name, group[name]) for name in kept if name in group) for group in groups)
    return Settings(_hub_optimizer(kind, first, rate, decay), multipliers, fixed)


def _hub_optimizer(kind: type, group: Dict[str, Any], rate: float, decay: float) -> _optimizers.Optimizer:
    if kind is torch.optim.SGD:
        momentum = float(group["momentum"])
        if momentum == 0.0:
            return _optimizers.Sgd(rate, decay)
        with_momentum = _optimizers.Nesterov if group["nesterov"] else _optimizers.Momentum
        return with_momentum(rate, momentum, decay)
    beta1, beta2 = (float(beta) for beta in group["betas"])
    is_decoupled = kind is torch.optim.AdamW or group.get("decoupled_weight_decay")
    adam = _optimizers.AdamW if is_decoupled else _optimizers.Adam
    return adam(rate, decay, beta1, beta2, float(group["eps"]))


DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


def dtype_of(name: str, tensor: torch.Tensor) -> str:
    """The hub's word for a tensor's type.

    Raises:
        SettingsError: the hub does not take it.
    """
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        raise SettingsError(f"parameter {name!r} is {tensor.dtype}; a hub takes float32, float16 and bfloat16")
    return dtype
