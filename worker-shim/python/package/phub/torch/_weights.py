"""A model's parameters with the hub's values. Values come from the hub when they are read, and values that a script writes
are found at the next `step()`.

```
   step()              values are on their way, a read waits
   read, or a module   values are copied from the window into the parameter's own memory
   script writes       found by torch's count of writes; where that can miss one, by comparing with the window
   bytes sent ahead    the window is the hub's, which may answer them there before `step()`
```

A parameter keeps its memory, so views that a script has taken are still right: if there are any, `step()` waits. Owned
by the thread of the script.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

import torch

from ._held import Holder, Taker, claim, hold, mark_here, mark_pending, release, unasked
from ._windows import Windows, have_other_bits

# Values that are copied at once: they stay in the cache for the modules that compute with them next.
_BUCKET_BYTES = 64 * 1024
_LEAST_BYTES = 256  # the least that a value counts: all values of a bucket that are in flight are looked at in each wait


class _Weight:
    """A parameter with its memory, and the version of its values when they arrived."""

    __slots__ = ("parameter", "values", "version", "is_exposed", "has_address_out", "is_lent", "known", "place", "storage")

    def __init__(self, parameter: torch.nn.Parameter) -> None:
        self.parameter = parameter
        self.is_exposed = self.has_address_out = self.is_lent = False
        self.known: Optional[torch.Tensor] = None  # a copy, to compare with while the window is lent
        self.look_again()

    def look_again(self) -> None:
        """Takes the parameter's current memory."""
        with unasked(), torch.no_grad():
            self.values = torch.Tensor.detach(self.parameter)
            self.place = _place(self.values)
            self.storage: Any = _storage(self.values)
            self.version = self.values._version


class Weights:
    """The parameters by key."""

    def __init__(self, parameters: Dict[str, torch.nn.Parameter], windows: Windows) -> None:
        self.parameters, self._windows = parameters, windows
        self._keys = {id(parameter): key for key, parameter in parameters.items()}
        self._weights: Dict[str, _Weight] = {}
        self.pending: Set[str] = set()
        """Keys whose values are not in their parameters yet."""
        self._moved: Set[str] = set()
        self._buckets: Dict[str, List[str]] = {}
        """The bucket of each key: the values of neighbours in the forward pass are taken together, if they are there."""

    def begin(self, gradients: Callable[[], Optional[Taker]]) -> None:
        """Takes the first values, and holds the parameters from now on."""
        self._holder = Holder(self._read, self._exposed, self._has_moved, gradients)
        for key, parameter in self.parameters.items():
            hold(parameter, self._holder)
            self._weights[key] = _Weight(parameter)
        self.arrange(list(self.parameters))
        self._put(list(self.parameters))
        self._note_places()

    def arrange(self, keys: List[str]) -> None:
        """Takes neighbours in this order, the order of the forward pass, together if their values have arrived."""
        room = 0
        for key in keys:
            weight = self._weights[key]
            bytes_ = max(_LEAST_BYTES, weight.values.numel() * weight.values.element_size())
            if room < bytes_:
                bucket, room = [], _BUCKET_BYTES
            bucket.append(key)
            room -= bytes_
            self._buckets[key] = bucket

    def _note_places(self) -> None:
        self._places = [weight.place for weight in self._weights.values()]

    # ---- reads

    def stepped(self) -> None:
        """Notes that new values are on their way to all parameters. Parameters that may have views in a script get them now."""
        with unasked(), torch.no_grad():
            _count_write(self._places)  # a backward pass over old values is torch's error
        mark_pending(self.parameters.values())
        viewed = []
        for key, weight in self._weights.items():
            if weight.has_address_out or _users(weight.storage) > _OWN_USERS:
                weight.is_exposed = True
                viewed.append(key)
        self.pending.update(self._weights)
        self.settle(viewed)

    def _read(self, parameter: torch.nn.Parameter) -> None:
        key = self._keys[id(parameter)]
        if key in self.pending:
            self._take(key, self._windows.settle)
        else:
            mark_here([parameter])

    def _take(self, key: str, wait: Callable[[str], None]) -> None:
        wait(key)
        neighbours = [each for each in self._buckets[key] if each in self.pending and each != key]
        self._put([key, *(self._windows.ready(neighbours) if neighbours else ())])

    def _put(self, keys: List[str]) -> None:
        """Puts the hub's answers into their parameters."""
        weights = [self._weights[key] for key in keys]
        self._windows.take(keys, [weight.values for weight in weights])
        self.pending.difference_update(keys)
        mark_here([weight.parameter for weight in weights])
        for weight in weights:
            weight.version = weight.values._version

    def wait(self, keys: Iterable[str]) -> None:
        """Waits for values that a module computes with next."""
        for key in keys:
            if key in self.pending:
                self._take(key, self._windows.wait)

    def settle(self, keys: Iterable[str]) -> None:
        """Waits for values outside of a forward pass."""
        for key in keys:
            if key in self.pending:
                self._take(key, self._windows.settle)

    def settle_all(self) -> None:
        """Waits for the values of all parameters."""
        self.settle(list(self.pending))

    def lend(self, keys: Sequence[str]) -> None:
        """Lets the hub write the windows of keys until the next `step()`, which compares the parameters with copies instead."""
        self.settle(keys)
        for key in keys:
            weight = self._weights[key]
            if weight.is_exposed:
                if self._differs(key, weight):
                    self._moved.add(key)
                self._know(weight)
            weight.is_lent = True

    def free_all(self) -> None:
        """Waits until the windows of all keys may be written."""
        for key in self.pending:
            self._windows.settle(key)

    # ---- writes

    def _exposed(self, parameter: torch.nn.Parameter, forever: bool) -> None:
        weight = self._weights[self._keys[id(parameter)]]
        weight.is_exposed = True
        weight.has_address_out |= forever
        if weight.is_lent:
            self._know(weight)

    def _know(self, weight: _Weight) -> None:
        if weight.known is None:
            with unasked(), torch.no_grad():
                weight.known = weight.values.clone()

    def _has_moved(self, parameter: torch.nn.Parameter) -> None:
        key = self._keys[id(parameter)]
        self._weights[key].look_again()
        self._moved.add(key)
        self._note_places()

    @contextlib.contextmanager
    def replaced(self, values: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Returns a context in which the parameters have other values. Nothing in it counts as a write of the script."""
        self.settle_all()
        weights = list(self._weights.items())
        for key, weight in weights:
            if weight.values._version != weight.version:
                self._moved.add(key)  # the script has written it before
            if weight.is_lent:
                self._know(weight)
        own = [weight.values.clone() for _, weight in weights]
        try:
            _fill([(weight, values[key]) for key, weight in weights])
            yield
        finally:
            _fill([(weight, each) for (_, weight), each in zip(weights, own)])

    def written(self) -> List[str]:
        """Returns the keys of the parameters that the script has written since their values came."""
        claim(self.parameters.values(), self._holder)  # another optimizer may have stepped them
        found = []
        for key, weight in self._weights.items():
            if key in self.pending:
                continue  # a writer reads first
            if key in self._moved or weight.values._version != weight.version:
                found.append(key)
            elif weight.is_exposed and self._differs(key, weight):
                found.append(key)
            weight.is_exposed = weight.is_lent = False
            weight.known = None
        self._moved.clear()
        return found

    def _differs(self, key: str, weight: _Weight) -> bool:
        if weight.known is not None:
            return have_other_bits(weight.values, weight.known)
        return self._windows.differs(key, weight.values)

    # ---- the end

    def leave(self) -> None:
        """Makes the parameters ordinary ones again, with the values that they have."""
        self.pending.clear()
        for parameter in self.parameters.values():
            release(parameter, self._holder)


def _fill(weights: List[Tuple[_Weight, torch.Tensor]]) -> None:
    with unasked(), torch.no_grad():
        for weight, values in weights:
            weight.values.copy_(values)
            weight.version = weight.values._version


def _counting() -> Tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[List[torch.Tensor]], None]]:
    count: Any = getattr(torch.autograd.graph, "increment_version", None)
    try:
        count([torch.zeros(1)])  # newer versions take several at once
    except (AttributeError, TypeError):
        # An operation that counts as a write, and writes nothing.
        return lambda values: values.as_strided((0,), (1,)), torch._foreach_zero_  # type: ignore[attr-defined]
    return lambda values: values, count


_place, _count_write = _counting()
"""The tensor of a parameter whose writes torch counts for it, and a function that counts a write to each of several."""


def _storage(values: torch.Tensor) -> Any:
    return values.untyped_storage() if hasattr(values, "untyped_storage") else values.storage()._storage


def _of_torch() -> Callable[[Any], int]:
    count = getattr(vars(torch)["_C"], "_storage_Use_Count", None)
    if count is not None:
        return lambda storage: int(count(storage._cdata))

    # A storage of torch before 2.1 begins with a pointer to its functions, and its count follows.
    def read(storage: Any) -> int:
        return ctypes.c_size_t.from_address(storage._cdata + ctypes.sizeof(ctypes.c_void_p)).value

    return read


_users = _of_torch()
"""The number of tensors and other objects that use a storage."""

_ALONE = _Weight(torch.nn.Parameter(torch.zeros(1)))
_OWN_USERS = _users(_ALONE.storage)
"""This number for a parameter without other views."""
