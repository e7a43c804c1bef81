"""A model's parameters with the hub's values. The hub writes values into a window, a part of the session's memory. A read copies
them into the parameter. Values that the script writes are found at the next `step()`.

```
   step()              the values of all parameters are pending: a read waits
   read, or a module   values are copied from the window into the parameter's own memory
   script writes       found by torch's count of writes; where torch can miss a write, by comparing with the window
   bytes sent ahead    the hub may write its answer into the window before `step()`
```

A parameter keeps its memory, so views that a script has taken stay valid. If there are views, or other processes share the memory,
`step()` waits for their values.
Owned by the thread of the script. Other threads may read parameters, such as a thread that evaluates the model meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from typing import Any, Callable, Dict, FrozenSet, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

import torch

from .._phub import SettingsError
from ._errors import StateError
from ._held import Holder, Taker, claim, hold, mark_here, mark_pending, release, unasked
from ._model import check_memory
from ._settings import DTYPES
from ._windows import Windows, have_other_bits

# The size of a bucket, whose parameters are copied together. It is small, so that the values are still in the cache when the next
# modules compute with them.
_BUCKET_BYTES = 64 * 1024
_LEAST_BYTES = 256  # the least that a parameter counts in a bucket: each wait looks at all pending parameters of the bucket


class _Weight:
    """A parameter with its memory, and torch's count of writes when its values arrived."""

    __slots__ = (
        *("parameter", "values", "version", "is_exposed", "has_address_out", "is_lent", "known"),
        *("place", "storage", "users", "is_on_cpu"),
    )

    def __init__(self, parameter: torch.nn.Parameter) -> None:
        self.parameter = parameter
        self.is_exposed = self.has_address_out = self.is_lent = False
        self.known: Optional[torch.Tensor] = None  # a copy of the values, to compare with while the hub may write the window
        self.look_again()
        self.is_exposed = self.is_in_other_processes

    def look_again(self) -> None:
        """Stores the parameter's current memory and its count of writes."""
        with unasked(), torch.no_grad():
            self.values = torch.Tensor.detach(self.parameter)
            self.place = _place(self.values)
            self.storage: Any = _storage(self.values)
            self.users: Callable[[], int] = _users(self.storage)
            self.is_on_cpu = self.values.device.type == "cpu"
            self.version = self.values._version

    @property
    def is_in_other_processes(self) -> bool:
        """Whether other processes may have the memory. Torch moves a parameter to shared memory when a script sends it to another
        process. Torch also calls all memory of GPUs shared, so only memory of the CPU counts."""
        return self.is_on_cpu and bool(self.storage.is_shared())


class Weights:
    """The parameters of a model, by key."""

    def __init__(self, parameters: Dict[str, torch.nn.Parameter], windows: Windows) -> None:
        self.parameters, self._windows = parameters, windows
        self._holder: Optional[Holder] = None  # from `begin` to `leave`
        self._keys = {id(parameter): key for key, parameter in parameters.items()}
        self._weights: Dict[str, _Weight] = {}
        self.pending: Set[str] = set()
        """The keys whose new values have not been copied into their parameters."""
        self._moved: Set[str] = set()
        self._unmoved: FrozenSet[str] = frozenset()
        """The keys whose values the last step has not changed."""
        self._buckets: Dict[str, List[str]] = {}
        """The bucket of each key: keys that are neighbours in the forward pass. A bucket's arrived values are copied together."""
        self._lock = threading.RLock()
        """A lock that is held from the read of `pending` until the values are copied, so that no step comes between."""

    def begin(self, gradients: Callable[[], Optional[Taker]]) -> None:
        """Copies the first values into the parameters, and makes them held parameters."""
        self._gradients = gradients
        self._holder = holder = Holder(self._read, self._exposed, self._has_moved, gradients)
        for key, parameter in self.parameters.items():
            hold(parameter, holder)
            self._weights[key] = _Weight(parameter)
        self.arrange(list(self.parameters))
        self._put(list(self.parameters))
        self._note_places()

    def arrange(self, keys: List[str]) -> None:
        """Makes buckets of keys that are neighbours in this order, which is the order of the forward pass."""
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

    def stepped(self, unmoved: Sequence[str] = ()) -> None:
        """Notes that all parameters get new values, except `unmoved`, whose values are the same. Waits for the values of parameters
        of which the script may have views."""
        with self._lock:
            older = self.pending - self._unmoved  # these have values of an earlier step, which are not in the parameters yet
            self._unmoved = frozenset(unmoved) - older
            places = [each.place for key, each in self._weights.items() if key not in self._unmoved] if unmoved else self._places
            if places:
                with unasked(), torch.no_grad():
                    _count_write(places)  # so that torch raises its error in a backward pass over the old values
            mark_pending(self.parameters.values())
            viewed = []
            for key, weight in self._weights.items():
                if weight.is_in_other_processes or weight.has_address_out or weight.users() > _OWN_USERS:
                    weight.is_exposed = True
                    viewed.append(key)
            self.pending.update(self._weights)
            self.settle(viewed)

    def _read(self, parameter: torch.nn.Parameter) -> None:
        key = self._keys[id(parameter)]
        with self._lock:
            if key in self.pending:
                self._take(key, self._windows.settle)
            else:
                mark_here([parameter])

    def _take(self, key: str, wait: Callable[[str], None]) -> None:
        with self._lock:
            if key not in self.pending:
                return  # another thread has taken it
            wait(key)
            neighbours = [each for each in self._buckets[key] if each in self.pending and each != key]
            self._put([key, *(self._windows.ready(neighbours) if neighbours else ())])

    def _put(self, keys: List[str]) -> None:
        """Copies the hub's answers into their parameters."""
        weights = [self._weights[key] for key in keys]
        moved = [key for key in keys if key not in self._unmoved]
        if moved:
            self._windows.take(moved, [self._weights[key].values for key in moved])
        self.pending.difference_update(keys)
        mark_here([weight.parameter for weight in weights])
        for weight in weights:
            weight.version = weight.values._version

    def wait(self, keys: Iterable[str]) -> None:
        """Waits for the values with which a module computes next."""
        for key in keys:
            if key in self.pending:
                self._take(key, self._windows.wait)

    def settle(self, keys: Iterable[str]) -> None:
        """Waits for values, for a caller that is not a forward pass."""
        for key in keys:
            if key in self.pending:
                self._take(key, self._windows.settle)

    def settle_all(self) -> None:
        """Waits for the values of all parameters."""
        self.settle(list(self.pending))

    def lend(self, keys: Sequence[str]) -> None:
        """Lets the hub write the windows of these keys until the next `step()`. To find writes of the script, `step()` then
        compares the parameters with copies of their values, and not with the windows."""
        self.settle(keys)
        if not self._moved.isdisjoint(keys):
            self._check_moved()
        for key in keys:
            weight = self._weights[key]
            if weight.is_exposed:
                if self._differs(key, weight):
                    self._moved.add(key)
                self._know(weight)
            weight.is_lent = True

    def free_all(self) -> None:
        """Waits until no key is in flight, so that all windows may be written."""
        for key in list(self.pending):
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
        gradients = self._gradients()
        if gradients is not None:
            gradients.moved(parameter)

    @contextlib.contextmanager
    def replaced(self, values: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Returns a context in which the parameters have these values. Writes in the context do not count as the script's, and
        are undone at its end."""
        self.settle_all()
        weights = list(self._weights.items())
        for key, weight in weights:
            if weight.values._version != weight.version:
                self._moved.add(key)  # the script has written the parameter before the context
            if weight.is_lent:
                self._know(weight)
        own = [weight.values.clone() for _, weight in weights]
        try:
            _fill([(weight, values[key]) for key, weight in weights])
            yield
        finally:
            _fill([(weight, each) for (_, weight), each in zip(weights, own)])

    def _check_moved(self) -> None:
        """Checks the parameters to which the script has given other memory.

        Raises:
            SettingsError: a parameter has the memory of another parameter, or a shape or type with which the hub cannot step it.
        """
        check_memory(self.parameters)
        for key in self.parameters:
            now, before = self._weights[key].values, self._windows.like(key)
            if key in self._moved and (now.shape != before.shape or now.dtype not in DTYPES):
                was, seen = (f"{each.dtype} of shape {tuple(each.shape)}" for each in (before, now))
                raise SettingsError(
                    f"parameter {key!r} was {was} at DistributedOptimizer, and is {seen} now: the hub steps it as it was. Change it "
                    f"back before the backward pass, or leave() and wrap a new optimizer"
                )

    def written(self) -> List[str]:
        """Returns the keys of the parameters that the script has written since their values arrived.

        Raises:
            SettingsError: the hub cannot step a parameter in the memory that the script has given it.
            StateError: a parameter was exchanged for another tensor, which this optimizer does not have.
        """
        if self._moved:
            self._check_moved()
        assert self._holder is not None
        claim(self.parameters.values(), self._holder)  # another optimizer with the same parameters may have made a step
        swapped = next((key for key, each in self.parameters.items() if not hasattr(type(each), "_phub_own")), None)
        if swapped is not None:
            raise StateError(
                f"parameter {swapped!r} was exchanged for another tensor (torch.utils.swap_tensors, or load_state_dict and to() by "
                f"torch.__future__.set_swap_module_params_on_conversion): the hub's values go to the former tensor's memory. Write the values by copy_, "
                f"or exchange tensors before DistributedOptimizer"
            )
        found = []
        with self._lock:
            for key, weight in self._weights.items():
                if key in self.pending:
                    continue  # not written, because a write waits for the values first
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
        """Makes the parameters ordinary parameters again, with the values that they have."""
        self.pending.clear()
        holder, self._holder = self._holder, None  # its methods refer to this object, and so would keep the windows
        if holder is not None:
            for parameter in self.parameters.values():
                release(parameter, holder)


def _fill(weights: List[Tuple[_Weight, torch.Tensor]]) -> None:
    with unasked(), torch.no_grad():
        for weight, values in weights:
            weight.values.copy_(values)
            weight.version = weight.values._version


def _counting() -> Tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[List[torch.Tensor]], None]]:
    count: Any = getattr(torch.autograd.graph, "increment_version", None)
    try:
        count([torch.zeros(1)])  # older versions of torch take one tensor (2.4), or lack the function
    except (AttributeError, RuntimeError, TypeError):
        # An operation that torch counts as a write, and that writes nothing: zeros into an empty view.
        return lambda values: values.as_strided((0,), (1,)), torch._foreach_zero_  # type: ignore[attr-defined]
    return lambda values: values, count


_place, _count_write = _counting()
"""Two functions. The first returns the tensor by which a write to a parameter is counted. The second counts a write to each of
several such tensors."""


def _storage(values: torch.Tensor) -> Any:
    return values.untyped_storage() if hasattr(values, "untyped_storage") else values.storage()._storage


def _users(storage: Any) -> Callable[[], int]:
    """Returns a function that counts the tensors and other objects that use a storage."""
    count = getattr(vars(torch)["_C"], "_storage_Use_Count", None)
    if count is not None:
        return functools.partial(count, storage._cdata)
    # Before torch 2.1, no function returns the number of users. A storage's memory begins with the pointer to its virtual
    # functions, and the number follows.
    counted = ctypes.c_size_t.from_address(storage._cdata + ctypes.sizeof(ctypes.c_void_p))
    return lambda: counted.value

_ALONE = _Weight(torch.nn.Parameter(torch.zeros(1)))
_OWN_USERS = _ALONE.users()
"""The number of users of a storage for a parameter without views of the script."""
