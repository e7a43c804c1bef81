"""Windows as torch tensors, without copies. Gradients are copied in and weights out, also from a GPU."""

from __future__ import annotations

import queue
import threading
from typing import Any, Dict, List, Optional, Tuple, Union

import numpy as np
import torch

from .._keys import Array
from .._phub import OrderError
from .._session import Session
from ._pending import unasked


class _WithoutFlag:
    """Memory of an array, without NumPy's flag that it is read-only: torch has no such tensors, and warns."""

    def __init__(self, array: Array) -> None:
        self._array = array  # which keeps the memory
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def tensor(session: Session, key: str, which: str) -> torch.Tensor:
    """A key's gradient or weights as a tensor over the window itself. Weights that are not this worker's own are to be read
    only: a write crashes the process."""
    array = session.gradient(key) if which == "gradient" else session.weights(key)
    if not array.flags.writeable:
        array = np.asarray(_WithoutFlag(array))
    if array.dtype.name == "uint16":  # bf16, which NumPy does not have
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(array)


def pinnable(session: Session, key: str) -> List[torch.Tensor]:
    """A key's windows that are this process's own memory. Weights that are read-only can be the hub's pages. A hub that
    comes back puts others at their addresses, and the GPU would read the pages that it has pinned."""
    own = ("gradient", "weights") if session.weights(key).flags.writeable else ("gradient",)
    return [tensor(session, key, which) for which in own]


def pin(windows: List[torch.Tensor], device: torch.device) -> List[int]:
    """Pins windows, and returns the addresses of those that are. The others (a limit on locked memory) are copied more
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
    # CUDA keeps the error of a call for whoever asks for the last one, and PyTorch asks after each kernel that it launches:
    # the script would get it from an innocent line. PyTorch has no cudaGetLastError; this kernel asks.
    try:
        torch.ones(1, device=device)
    except RuntimeError:
        pass


class HostWindows:
    """For parameters in host memory: a parameter's data is the weights window."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._gradients = {key: tensor(session, key, "gradient") for key in session.keys}
        self._adopted: Dict[str, Tuple[torch.Tensor, int]] = {}  # and their addresses

    def adopt(self, key: str, parameter: torch.Tensor) -> None:
        """From now on the parameter lives in the window."""
        parameter.data = tensor(self._session, key, "weights")
        self._adopted[key] = (parameter, parameter.data_ptr())

    def write(self, key: str, gradient: Optional[torch.Tensor]) -> None:
        """Puts a gradient, or zeros, into the window."""
        if gradient is None:
            self._gradients[key].zero_()
        else:
            self._gradients[key].copy_(gradient.detach())

    def push(self, key: str) -> None:
        """Pushes the gradient that was written.

        Raises:
            OrderError: the script has moved the parameter.
        """
        parameter, address = self._adopted[key]
        if parameter.data_ptr() != address:
            raise OrderError(
                f"parameter {key!r} was moved out of the session's weights after DistributedOptimizer (by .data = ..., "
                f"model.to(), share_memory() or vector_to_parameters), so that no step would reach it: move it before"
            )
        self._session.push(key)

    def wait(self, key: str) -> None:
        """Waits until the parameter is new, for a module that computes with it next."""
        self._session.wait(key)

    def settle(self, key: str) -> None:
        """Waits until the parameter is new."""
        self._session.settle(key)

    def close(self) -> None:
        """Nothing is left to be done."""


class CudaWindows:
    """For parameters on a GPU: bytes cross on a stream of their own, beside the computation. Windows are pinned, except
    weights that are the hub's pages.

    A push waits for its copy on a thread of its own, so that the backward pass does not.
    """

    def __init__(self, session: Session, device: torch.device) -> None:
        self._session = session
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._windows = {
            key: (tensor(session, key, "gradient"), tensor(session, key, "weights")) for key in session.keys
        }
        self._parameters: Dict[str, torch.Tensor] = {}
        self._pinned = pin([window for key in session.keys for window in pinnable(session, key)], device)
        self._copies: "queue.SimpleQueue[Optional[Tuple[Any, str]]]" = queue.SimpleQueue()
        self._sent = {key: threading.Event() for key in session.keys}
        for sent in self._sent.values():
            sent.set()  # nothing is on its way
        self._error: Optional[BaseException] = None
        self._copied: Dict[str, Any] = {}
        self._thread = threading.Thread(target=self._send, name="phub-copies", daemon=True)
        self._thread.start()

    def adopt(self, key: str, parameter: torch.Tensor) -> None:
        self._parameters[key] = parameter
        parameter.data.copy_(self._windows[key][1])

    def write(self, key: str, gradient: Optional[torch.Tensor]) -> None:
        window = self._windows[key][0]
        # After the gradient is made, and after the weights of the round before were copied out of their window.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            if gradient is None:
                window.zero_()
            else:
                window.copy_(gradient.detach(), non_blocking=True)
                gradient.record_stream(self._stream)
            done = torch.cuda.Event()
            done.record(self._stream)
        self._copied[key] = done

    def push(self, key: str) -> None:
        self._sent[key].clear()
        self._copies.put((self._copied.pop(key, None), key))

    def _send(self) -> None:
        while True:
            item = self._copies.get()
            if item is None:
                return
            copied, key = item
            try:
                if copied is not None:
                    copied.synchronize()
                self._session.push(key)
            except BaseException as error:
                self._error = error
            self._sent[key].set()

    def wait(self, key: str) -> None:
        self._wait_for_copies(key)
        self._session.wait(key)
        self._take(key)

    def settle(self, key: str) -> None:
        self._wait_for_copies(key)
        self._session.settle(key)
        self._take(key)

    def _wait_for_copies(self, key: str) -> None:
        # A key that is pulled in a batch cannot come before all keys of the batch are pushed.
        for sent in [self._sent[key]] if self._session.pull is None else self._sent.values():
            sent.wait()
        if self._error is not None:
            raise self._error

    def _take(self, key: str) -> None:
        # The next answer cannot overwrite what is still being copied: it comes after the next push, and that push after
        # a later copy.
        with unasked():  # which would wait for what is taken here
            self._parameters[key].data.copy_(self._windows[key][1], non_blocking=True)

    def close(self) -> None:
        self._copies.put(None)
        self._thread.join()
        torch.cuda.synchronize(self._device)
        unpin(self._pinned, self._device)


Windows = Union[HostWindows, CudaWindows]


def windows(session: Session, device: torch.device) -> Windows:
    """The windows that suit the device of the parameters."""
    return CudaWindows(session, device) if device.type == "cuda" else HostWindows(session)
