"""Parameters whose new values are on their way: whatever reads one waits for it.

Such a parameter is of a class of its own, which torch asks before each function. So what computes with values that are
there costs nothing more. It does not know sessions.
"""

from __future__ import annotations

import copy
import functools
from typing import Any, Callable, Dict, FrozenSet, Optional, Tuple

import torch
from torch._C import DisableTorchFunction as unasked
from torch._C import _disabled_torch_function_impl as call_unasked

__all__ = ["mark_new", "mark_pending", "unasked"]

# What training loops ask of a parameter between two steps, and which has nothing to do with its values.
_PROPERTIES = ("grad", "requires_grad", "shape", "ndim", "dtype", "device", "is_cuda", "is_leaf", "grad_fn", "_version")
_METHODS = ("size", "dim", "numel", "nelement", "stride", "element_size", "is_floating_point", "register_hook")


def _without_values() -> FrozenSet[Any]:
    properties = [getattr(torch.Tensor, name) for name in _PROPERTIES]
    accesses = [access for each in properties for access in (each.__get__, each.__set__, each.__delete__)]
    return frozenset([*accesses, *(getattr(torch.Tensor, name) for name in _METHODS)])


_WITHOUT_VALUES = _without_values()


class Pending:
    """Mixed into a parameter's own class."""

    _phub_own: type

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        if function in _WITHOUT_VALUES:
            return call_unasked(function, types, args, kwargs or {})
        _wait_for((args, kwargs))
        return function(*args, **(kwargs or {}))

    # torch does not ask before these, and they note the class.

    def __deepcopy__(self, memo: Any) -> Any:
        _wait_for(self)
        return copy.deepcopy(self, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        _wait_for(self)
        return self.__reduce_ex__(protocol)


@functools.lru_cache()
def _pending(own: Any) -> type:
    return type(own.__name__, (Pending, own), {"__doc__": own.__doc__, "_phub_own": own})


def mark_pending(parameter: Any, read: Callable[[Any], None]) -> None:
    """From now on who reads the parameter calls `read` first, which ends with `mark_new`."""
    own: Any = type(parameter)
    parameter._phub_read = read
    parameter.__class__ = _pending(own)


def mark_new(parameter: Any) -> None:
    """The parameter is as any other again."""
    own = getattr(type(parameter), "_phub_own", None)
    if own is not None:
        parameter.__class__ = own
        parameter.__dict__.pop("_phub_read", None)


def _wait_for(values: Any) -> None:
    if isinstance(values, Pending):
        # Nobody to wait for: another thread has waited, or a script has made a parameter of this class.
        values.__dict__.get("_phub_read", mark_new)(values)
    elif isinstance(values, (list, tuple)):
        for each in values:
            _wait_for(each)
    elif isinstance(values, dict):
        _wait_for(list(values.values()))
