"""Windows (a session's memory for gradients and weights) as torch tensors, without copies. Gradients are copied into windows, and
weights from windows into the parameters' own memory, also on a GPU."""

from __future__ import annotations

import ctypes
import queue
import threading
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch

from .._keys import Array
from .._session import Session


class _WithoutFlag:
    """The memory of an array, without NumPy's flag that it is read-only. Torch has no such flag, and warns of arrays with
    the flag."""

    def __init__(self, array: Array) -> None:
        self._array = array  # which keeps the memory
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def tensor(session: Session, key: str, which: str) -> torch.Tensor:
    """Returns a key's gradient or weights as a tensor over the window itself. A write to weights that are not this worker's own
    crashes the process."""
    array = session.gradient(key) if which == "gradient" else session.weights(key)
    if not array.flags.writeable:
        array = np.asarray(_WithoutFlag(array))
    if array.dtype.name == "uint16":  # bf16, which NumPy does not have
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(array)


def pinnable(session: Session, key: str) -> List[torch.Tensor]:
    """Returns a key's windows that are this process's own memory. Read-only weights are left out, because they can be pages
    of the hub. A restarted hub maps new pages at the same addresses, and the GPU would continue to read the old, pinned
    pages."""
    own = ("gradient", "weights") if session.weights(key).flags.writeable else ("gradient",)
    return [tensor(session, key, which) for which in own]


def pin(windows: List[torch.Tensor], device: torch.device) -> List[int]:
    """Pins windows, and returns the addresses of the pinned windows. Windows beyond the limit on locked memory are copied more
    slowly."""
    runtime = torch.cuda.cudart()
    pinned = []
    for window in windows:
        bytes_ = window.numel() * window.element_size()
        if bytes_ == 0:
            continue
        if int(runtime.cudaHostRegister(window.data_ptr(), bytes_, 0)) == 0:
            pinned.append(window.data_ptr())
        else:
            _forget_error(device)
    return pinned


def unpin(addresses: List[int], device: torch.device) -> None:
    """Undoes `pin`."""
    runtime = torch.cuda.cudart()
    for address in addresses:
        if int(runtime.cudaHostUnregister(address)) != 0:
            _forget_error(device)


def _forget_error(device: torch.device) -> None:
    # CUDA keeps the error of a call for the next caller that asks for the last error, and PyTorch asks after each kernel that
    # it launches. So the script would get the error from a line that did not cause it. PyTorch has no cudaGetLastError, so
    # this launches a kernel, after which PyTorch takes the error.
    try:
        torch.ones(1, device=device)
    except RuntimeError:
        pass


Call = Callable[..., None]
"""A call of the session for keys, such as `Session.push`."""


class HostWindows:
    """The windows of parameters in host memory."""

    crosses_a_bus = False
    """Whether an early write saves time, because the copy overlaps the computation."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._windows = {key: (tensor(session, key, "gradient"), tensor(session, key, "weights")) for key in session.keys}

    def write(self, values: Mapping[str, torch.Tensor], times: float = 1.0, clip_value: Optional[float] = None) -> None:
        """Writes gradients, or new weights, into the windows that the hub reads, by key. The values are multiplied by `times`, or
        clipped to between minus and plus `clip_value`."""
        if not values:
            return
        with torch.no_grad():
            if times == 1.0 and clip_value is None:
                copy([self._windows[key][0] for key in values], list(values.values()))
            else:
                for key, each in values.items():
                    _changed(each, times, clip_value, out=self._windows[key][0])

    def has(self, key: str, values: torch.Tensor, times: float, clip_value: Optional[float]) -> bool:
        """Whether the hub reads the same bits as `write` would write now. Always False if comparing takes longer than a write."""
        window = self._windows[key][0]
        return values.dtype == window.dtype and not have_other_bits(_changed(values, times, clip_value), window)

    def do(self, keys: Sequence[str], call: Call) -> None:
        """Makes a call of the session for keys, once the written values are in the windows."""
        if keys:
            call(*keys)

    def wait(self, key: str) -> None:
        """Waits until the hub's answer has arrived, for a module that computes with the weights next."""
        self._session.wait(key)

    def settle(self, key: str) -> None:
        """Waits until the hub's answer has arrived."""
        self._session.settle(key)

    def ready(self, keys: Sequence[str]) -> List[str]:
        """Returns the keys whose answer has arrived, of the given keys. With pulls in batches, returns no key."""
        return [] if self._session.pull is not None else self._session.ready(*keys)

    def take(self, keys: Sequence[str], into: List[torch.Tensor]) -> None:
        """Copies the hub's answers into tensors that require no gradient."""
        copy(into, [self._windows[key][1] for key in keys])

    def like(self, key: str) -> torch.Tensor:
        """Returns a tensor of the key's shape and type."""
        return self._windows[key][1]

    def differs(self, key: str, values: torch.Tensor) -> bool:
        """Whether a tensor has other bits than the hub's last answer."""
        return have_other_bits(values, self._windows[key][1].to(values.device, values.dtype))

    def close(self) -> None:
        """Does nothing: no work is left."""


def _changed(
    values: torch.Tensor, times: float, clip_value: Optional[float], out: Optional[torch.Tensor] = None
) -> torch.Tensor:
    """Returns values times a factor, or clipped; never both."""
    if clip_value is not None:
        return torch.clamp(values, -clip_value, clip_value, out=out)
    return values if times == 1.0 and out is None else torch.mul(values, times, out=out)


def _copy_each(into: List[torch.Tensor], values: List[torch.Tensor]) -> None:
    for target, source in zip(into, values):
        target.copy_(source)


copy: Callable[[List[torch.Tensor], List[torch.Tensor]], None] = getattr(torch, "_foreach_copy_", _copy_each)  # torch 2.1
"""Copies the tensors of the second list, which is not empty, into the tensors of the first list."""


def have_other_bits(values: torch.Tensor, others: torch.Tensor) -> bool:
    """Whether two tensors of one type and shape differ in any bit."""
    if values.is_contiguous() and others.is_contiguous() and not values.is_cuda:  # this takes an eighth of the time of torch's
        return _COMPARE(values.data_ptr(), others.data_ptr(), values.numel() * values.element_size()) != 0
    bits = _BITS[values.element_size()]
    return not torch.equal(values.view(bits), others.view(bits))


_COMPARE = ctypes.CDLL(None).memcmp
_COMPARE.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

# Integer types of the same size. If NaNs with equal bits are compared as integers, they are equal.
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class CudaWindows(HostWindows):
    """The windows of parameters on a GPU. A separate CUDA stream copies bytes while the GPU computes. Windows are pinned, except
    weights in pages of the hub.

    A separate thread waits for copies and then calls the session, so that the backward pass does not wait.
    """

    crosses_a_bus = True

    def __init__(self, session: Session, device: torch.device) -> None:
        super().__init__(session)
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pinned = pin([window for key in session.keys for window in pinnable(session, key)], device)
        self._calls: "queue.SimpleQueue[Optional[Tuple[List[Any], Sequence[str], Call, threading.Event]]]" = queue.SimpleQueue()
        self._made = {key: threading.Event() for key in session.keys}
        for made in self._made.values():
            made.set()  # nothing is on its way
        self._error: Optional[BaseException] = None
        self._copied: Dict[str, Any] = {}
        self._thread = threading.Thread(target=self._run, name="phub-copies", daemon=True)
        self._thread.start()

    def write(self, values: Mapping[str, torch.Tensor], times: float = 1.0, clip_value: Optional[float] = None) -> None:
        for key in values:
            self._made[key].wait()  # the bytes of an earlier call are read from the window
        # The stream waits until the values are made, and until the weights of the previous round were copied out of their
        # window.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for key, each in values.items():
                own = torch.Tensor.detach(each)
                self._windows[key][0].copy_(_changed(own, times, clip_value), non_blocking=True)
                each.record_stream(self._stream)
            done = torch.cuda.Event()
            done.record(self._stream)
        self._copied.update(dict.fromkeys(values, done))

    def has(self, key: str, values: torch.Tensor, times: float, clip_value: Optional[float]) -> bool:
        return False  # a comparison would cross the bus, as a write does

    def do(self, keys: Sequence[str], call: Call) -> None:
        made = threading.Event()
        for key in keys:
            self._made[key].wait()
            self._made[key] = made
        if keys:
            # Keys that one `write` has written, such as a bucket, share one event.
            copied = {id(event): event for event in (self._copied.pop(key, None) for key in keys) if event is not None}
            self._calls.put((list(copied.values()), keys, call, made))

    def _run(self) -> None:
        while True:
            item = self._calls.get()
            if item is None:
                return
            copied, keys, call, made = item
            try:
                for event in copied:
                    event.synchronize()
                call(*keys)
            except BaseException as error:
                self._error = error
            made.set()

    def wait(self, key: str) -> None:
        self._wait_for_calls(key)
        super().wait(key)

    def settle(self, key: str) -> None:
        self._wait_for_calls(key)
        super().settle(key)

    def _wait_for_calls(self, key: str) -> None:
        # A key that is pulled in a batch cannot come before all keys of the batch are pushed.
        for made in [self._made[key]] if self._session.pull is None else self._made.values():
            made.wait()
        if self._error is not None:
            raise self._error

    def ready(self, keys: Sequence[str]) -> List[str]:
        # A key whose call has not been made still shows its former answer as ready.
        return super().ready([key for key in keys if self._made[key].is_set()])

    def take(self, keys: Sequence[str], into: List[torch.Tensor]) -> None:
        for key, target in zip(keys, into):
            target.copy_(self._windows[key][1], non_blocking=True)
        # The next answer overwrites the window. The answer follows the next push, which waits for this event or a later one.
        done = torch.cuda.Event()
        done.record(torch.cuda.current_stream(self._device))
        self._copied.update(dict.fromkeys(keys, done))

    def close(self) -> None:
        self._calls.put(None)
        self._thread.join()
        torch.cuda.synchronize(self._device)
        unpin(self._pinned, self._device)


Windows = HostWindows


def windows(session: Session, device: torch.device) -> Windows:
    """Returns the windows that suit the device of the parameters."""
    return CudaWindows(session, device) if device.type == "cuda" else HostWindows(session)
