"""The settings of a torch optimizer's groups, translated to the hub's optimizer and to multipliers of keys. Used at the join, and
whenever the settings change."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Type, TypeVar

import torch

from .. import _optimizers
from .._phub import Error, SettingsError
from ._own import Lamb, Lars, Lion


class UnsupportedOptimizerError(Error):
    """A torch optimizer, or a setting of it, that the hub cannot run."""


_HOW = (
    "the hub runs torch.optim.SGD, Adam and AdamW, and phub.torch.Lion, Lamb and Lars; to use another optimizer, do not wrap "
    "it, and average gradients by DistributedDataParallel with phub.torch.ddp_hook"
)

# The settings that the hub does not know, each with the only value that is possible.
_REFUSED: Dict[str, Any] = {"differentiable": False}

# The settings that determine the kind of optimizer at the hub. Each kind keeps different state, and all groups of a job have the
# same kind.
_KIND = ("momentum", "dampening", "nesterov", "amsgrad", "maximize", "decoupled_weight_decay")

# All settings on which a step depends.
_FOLLOWED = ("lr", "weight_decay", "betas", "eps", "trust", *_KIND, *_REFUSED)

# The largest relative difference of multipliers that count as equal. Rounding may change a quotient by this much.
_ROUNDING = 2e-7

# A learning rate below 0 counts as 0 if it is closer to 0 than this number. Rounding leaves rates up to 1e-16 times a schedule's
# first rate.
_LEAST_RATE = 1e-12

Groups = List[Dict[str, Any]]

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Multipliers:
    """The multipliers of the job's learning rate and weight decay, for a parameter group."""

    learning_rate: float
    weight_decay: float


@dataclasses.dataclass(frozen=True)
class Change:
    """A change to send to the hub: the optimizer with its new hyperparameters, and the multipliers of each group if they have
    changed, too."""

    optimizer: _optimizers.Optimizer
    groups: Optional[Tuple[Multipliers, ...]]


class Settings:
    """The settings of a torch optimizer's groups, translated to optimizers of the hub and to multipliers."""

    optimizers: Tuple[_optimizers.Optimizer, ...]
    """The optimizer of each group, without the group's multipliers. The first optimizer is the job's."""

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
        """Reads the groups of an optimizer. `kind` is torch's class of the optimizer; default: its own class.

        Raises:
            UnsupportedOptimizerError: the hub cannot run the optimizer. The message names the setting and the next step.
        """
        kind = kind or type(optimizer)
        if kind not in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, Lion, Lamb, Lars):
            raise UnsupportedOptimizerError(f"{kind.__module__}.{kind.__qualname__}: {_HOW}")
        return cls(kind, optimizer.param_groups)

    @property
    def maximize(self) -> bool:
        """Whether steps go up the gradient."""
        return _kind_of("maximize", self._seen[0])

    def differs(self, groups: Groups) -> bool:
        """Whether the settings differ from those at the last call of `changed`."""
        return _seen(groups) != self._seen

    def changed(self, groups: Groups) -> Optional[Change]:
        """Returns the change to send to the hub, or `None` if the settings have not changed since the last call.

        Raises:
            UnsupportedOptimizerError: a group has changed in a way that the hub cannot follow. Later calls raise the error again.
        """
        seen = _seen(groups)
        if seen == self._seen:
            return None
        if len(seen) != len(self._seen):
            raise UnsupportedOptimizerError(
                f"{self._kind.__name__}: the optimizer had {len(self._seen)} parameter groups at the join and has {len(seen)} "
                f"now: wrap the optimizer when all its groups are there"
            )
        for number, (former, now) in enumerate(zip(self._seen, seen)):
            for name in _KIND:
                if _kind_of(name, former) != _kind_of(name, now):
                    instead = "use a small momentum instead of 0" if name == "momentum" else f"start a new job to change {name}"
                    raise UnsupportedOptimizerError(
                        f"{self._kind.__name__}: parameter group {number}: {name} was {former[name]} and is {now[name]} now: "
                        f"the hub's optimizer would need other state; {instead}"
                    )
        optimizers, multipliers = _numbers(self._kind, seen, self.groups)
        change = Change(optimizers[0], None if multipliers == self.groups else multipliers)
        self._seen, self.optimizers, self.groups = seen, optimizers, multipliers
        return change

    def others(self, groups: Groups, parameters: Mapping[str, torch.Tensor]) -> Dict[str, _optimizers.Optimizer]:
        """Returns the optimizers of the parameters whose group has other hyperparameters than the first group, by parameter's
        name."""
        if len(set(self.optimizers)) == 1:
            return {}
        of_names = _by_name(self.optimizers, groups, parameters)
        return {name: each for name, each in of_names.items() if each != self.optimizer}


def by_key(
    multipliers: Tuple[Multipliers, ...], groups: Groups, parameters: Mapping[str, torch.Tensor]
) -> Dict[str, Tuple[float, float]]:
    """Returns the multipliers of learning rate and weight decay of each parameter, by the parameter's name."""
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
    """Returns whether a group has a setting of `_KIND`. The value does not count: only whether there is momentum, for example."""
    return bool(group.get(name))


def _numbers(
    kind: type, groups: Tuple[Dict[str, Any], ...], former: Tuple[Multipliers, ...]
) -> Tuple[Tuple[_optimizers.Optimizer, ...], Tuple[Multipliers, ...]]:
    """Returns the hub's optimizer for each group, and the multipliers of each group. A multiplier keeps its former value if the
    new value is equal up to rounding. It also keeps the value if the job's learning rate or weight decay is 0, because the
    multiplier then has no effect.

    Raises:
        UnsupportedOptimizerError: the hub does not have a setting, or the groups need different kinds of optimizers.
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
                    f"{number} has {group.get(name)}: the hub would need two optimizers, and runs one; {_HOW}"
                )
    rate, rates = _shares([_rate(group) for group in groups], [each.learning_rate for each in former])
    decay, decays = _shares([group["weight_decay"] for group in groups], [each.weight_decay for each in former])
    if kind in (Lamb, Lars):  # a key whose multiplier is 0 is not scaled by its norms
        decays = [share if group["weight_decay"] else 0.0 for share, group in zip(decays, groups)]
    optimizers = tuple(_hub_optimizer(kind, group, rate, decay) for group in groups)
    return optimizers, tuple(map(Multipliers, rates, decays))


def _rate(group: Dict[str, Any]) -> float:
    """Returns the learning rate of a group. Schedules that end at 0, such as `LinearLR`, may end a rounding error below 0. No
    weight changes by such a rate, and the hub refuses rates below 0."""
    rate = float(group["lr"])
    return 0.0 if -_LEAST_RATE < rate < 0.0 else rate


def _shares(values: List[Any], former: List[float]) -> Tuple[float, List[float]]:
    """Returns the first value that is not zero, and each value divided by it."""
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
    if kind is Lars:
        return _optimizers.Lars(rate, float(group["momentum"]), decay, float(group["trust"]))
    beta1, beta2 = (float(beta) for beta in group["betas"])
    if kind is Lion:
        return _optimizers.Lion(rate, decay, beta1, beta2)
    if kind is Lamb:
        return _optimizers.Lamb(rate, decay, beta1, beta2, float(group["eps"]))
    is_decoupled = kind is torch.optim.AdamW or group.get("decoupled_weight_decay")
    if group["amsgrad"]:
        adam: Type[_optimizers.Adam] = _optimizers.AmsGradW if is_decoupled else _optimizers.AmsGrad
    else:
        adam = _optimizers.AdamW if is_decoupled else _optimizers.Adam
    return adam(rate, decay, beta1, beta2, float(group["eps"]))


# The settings that depend on the norm of the whole gradient, or on its values.
_OF_NORMS = ("clip_norm", "clip_norm_last", "skip_nonfinite", "skip_spikes")


def check_parts(what: str, session: Mapping[str, Any]) -> None:
    """Checks the settings of jobs that average parts of a gradient, such as buckets. The norm would be the norm of a part. A
    part that is skipped would keep the mean of an earlier step.

    Raises:
        SettingsError: a setting needs the whole gradient.
    """
    name = next((name for name in _OF_NORMS if session.get(name)), None)
    if name is not None:
        raise SettingsError(
            f"{what}: {name}={session[name]} needs the whole gradient, and this job averages parts of it: leave {name} out, and clip or "
            f"check the gradients after backward(), as without a hub"
        )


DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


def dtype_of(name: str, tensor: torch.Tensor) -> str:
    """Returns the hub's name for the type of a tensor: "f32", "f16" or "bf16".

    Raises:
        SettingsError: the hub does not take this type.
    """
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        raise SettingsError(f"parameter {name!r} is {tensor.dtype}; a hub takes float32, float16 and bfloat16")
    return dtype
