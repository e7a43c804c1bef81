"""Parameters whose values the hub makes: a read waits for the values, and a write is noticed.

A held parameter is of a separate class, in one of two states:

```
   Held      its values are here. Torch does not ask it anything, so that functions cost nothing more.
   Pending   its values are on their way. Torch asks it before each function, which waits for them first.
```

In both states the class notes accesses by which a script can write the values without a trace. Torch counts the writes to a
tensor, but not the writes to its `data` or to a NumPy array over it. The class does not know sessions.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, FrozenSet, Iterable, NamedTuple, Optional, Protocol, Tuple

import torch
from torch._C import DisableTorchFunction as unasked
from torch._C import _disabled_torch_function_impl as call_unasked

__all__ = [
    "Holder",
    "call_unasked",
    "claim",
    "drop_gradient",
    "gradient_of",
    "hold",
    "is_pending",
    "mark_here",
    "mark_pending",
    "release",
    "unasked",
]

# Properties that training loops read of a tensor between two steps, and that do not depend on its values.
_PROPERTIES = ("grad", "requires_grad", "shape", "ndim", "dtype", "device", "layout", "is_leaf", "grad_fn")
_MORE_PROPERTIES = ("is_cuda", "is_sparse", "_version", "names", "is_meta", "is_quantized", "is_mkldnn", "retains_grad", "_base")
_METHODS = ("size", "dim", "numel", "nelement", "stride", "element_size", "is_floating_point", "is_complex", "register_hook")


def _accesses(*names: str) -> FrozenSet[Any]:
    """Returns the functions of which torch asks a tensor's class when a property of these names is used."""
    properties = [getattr(torch.Tensor, name) for name in names if hasattr(torch.Tensor, name)]
    return frozenset(access for each in properties for access in (each.__get__, each.__set__, each.__delete__))


WITHOUT_VALUES: FrozenSet[Any] = _accesses(*_PROPERTIES, *_MORE_PROPERTIES) | {
    getattr(torch.Tensor, name) for name in _METHODS
}
"""Functions that have nothing to do with a tensor's values."""


class Taker(Protocol):
    """The receiver of the gradients of held parameters."""

    def handed_out(self, parameter: Any, gradient: torch.Tensor) -> None:
        """Notes that the script has got a gradient."""

    def given(self, parameter: Any) -> None:
        """Notes that the script has given the parameter a gradient."""


class Holder(NamedTuple):
    """The functions that a held parameter calls."""

    read: Callable[[Any], None]
    """Waits for the values; it ends with `mark_here`."""
    exposed: Callable[[Any, bool], None]
    """Notes that the values can be written without a trace from now on."""
    moved: Callable[[Any], None]
    """Notes that the script has given the parameter other memory."""
    gradients: Callable[[], Optional[Taker]]
    """Returns the object that takes the gradients, as long as that lives."""


# The key is `id(parameter)`. A parameter's own attributes would be copied and pickled along with it.
_HOLDERS: Dict[int, Holder] = {}

_DATA: Any = getattr(torch.Tensor, "data")  # noqa: B009, which only instances of a class have
_GRAD: Any = getattr(torch.Tensor, "grad")  # noqa: B009

gradient_of: Callable[[Any], Optional[torch.Tensor]] = _GRAD.__get__
"""Returns a parameter's gradient, as torch has it."""

drop_gradient: Callable[[Any], None] = _GRAD.__delete__
"""Takes a parameter's gradient away."""


def _taker(parameter: Any) -> Optional[Taker]:
    holder = _HOLDERS.get(id(parameter))
    return None if holder is None else holder.gradients()


def _expose(parameter: Any, forever: bool = False) -> None:
    holder = _HOLDERS.get(id(parameter))
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
        holder = _HOLDERS.get(id(self))
        if holder is not None:
            holder.read(self)
        with unasked():
            _DATA.__set__(self, values)
        if holder is not None:
            holder.moved(self)

    # Only gradients that a script has accessed are watched, so that gradients cost nothing in the backward pass.

    @property
    def grad(self) -> Optional[torch.Tensor]:
        """The gradient. The script has it from now on."""
        gradient = gradient_of(self)
        if gradient is not None:
            taker = _taker(self)
            if taker is not None:
                taker.handed_out(self, gradient)
        return gradient

    @grad.setter
    def grad(self, gradient: Optional[torch.Tensor]) -> None:
        _GRAD.__set__(self, gradient)
        taker = None if gradient is None else _taker(self)
        if taker is not None:
            taker.given(self)

    @grad.deleter
    def grad(self) -> None:
        drop_gradient(self)

    def detach(self) -> torch.Tensor:
        """Returns a view of the values, and notes it."""
        _expose(self)
        return super().detach()  # type: ignore[misc, no-any-return]

    def data_ptr(self) -> int:
        """Returns the address of the values, and notes it."""
        _expose(self, forever=True)  # the time for which an address is used is unknown
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

    # A copy is an ordinary parameter.

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
            found.__class__ = self._phub_own
        return memo[id(self)]

    def __copy__(self) -> Any:
        return self._phub_plain()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._phub_plain().__reduce_ex__(protocol)


class Pending(Held):
    """A class that is mixed into a parameter's own class while its values are on their way."""

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
    """Returns the class of held parameters whose values are here; each of the two classes knows both."""
    named = {"__doc__": own.__doc__, "__module__": own.__module__, "_phub_own": own}
    here, pending = (type(own.__name__, (kind, own), named) for kind in (Held, Pending))
    for each in (here, pending):
        each._phub_here, each._phub_pending = here, pending  # type: ignore[attr-defined]
    return here


def hold(parameter: Any, holder: Holder) -> None:
    """Changes a parameter's class, so that reads of the parameter wait for its values. The values are here at first."""
    claim([parameter], holder)
    own: Any = type(parameter)
    parameter.__class__ = _held(getattr(own, "_phub_own", own))


def claim(parameters: Iterable[Any], holder: Holder) -> None:
    """Makes this holder the one that makes the parameter's values next. Waits for the values of the former holder."""
    for parameter in parameters:
        if _HOLDERS.get(id(parameter)) is not holder:
            _read(parameter)
            _HOLDERS[id(parameter)] = holder


def release(parameter: Any, holder: Holder) -> None:
    """Makes a held parameter an ordinary one, if no other holder has claimed it."""
    if _HOLDERS.get(id(parameter)) is not holder:
        return
    del _HOLDERS[id(parameter)]
    own = getattr(type(parameter), "_phub_own", None)
    if own is not None:
        parameter.__class__ = own


def is_pending(parameter: Any) -> bool:
    """Whether the values are on their way."""
    return getattr(type(parameter), "_phub_is_pending", False)


def mark_pending(parameters: Iterable[Any]) -> None:
    """Makes each read of held parameters call the holder's `read` first."""
    for parameter in parameters:
        parameter.__class__ = type(parameter)._phub_pending


def mark_here(parameters: Iterable[Any]) -> None:
    """Ends `mark_pending`."""
    for parameter in parameters:
        here = getattr(type(parameter), "_phub_here", None)
        if here is not None:
            parameter.__class__ = here


def _read(parameter: Any) -> None:
    if is_pending(parameter):
        holder = _HOLDERS.get(id(parameter))
        if holder is None:  # a script has made a parameter of this class
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
