"""Gradients that are watched: torch calls their class before each function, and the class calls the gradient's watcher first.

A read changes nothing with one worker. With several workers, `p.grad` is this worker's own gradient, and a script expects
the mean of all workers, as with DDP. The watcher puts the mean into the gradient before the function runs. After that the
gradient is an ordinary tensor again, and other code may have views of it. This module does not know sessions.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, Optional, Protocol, Tuple

import torch

from ._held import WITHOUT_VALUES, call_unasked, eager, in_compiled_backward

__all__ = ["is_exposed", "is_watched", "release", "unwatch", "watch"]


class Watcher(Protocol):
    """An object that watches gradients."""

    def touched(self, gradient: Any) -> None:
        """Unwatches a gradient that the script is about to read or write."""

    def zeroed_by_script(self, gradient: Any) -> None:
        """Notes that the script is about to set a gradient to zero. After that the gradient need not be watched any more."""

    def puts_off(self, found: Any, factor: torch.Tensor) -> bool:
        """Returns whether the watcher will do a search of `GradScaler` later, and write its result into `found`.
        `GradScaler` searches gradients for values that are not finite, and multiplies them by `factor`. All the gradients of
        the search belong to this watcher."""


_WITHOUT_VALUES = WITHOUT_VALUES | {torch.Tensor.detach_, torch.Tensor.requires_grad_, torch._has_compatible_shallow_copy_type}
_MOVES = {getattr(torch.Tensor, name) for name in ("to", "cpu", "float", "type")}
_SET_DATA: Any = getattr(torch.Tensor, "data").__set__  # noqa: B009, because mypy knows `data` only of instances
_SEARCH = getattr(torch, "_amp_foreach_non_finite_check_and_unscale_", None)  # the scaler's


try:
    # torch.compile (torch 2) also looks at a parameter's gradient, but neither reads nor keeps it.
    from torch._guards import TracingContext  # type: ignore[import-not-found, unused-ignore]

    _traced: Callable[[], Any] = getattr(TracingContext, "try_get", None) or TracingContext.get  # `get` in torch 2.0
except ImportError:
    _traced = lambda: None  # noqa: E731


class Watched:
    """A class that is mixed into a gradient's own class."""

    _phub_own: type
    _phub_watcher: Watcher

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        if function in _WITHOUT_VALUES or _traced() is not None:
            return call_unasked(function, types, args, kwargs or {})
        return _used(function, args, kwargs or {})

    def __dlpack__(self, *arguments: Any, **named: Any) -> Any:
        self._phub_watcher.touched(self)
        unwatch(self)
        return self.__dlpack__(*arguments, **named)


@eager
def _used(function: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    """Calls a function that uses the values of a watched gradient."""
    if in_compiled_backward():
        return call_unasked(function, (), args, kwargs)
    if function is torch.Tensor.zero_:
        args[0]._phub_watcher.zeroed_by_script(args[0])
        release(args[0])
        return function(*args, **kwargs)
    if function is _SEARCH and _puts_off(*args):
        return None
    if function in _MOVES and call_unasked(function, (), args, kwargs) is args[0]:
        return args[0]  # a gradient that is there already, in this type: `model.cpu()` uses no values of it
    if function == _SET_DATA and args[1] is args[0]:
        return None
    found: List[Any] = []
    _collect((args, kwargs), found)
    for gradient in found:
        if isinstance(gradient, Watched):  # the watcher of another may have released it
            gradient._phub_watcher.touched(gradient)
            unwatch(gradient)
    return function(*args, **kwargs)


@functools.lru_cache(maxsize=None)
def _watched(own: Any) -> type:
    return type(own.__name__, (Watched, own), {"__doc__": own.__doc__, "__module__": own.__module__, "_phub_own": own})


def watch(gradient: Any, watcher: Watcher) -> None:
    """Makes the gradient watched: `watcher` is called before the next function of the script that uses the gradient's values."""
    kind: Any = type(gradient)
    own = getattr(kind, "_phub_own", kind)
    gradient._phub_watcher = watcher
    gradient.__class__ = _watched(own)


def unwatch(gradient: Any) -> None:
    """Makes a watched gradient an ordinary tensor, of which other code may have views from now on."""
    if isinstance(gradient, Watched):
        release(gradient)
        gradient._phub_is_exposed = True  # type: ignore[attr-defined]


def release(gradient: Any) -> None:
    """Ends the watch of a gradient of which no code has views. Functions then use the gradient directly."""
    own = getattr(type(gradient), "_phub_own", None)
    if own is not None:
        gradient.__class__ = own
        gradient.__dict__.pop("_phub_watcher", None)


def is_watched(gradient: Any) -> bool:
    """Whether no function has used the gradient's values since `watch`."""
    return isinstance(gradient, Watched)


def is_exposed(gradient: Any) -> bool:
    """Whether a script may have a view of the gradient, such as its `data`, whose writes torch does not count."""
    return getattr(gradient, "_phub_is_exposed", False)


def _puts_off(gradients: List[Any], found: Any, factor: torch.Tensor) -> bool:
    watchers = {id(each._phub_watcher) if isinstance(each, Watched) else None for each in gradients}
    if len(watchers) != 1 or None in watchers or isinstance(found, Watched):
        return False
    watcher: Watcher = gradients[0]._phub_watcher
    return watcher.puts_off(found, factor)


def _collect(values: Any, found: List[Any]) -> None:
    if isinstance(values, Watched):
        found.append(values)
    elif isinstance(values, (list, tuple)):
        for each in values:
            _collect(each, found)
    elif isinstance(values, dict):
        _collect(list(values.values()), found)
