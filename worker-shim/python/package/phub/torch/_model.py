"""A model as `DistributedOptimizer` sees it: the names of its parameters, and the tensors that are not trained."""

from __future__ import annotations

import operator
import weakref
from typing import Any, Dict, Iterable, List, Mapping, MutableMapping, Optional, Tuple, Union

import torch

from .._phub import SettingsError
from .._run import beside
from ._held import gradient_of, unasked
from ._tensors import broadcast_parameters

Named = Union[torch.nn.Module, Iterable[Tuple[str, torch.nn.Parameter]], None]


class Model:
    """A model's parameters and buffers by name, and which of the parameters the optimizer trains."""

    trained: Dict[str, torch.nn.Parameter]
    """The parameters that the optimizer has, that are not frozen, and that have elements, in the order of the model. A shared
    parameter is in the list once. A frozen parameter that has a gradient is among them, because torch steps it."""

    asleep: List[torch.nn.Parameter]
    """The parameters that the optimizer has and that had no elements, or were frozen without a gradient, when the job was joined."""

    without_optimizer: Dict[str, torch.nn.Parameter]
    """The parameters that the optimizer does not have."""

    def __init__(self, optimizer: torch.optim.Optimizer, named: Named) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise SettingsError(
                f"optimizer is a {type(optimizer).__name__}: expected a torch optimizer as first argument, the model as second"
            )
        self._module = _module_of(named)
        self._named = None if named is None or self._module is not None else pairs_of(named)
        self.trained = {}
        self._wholes: MutableMapping[torch.nn.Module, bool] = weakref.WeakKeyDictionary()
        self.follow(optimizer)

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Takes the parameters that the optimizer has now.

        Raises:
            SettingsError: a parameter has no name, no shape or no values, or the name of another parameter.
        """
        mine = {id(each): each for group in optimizer.param_groups for each in group["params"]}
        named = self._named if self._module is None else list(self._module.named_parameters())
        if named is None:
            named = [(f"parameter.{number}", each) for number, each in enumerate(mine.values())]
        names: Dict[str, torch.nn.Parameter] = {}
        found: Dict[int, str] = {}
        for name, parameter in named:
            if names.setdefault(name, parameter) is not parameter:
                raise SettingsError(f"named_parameters: two parameters are called {name!r}")
            if id(parameter) in mine:
                found.setdefault(id(parameter), name)
        for name, parameter in self.trained.items():  # the script may have put new parameters into the model in their place
            if id(parameter) in mine and id(parameter) not in found:
                while name in names:
                    name += ".former"
                names[name] = parameter
                found[id(parameter)] = name
        if len(found) < len(mine):
            number = next(number for number, each in enumerate(mine) if each not in found)
            raise SettingsError(
                f"named_parameters: {len(mine) - len(found)} of the optimizer's {len(mine)} parameters have no name in named_parameters, "
                f"the first is its parameter {number}, of shape {tuple(mine[list(mine)[number]].shape)}"
            )
        self.trained = {name: names[name] for name in found.values() if _is_stepped(names[name])}
        if not self.trained:
            raise SettingsError("the optimizer has no parameter that requires a gradient")
        lazy = next((name for name, each in names.items() if torch.nn.parameter.is_lazy(each)), None)
        if lazy is not None:
            raise SettingsError(f"parameter {lazy!r} has no shape yet: call the model once before DistributedOptimizer")
        meta = next((name for name, each in names.items() if each.is_meta), None)
        if meta is not None:
            raise SettingsError(f"parameter {meta!r} has no values (device 'meta'): call to_empty and initialise the parameter before DistributedOptimizer")
        devices = {str(parameter.device) for parameter in mine.values()}
        if len(devices) > 1:
            raise SettingsError(f"parameters are on several devices ({', '.join(sorted(devices))}); expected one")
        check_memory(self.trained)
        trained = {id(each) for each in self.trained.values()}
        self.asleep = [each for key, each in mine.items() if key not in trained]
        self.without_optimizer = {name: each for name, each in names.items() if id(each) not in mine}
        self._members = _members(optimizer)  # of each group
        self._frozen = {name: each for name, each in names.items() if id(each) not in trained}

    def has_changed(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the optimizer has other parameters than when the job was joined, or a frozen parameter is no longer frozen."""
        is_awake = any(each.requires_grad and each.numel() > 0 for each in self.asleep)
        return is_awake or not _have_same(_members(optimizer), self._members)

    def changes_in_step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether torch would step other parameters than the job has: because of `has_changed`, or because the script has given a
        frozen parameter a gradient."""
        return self.has_changed(optimizer) or any(map(_is_stepped, self.asleep))

    @property
    def unfrozen(self) -> List[str]:
        """The names of the parameters that were frozen when the job was joined, and that torch would step now."""
        awake = {id(each) for each in self.asleep if _is_stepped(each)}
        return [name for name, each in self._frozen.items() if id(each) in awake] if awake else []

    @property
    def buffers(self) -> Dict[str, torch.Tensor]:
        """The model's buffers by name; none if the model is not known."""
        return {} if self._module is None else dict(self._module.named_buffers())

    @property
    def is_known(self) -> bool:
        """Whether the model itself was given, or its own `named_parameters()`, and not only a list of parameters."""
        return self._module is not None

    def is_whole(self, module: torch.nn.Module) -> bool:
        """Whether a module is the model, or has all of it: a module that torch.compile or torch.jit has made of the model."""
        if self._module is None or module is self._module:
            return module is self._module
        if module not in self._wholes:
            ours = set(map(id, self._module.parameters()))
            is_outside = all(each is not module for each in self._module.modules())
            self._wholes[module] = is_outside and ours <= set(map(id, module.parameters()))
        return self._wholes[module]

    def rest_of(self, module: torch.nn.Module) -> List[str]:
        """Returns the names of the module's parameters and buffers that were not in `named_parameters`."""
        known = {id(each) for each in (*self.trained.values(), *self._frozen.values())}
        return [name for name, each in (*module.named_parameters(), *module.named_buffers()) if id(each) not in known]

    def broadcast_rest(self, session: Mapping[str, Any], job: Optional[str] = None) -> None:
        """Gives all workers rank 0's frozen parameters and buffers, in a job that is named after `job`. With such a name the
        workers need not first agree on a random word."""
        rest = {**self._frozen, **self.buffers}
        if rest:
            place = {name: session[name] for name in ("hub", "rank", "world_size", "mesh", "token", "transport") if name in session}
            if job is not None:
                place["job"] = beside(job, "-rest")
            broadcast_parameters(rest, **place)


def _is_stepped(parameter: torch.nn.Parameter) -> bool:
    """Whether a step of torch changes a parameter of an optimizer, now or after a backward pass. The parameter has elements, or is
    lazy."""
    is_empty = not torch.nn.parameter.is_lazy(parameter) and parameter.numel() == 0
    return (parameter.requires_grad or gradient_of(parameter) is not None) and not is_empty


def _members(optimizer: torch.optim.Optimizer) -> List[List[torch.nn.Parameter]]:
    """Returns the parameters of each group."""
    return [list(group["params"]) for group in optimizer.param_groups]


def _have_same(groups: List[List[torch.nn.Parameter]], former: List[List[torch.nn.Parameter]]) -> bool:
    """Whether each group has the same parameters as before, in any order."""
    if list(map(len, groups)) != list(map(len, former)):
        return False
    if all(all(map(operator.is_, *pair)) for pair in zip(groups, former)):  # the usual case, which needs no sets
        return True
    return all(set(map(id, now)) == set(map(id, before)) for now, before in zip(groups, former))


def check_memory(parameters: Mapping[str, torch.nn.Parameter]) -> None:
    """Checks that no two parameters have the same values in memory: the hub would step both, and one result would be lost.

    Raises:
        SettingsError: two parameters have the same memory, or parts of it.
    """
    with unasked():
        places = sorted((str(each.device), torch.Tensor.data_ptr(each), name) for name, each in parameters.items() if each.numel() > 0)
        before: List[Tuple[str, int, str]] = []  # those that may reach the next place
        for device, first, name in places:
            before = [each for each in before if each[0] == device and each[1] > first]
            for _, _, other in before:
                if _have_common(parameters[other], parameters[name]):
                    raise SettingsError(
                        f"parameters {other!r} and {name!r} have the same memory, or parts of it: make them one parameter "
                        f"(module.weight = other.weight), which has one gradient, or give each its own memory (clone())"
                    )
            before.append((device, first + _reach(parameters[name]), name))


def _reach(parameter: torch.Tensor) -> int:
    """Returns the number of bytes from a tensor's first element to the end of its last element."""
    last = sum((size - 1) * step for size, step in zip(parameter.shape, parameter.stride()))
    return (last + 1) * parameter.element_size()


def _have_common(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have an element in common. Columns of one matrix, for example, alternate in memory, but have no
    element in common."""
    if torch.Tensor.data_ptr(one) == torch.Tensor.data_ptr(other):
        return True
    return bool(torch.isin(_addresses(one), _addresses(other)).any())


def _addresses(parameter: torch.Tensor) -> torch.Tensor:
    found = torch.tensor([torch.Tensor.data_ptr(parameter)], device="cpu")
    for size, step in zip(parameter.shape, parameter.stride()):
        found = (found[:, None] + torch.arange(size, device="cpu") * (step * parameter.element_size())).flatten()
    return found


def pairs_of(named: Any) -> List[Tuple[str, torch.nn.Parameter]]:
    """Returns pairs of name and parameter, also of a dict.

    Raises:
        SettingsError: an entry is not a name with a tensor.
    """
    pairs = list(named.items() if isinstance(named, Mapping) else named) if isinstance(named, Iterable) else [named]
    for each in pairs:
        kinds = tuple(map(type, each)) if isinstance(each, (tuple, list)) else (type(each),)
        if len(kinds) != 2 or not issubclass(kinds[0], str) or not issubclass(kinds[1], torch.Tensor):
            found = ", ".join(kind.__name__ for kind in kinds)
            raise SettingsError(f"named_parameters: found ({found}); expected the model, or its named_parameters()")
    return pairs


def _module_of(named: Any) -> Optional[torch.nn.Module]:
    """Returns the model, if `named` is the model or the result of its `named_parameters()`."""
    if not isinstance(named, torch.nn.Module):
        frame = getattr(named, "gi_frame", None)  # the frame of the generator, in which `self` is the model
        named = frame.f_locals.get("self") if frame is not None else None
    return named if isinstance(named, torch.nn.Module) else None
