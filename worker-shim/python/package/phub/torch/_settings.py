"""The groups of a torch optimizer, as numbers of the hub's optimizer and of its keys, at the join and whenever they change."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Type, TypeVar

import torch

from .. import _optimizers
from .._phub import Error, SettingsError
from ._lion import Lion


class UnsupportedOptimizerError(Error):
    """The hub cannot run this optimizer."""


_HOW = (
    "the hub runs torch.optim.SGD, Adam and AdamW, and phub.torch.Lion; to keep another optimizer local, leave it as it is and "
    " average gradients: DistributedDataParallel with phub.torch.ddp_hook"
)

# Settings that the hub does not have, and the values that they must have.
_REFUSED: Dict[str, Any] = {"differentiable": False}

# Settings that determine the kind of optimizer at the hub. Each kind keeps other state, and one job has one kind for all
# groups.
_KIND = ("momentum", "dampening", "nesterov", "amsgrad", "maximize", "decoupled_weight_decay")

# All settings that a step depends on.
_FOLLOWED = ("lr", "weight_decay", "betas", "eps", *_KIND, *_REFUSED)

# The largest difference of multipliers that count as equal: rounding may change a ratio of numbers by this much.
_ROUNDING = 2e-7

Groups = List[Dict[str, Any]]

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Multipliers:
    """The multipliers of a parameter group: of the job's learning rate and weight decay."""

    learning_rate: float
    weight_decay: float


@dataclasses.dataclass(frozen=True)
class Change:
    """News of the groups for the hub: the optimizer with its numbers, and the multipliers of each group if these have
    changed, too."""

    optimizer: _optimizers.Optimizer
    groups: Optional[Tuple[Multipliers, ...]]


class Settings:
    """The groups of a torch optimizer, as numbers of the hub's optimizer and multipliers of its keys."""

    optimizers: Tuple[_optimizers.Optimizer, ...]
    """The optimizer of each group, before the multipliers. The first one is the job's."""

    groups: Tuple[Multipliers, ...]

    def __init__(self, kind: type, groups: Groups) -> None:
        self._kind, self._seen = kind, _seen(groups)
        ones = tuple(Multipliers(1.0, 1.0) for _ in groups)
        self.optimizers, self.groups = _numbers(kind, self._seen, ones)

    @property
    def optimizer(self) -> _optimizers.Optimizer:
        """The optimizer of the job."""
        return self.optimizers[0]

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer, kind: Optional[type] = None) -> Settings:
        """Reads the groups of an optimizer, which is of this kind; default its class.

        Raises:
            UnsupportedOptimizerError: the hub cannot run it; the message names the setting and the next step.
        """
        kind = kind or type(optimizer)
        if kind not in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, Lion):
            raise UnsupportedOptimizerError(f"{kind.__module__}.{kind.__qualname__}: {_HOW}")
        return cls(kind, optimizer.param_groups)

    @property
    def maximize(self) -> bool:
        """Whether steps go up the gradient."""
        return _kind_of("maximize", self._seen[0])

    def differs(self, groups: Groups) -> bool:
        """Whether the groups differ from what they were at the last call."""
        return _seen(groups) != self._seen

    def changed(self, groups: Groups) -> Optional[Change]:
        """Returns the change to send to the hub, if the groups differ from the last call.

        Raises:
            UnsupportedOptimizerError: a group has changed in a way that the hub cannot follow. It says so again in the next
                call.
        """
        seen = _seen(groups)
        if seen == self._seen:
            return None
        if len(seen) != len(self._seen):
            raise UnsupportedOptimizerError(
                f"{self._kind.__name__}: it had {len(self._seen)} parameter groups at the join and has {len(seen)} now: wrap "
                f"the optimizer when all its groups are there"
            )
        for number, (former, now) in enumerate(zip(self._seen, seen)):
            for name in _KIND:
                if _kind_of(name, former) != _kind_of(name, now):
                    raise UnsupportedOptimizerError(
                        f"{self._kind.__name__}: parameter group {number}: {name} was {former[name]} and is {now[name]} now: "
                        f"that is another optimizer for the hub, with other state; use a small momentum instead of 0"
                    )
        optimizers, multipliers = _numbers(self._kind, seen, self.groups)
        change = Change(optimizers[0], None if multipliers == self.groups else multipliers)
        self._seen, self.optimizers, self.groups = seen, optimizers, multipliers
        return change

    def others(self, groups: Groups, parameters: Mapping[str, torch.Tensor]) -> Dict[str, _optimizers.Optimizer]:
        """Returns the optimizer of each parameter, by its name, whose group has other numbers than the first group."""
        if len(set(self.optimizers)) == 1:
            return {}
        of_names = _by_name(self.optimizers, groups, parameters)
        return {name: each for name, each in of_names.items() if each != self.optimizer}


def by_key(
    multipliers: Tuple[Multipliers, ...], groups: Groups, parameters: Mapping[str, torch.Tensor]
) -> Dict[str, Tuple[float, float]]:
    """Returns the multipliers of learning rate and weight decay of each parameter, by its name."""
    of_names = _by_name(multipliers, groups, parameters)
    return {name: (each.learning_rate, each.weight_decay) for name, each in of_names.items()}


def _by_name(of_groups: Sequence[_T], groups: Groups, parameters: Mapping[str, torch.Tensor]) -> Dict[str, _T]:
    group_of = {id(each): number for number, group in enumerate(groups) for each in group["params"]}
    return {name: of_groups[group_of[id(parameter)]] for name, parameter in parameters.items()}


def _seen(groups: Groups) -> Tuple[Dict[str, Any], ...]:
    """Returns a copy of the groups' current settings."""
    return tuple({name: _plain(group[name]) for name in _FOLLOWED if name in group} for group in groups)


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return float(value)
    return tuple(map(_plain, value)) if isinstance(value, (list, tuple)) else value


def _kind_of(name: str, group: Dict[str, Any]) -> bool:
    """Returns the settings of a group that determine the kind of its optimizer."""
    return bool(group.get(name))


def _numbers(
    kind: type, groups: Tuple[Dict[str, Any], ...], former: Tuple[Multipliers, ...]
) -> Tuple[Tuple[_optimizers.Optimizer, ...], Tuple[Multipliers, ...]]:
    """Returns the hub's optimizer for each group, and the multipliers of each group. Returns the former values if they are the
    same, or if any values fit.

    Raises:
        UnsupportedOptimizerError: the hub has no such numbers.
    """
    first = groups[0]
    for number, group in enumerate(groups):
        for name, expected in _REFUSED.items():
            if group.get(name, expected) != expected:
                raise UnsupportedOptimizerError(
                    f"{kind.__name__}: parameter group {number} has {name}={group[name]}, which the hub does not have "
                    f"(expected {expected}); {_HOW}"
                )
        for name in _KIND:
            if _kind_of(name, group) != _kind_of(name, first):
                raise UnsupportedOptimizerError(
                    f"{kind.__name__}: its parameter groups differ in {name}: group 0 has {first.get(name)}, and group "
                    f"{number} {group.get(name)}: these are two optimizers to the hub, which runs one; {_HOW}"
                )
    rate, rates = _shares([group["lr"] for group in groups], [each.learning_rate for each in former])
    decay, decays = _shares([group["weight_decay"] for group in groups], [each.weight_decay for each in former])
    optimizers = tuple(_hub_optimizer(kind, group, rate, decay) for group in groups)
    return optimizers, tuple(map(Multipliers, rates, decays))


def _shares(values: List[Any], former: List[float]) -> Tuple[float, List[float]]:
    """Returns one number for all values, which is the first that is not zero, and the quotient of each value by it."""
    numbers = [float(value) for value in values]
    base = next((number for number in numbers if number), 0.0)
    if not base:
        return base, former

    def share(number: float, before: float) -> float:
        now = number / base
        return before if abs(now - before) <= _ROUNDING * abs(before) else now

    return base, list(map(share, numbers, former))


def _hub_optimizer(kind: type, group: Dict[str, Any], rate: float, decay: float) -> _optimizers.Optimizer:
    if kind is torch.optim.SGD:
        momentum = float(group["momentum"])
        if momentum == 0.0:
            return _optimizers.Sgd(rate, decay)
        if group["dampening"]:
            return _optimizers.Dampened(rate, momentum, decay, float(group["dampening"]))
        with_momentum = _optimizers.Nesterov if group["nesterov"] else _optimizers.Momentum
        return with_momentum(rate, momentum, decay)
    beta1, beta2 = (float(beta) for beta in group["betas"])
    if kind is Lion:
        return _optimizers.Lion(rate, decay, beta1, beta2)
    is_decoupled = kind is torch.optim.AdamW or group.get("decoupled_weight_decay")
    if group["amsgrad"]:
        adam: Type[_optimizers.Adam] = _optimizers.AmsGradW if is_decoupled else _optimizers.AmsGrad
    else:
        adam = _optimizers.AdamW if is_decoupled else _optimizers.Adam
    return adam(rate, decay, beta1, beta2, float(group["eps"]))


DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


def dtype_of(name: str, tensor: torch.Tensor) -> str:
    """Returns the hub's word for a tensor's type.

    Raises:
        SettingsError: the hub does not take it.
    """
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        raise SettingsError(f"parameter {name!r} is {tensor.dtype}; a hub takes float32, float16 and bfloat16")
    return dtype
