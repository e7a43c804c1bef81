"""Parameters whose values come from the hub: a read waits for the values, and a write is noticed.

A held parameter has one of two classes:

```
   Held      its values have arrived. Torch's functions take it as any parameter, at no extra cost.
   Pending   its values have not arrived. Torch calls `__torch_function__` before each function, which waits for them.
```

Both classes note an access by which a script can write the values without torch's notice. Torch counts the writes to a tensor,
but not the writes to its `data` or to a NumPy array over it. This file must not depend on sessions.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable, Dict, FrozenSet, Iterable, List, NamedTuple, Optional, Protocol, Tuple

import torch
from torch._C import DisableTorchFunction as unasked
from torch._C import _disabled_torch_function_impl as call_unasked

__all__ = [
    "Holder",
    "call_unasked",
    "claim",
    "drop_gradient",
    "eager",
    "gradient_of",
    "hold",
    "in_compiled_backward",
    "is_held",
    "is_pending",
    "mark_here",
    "mark_pending",
    "release",
    "unasked",
]

# Properties and methods that training loops use between two steps, and that do not depend on a tensor's values.
_PROPERTIES = ("grad", "requires_grad", "shape", "ndim", "dtype", "device", "layout", "is_leaf", "grad_fn")
_MORE_PROPERTIES = ("is_cuda", "is_sparse", "_version", "names", "is_meta", "is_quantized", "is_mkldnn", "retains_grad", "_base")
_METHODS = ("size", "dim", "numel", "nelement", "stride", "element_size", "is_floating_point", "is_complex", "register_hook")


def _as_it_is(function: Any) -> Any:
    return function


eager: Callable[[Any], Any] = getattr(torch, "_disable_dynamo", _as_it_is)  # torch 2.1
"""Keeps torch.compile from tracing a function, so that the function runs with the real tensors."""


def _accesses(*names: str) -> FrozenSet[Any]:
    """Returns the functions that torch passes to `__torch_function__` when a property with one of these names is used."""
    properties = [getattr(torch.Tensor, name) for name in names if hasattr(torch.Tensor, name)]
    return frozenset(access for each in properties for access in (each.__get__, each.__set__, each.__delete__))


WITHOUT_VALUES: FrozenSet[Any] = _accesses(*_PROPERTIES, *_MORE_PROPERTIES) | {
    getattr(torch.Tensor, name) for name in _METHODS
}
"""Functions that do not depend on a tensor's values."""


class Taker(Protocol):
    """The object that is notified of a script's accesses to the gradients of held parameters."""

    def handed_out(self, parameter: Any, gradient: torch.Tensor) -> None:
        """Notes that the script has read the parameter's gradient."""

    def missed(self, parameter: Any) -> None:
        """Notes that the script has seen that the parameter has no gradient."""

    def given(self, parameter: Any) -> None:
        """Notes that the script has set the parameter's gradient."""

    def moved(self, parameter: Any) -> None:
        """Notes that the parameter has other memory, and perhaps another type."""


class Holder(NamedTuple):
    """The functions that a held parameter calls."""

    read: Callable[[Any], None]
    """Waits for the values, and then calls `mark_here`."""
    exposed: Callable[[Any, bool], None]
    """Notes that the script may write the values now without torch's notice. With the flag: now and at any later time."""
    moved: Callable[[Any], None]
    """Notes that the script has given the parameter other memory."""
    gradients: Callable[[], Optional[Taker]]
    """Returns the `Taker` of the gradients, or `None` after its end."""


# The holders of each parameter, by `id(parameter)`. Only the last holder counts. When the last holder releases the parameter,
# the previous holder counts again. An attribute of the parameter would not do: it would be copied and pickled with the
# parameter.
_HOLDERS: Dict[int, List[Holder]] = {}


def _holder_of(parameter: Any) -> Optional[Holder]:
    holders = _HOLDERS.get(id(parameter))
    return holders[-1] if holders else None


_DATA: Any = getattr(torch.Tensor, "data")  # noqa: B009, because mypy knows `data` only of instances
_GRAD: Any = getattr(torch.Tensor, "grad")  # noqa: B009

_NEW_PARAMETER = torch.nn.Parameter.__new__.__code__

gradient_of: Callable[[Any], Optional[torch.Tensor]] = _GRAD.__get__
"""Returns a parameter's gradient. Does not notify the `Taker`."""

drop_gradient: Callable[[Any], None] = _GRAD.__delete__
"""Sets a parameter's gradient to `None`."""


def _taker(parameter: Any) -> Optional[Taker]:
    holder = _holder_of(parameter)
    return None if holder is None else holder.gradients()


def in_compiled_backward() -> bool:
    """Whether a backward pass runs as compiled code (`torch._dynamo.config.compiled_autograd`). To add to gradients, such a
    pass calls the same functions as a script."""
    return getattr(sys.modules.get("torch._dynamo.compiled_autograd"), "in_compiled_autograd_region", False)


@eager
def _notify(taker: Taker, parameter: Any, gradient: Optional[torch.Tensor]) -> None:
    if in_compiled_backward():
        return
    if gradient is not None:
        taker.handed_out(parameter, gradient)
    else:
        taker.missed(parameter)


@eager
def _notify_given(taker: Taker, parameter: Any) -> None:
    if not in_compiled_backward():
        taker.given(parameter)


def _expose(parameter: Any, forever: bool = False) -> None:
    holder = _holder_of(parameter)
    if holder is not None:
        holder.read(parameter)
        holder.exposed(parameter, forever)


class Held:
    """A class that is mixed into a parameter's own class while the hub makes its values."""

    _phub_own: type
    _phub_is_pending = False

    @property
    def data(self) -> torch.Tensor:
        """A view of the values. Torch does not count a write to it, so the access is noted."""
        _expose(self)
        with unasked():
            found: torch.Tensor = _DATA.__get__(self)
        return found

    @data.setter
    def data(self, values: torch.Tensor) -> None:
        if values is self:  # `model.cpu()` where the model is
            return
        holder = _holder_of(self)
        if holder is not None:
            holder.read(self)
        with unasked():
            _DATA.__set__(self, values)
        if holder is not None:
            holder.moved(self)

    def set_(self, *arguments: Any, **named: Any) -> Any:
        """Gives the parameter other memory, as a write to `data` does."""
        holder = _holder_of(self)
        if holder is not None:
            holder.read(self)
        super().set_(*arguments, **named)  # type: ignore[misc]
        if holder is not None:
            holder.moved(self)
        return self

    # Only gradients that a script has read or set are watched, so that the backward pass is not slower.

    @property
    def grad(self) -> Optional[torch.Tensor]:
        """The gradient. A read notifies the `Taker` that the script has the gradient from now on."""
        gradient, taker = gradient_of(self), _taker(self)
        if taker is not None:
            _notify(taker, self, gradient)
        return gradient

    @grad.setter
    def grad(self, gradient: Optional[torch.Tensor]) -> None:
        _GRAD.__set__(self, gradient)
        taker = None if gradient is None else _taker(self)
        if taker is not None:
            _notify_given(taker, self)

    @grad.deleter
    def grad(self) -> None:
        drop_gradient(self)

    _grad = grad  # torch's other name of it

    def detach(self) -> torch.Tensor:
        """Returns a view of the values, and notes that the caller has access to them. For `torch.nn.Parameter(parameter)` the view
        has the same class, and no holder."""
        _expose(self)
        found: torch.Tensor = super().detach()  # type: ignore[misc]
        if sys._getframe(1).f_code is _NEW_PARAMETER:
            return torch.Tensor._make_subclass(type(self), found, False)  # type: ignore[attr-defined, no-any-return]
        return found

    def data_ptr(self) -> int:
        """Returns the address of the values, and notes that the caller has access to them."""
        _expose(self, forever=True)  # the caller may use the address at any later time
        return super().data_ptr()  # type: ignore[misc, no-any-return]

    def storage(self) -> Any:
        """Returns the storage of the values, and notes that the caller has access to them."""
        _expose(self)
        return super().storage()  # type: ignore[misc]

    def untyped_storage(self) -> Any:
        """Returns the storage of the values, and notes that the caller has access to them."""
        _expose(self)
        return super().untyped_storage()  # type: ignore[misc]

    def __dlpack__(self, *arguments: Any, **named: Any) -> Any:
        _expose(self)
        return super().__dlpack__(*arguments, **named)  # type: ignore[misc]

    def __repr__(self) -> str:
        return repr(self._phub_plain())

    # ---- copies, which are ordinary parameters

    def _phub_plain(self) -> Any:
        """Returns an ordinary parameter with these values."""
        _read(self)
        plain: Any = torch.Tensor._make_subclass(self._phub_own, super().detach(), self.requires_grad)  # type: ignore
        plain.__dict__.update(self.__dict__)
        return plain

    def __deepcopy__(self, memo: Any) -> Any:
        if id(self) not in memo:
            _read(self)
            found = memo[id(self)] = super().__deepcopy__(memo)  # type: ignore[misc]
            if isinstance(found, Held):  # torch.compile may copy parameters to tensors without values, of another class
                found.__class__ = self._phub_own
        return memo[id(self)]

    def __copy__(self) -> Any:
        return self._phub_plain()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._phub_plain().__reduce_ex__(protocol)


class Pending(Held):
    """A class that is mixed into a parameter's own class while its values have not arrived."""

    _phub_is_pending = True

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        if function in WITHOUT_VALUES:
            return call_unasked(function, types, args, kwargs or {})
        _read_all((args, kwargs))
        return function(*args, **(kwargs or {}))


@functools.lru_cache(maxsize=None)
def _held(own: Any) -> type:
    """Returns the `Held` class for parameters of the class `own`. This class and its `Pending` class refer to each other."""
    named = {"__doc__": own.__doc__, "__module__": own.__module__, "_phub_own": own}
    here, pending = (type(own.__name__, (kind, own), named) for kind in (Held, Pending))
    for each in (here, pending):
        each._phub_here, each._phub_pending = here, pending  # type: ignore[attr-defined]
    return here


def hold(parameter: Any, holder: Holder) -> None:
    """Makes a parameter a held parameter, whose reads wait for its values. At first its values count as arrived."""
    claim([parameter], holder)
    own: Any = type(parameter)
    parameter.__class__ = _held(getattr(own, "_phub_own", own))


def claim(parameters: Iterable[Any], holder: Holder) -> None:
    """Makes this holder the holder that counts. First waits for values that another holder expects."""
    for parameter in parameters:
        if _holder_of(parameter) is not holder:
            _read(parameter)
            _HOLDERS[id(parameter)] = [*_without(parameter, holder), holder]


def release(parameter: Any, holder: Holder) -> None:
    """Ends the hold of a parameter. Without another holder it is an ordinary parameter again."""
    if all(each is not holder for each in _HOLDERS.get(id(parameter), [])):
        return
    counts = _holder_of(parameter) is holder
    others = _HOLDERS[id(parameter)] = _without(parameter, holder)
    if others and counts:
        mark_here([parameter])
    elif not others:
        del _HOLDERS[id(parameter)]
        parameter.__class__ = getattr(type(parameter), "_phub_own", type(parameter))


def _without(parameter: Any, holder: Holder) -> List[Holder]:
    return [each for each in _HOLDERS.get(id(parameter), []) if each is not holder]


def is_held(parameter: Any) -> bool:
    """Whether a parameter has a holder."""
    return id(parameter) in _HOLDERS


def is_pending(parameter: Any) -> bool:
    """Whether the values have not arrived yet."""
    return getattr(type(parameter), "_phub_is_pending", False)


def mark_pending(parameters: Iterable[Any]) -> None:
    """Notes that values of held parameters have not arrived: a read then calls the holder's `read` first."""
    for parameter in parameters:
        parameter.__class__ = type(parameter)._phub_pending


def mark_here(parameters: Iterable[Any]) -> None:
    """Notes that the values of held parameters have arrived."""
    for parameter in parameters:
        here = getattr(type(parameter), "_phub_here", None)
        if here is not None:
            parameter.__class__ = here


def _read(parameter: Any) -> None:
    if is_pending(parameter):
        holder = _holder_of(parameter)
        if holder is None:  # a script has made a parameter of this class itself
            parameter.__class__ = type(parameter)._phub_own
        else:
            holder.read(parameter)


def _read_all(values: Any) -> None:
    if isinstance(values, Pending):
        _read(values)
    elif isinstance(values, (list, tuple)):
        for each in values:
            _read_all(each)
    elif isinstance(values, dict):
        _read_all(list(values.values()))
