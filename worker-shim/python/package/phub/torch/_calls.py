"""The all-reduces in progress: a future for each, whose callbacks may make all-reduces themselves.

All workers must make their all-reduces in the same order. So a separate thread runs the callbacks, in the order in which they
were added, each when its future is done. An all-reduce that a callback makes has the next depth. Each depth has its own threads
and sessions, so that a callback can wait for it:

    script             calls at depth 0, in the order of the script
      callback         calls at depth 1, in the order of the callbacks
        its callback   calls at depth 2
"""

from __future__ import annotations

import functools
import logging
import queue
import threading
from typing import Any, Callable, List, Optional

import torch

from .._phub import OrderError
from .._session import Session
from ._means import Means, Way

_LOG = logging.getLogger("phub")

# The largest number of depths. A depth is a level of all-reduces that callbacks of other all-reduces start. Each depth has two
# threads, and for each type of numbers a session with 36 MB. Torch's own hooks need two depths.
MAX_DEPTHS = 8

_HERE = threading.local()


class _Depth:
    """The two threads of one depth. One thread makes the depth's all-reduces, and the other thread runs their callbacks.
    All-reduces that these threads call have the next depth."""

    def __init__(self, number: int, join: Callable[..., Session]) -> None:
        begin = functools.partial(setattr, _HERE, "depth", number + 1)
        self.means = Means(functools.partial(join, number), begin)
        self.callbacks = _Callbacks(number, begin)

    def leave(self) -> None:
        self.means.finish()
        self.callbacks.finish()
        self.means.leave()


class Depths:
    """The all-reduces of a script and of its callbacks, by depth."""

    def __init__(self, join: Callable[..., Session]) -> None:
        """Args:
            join: a function that makes a session from a depth, the name of a `Way` (type, and sum or mean), keys and optimizer.
        """
        self._join = join
        self._depths: List[_Depth] = []
        self._lock = threading.Lock()

    def reduce(self, way: Way, flat: torch.Tensor, done: Callable[[Optional[BaseException]], None]) -> None:
        """Calls `Means.reduce` at the depth of the calling thread."""
        self._here().means.reduce(way, flat, done)

    def add(self, future: Any, callback: Callable[[Any], Any], answer: Optional["Answer"]) -> None:
        """Adds a callback, which is called with the future when the future is done. `answer` gets the callback's result."""
        self._here().callbacks.add(future, callback, answer)

    def _here(self) -> _Depth:
        number = getattr(_HERE, "depth", 0)
        if number >= MAX_DEPTHS:
            raise OrderError(
                f"all-reduces that callbacks of other all-reduces start are nested {MAX_DEPTHS} levels deep, "
                f"the maximum; start them from the script, in a loop"
            )
        with self._lock:
            while len(self._depths) <= number:
                self._depths.append(_Depth(len(self._depths), self._join))
            return self._depths[number]

    def leave(self) -> None:
        """Waits for all calls and callbacks, and leaves the jobs. A second call does nothing."""
        # The first depth is left first, because the callbacks of a depth may make all-reduces of the next depth.
        while self._depths:
            self._depths[0].leave()
            with self._lock:
                self._depths.pop(0)


class Answer(torch.futures.Future):  # type: ignore[type-arg]
    """The future of an all-reduce, or of a callback. Torch's own futures call a callback in a thread that depends on timing. The
    order of callbacks would then differ between workers."""

    def __init__(self, depths: Depths) -> None:
        super().__init__()
        self._depths = depths

    def then(self, callback: Callable[[Any], Any]) -> "Answer":  # type: ignore[override]
        answer = Answer(self._depths)
        self._depths.add(self, callback, answer)
        return answer

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        self._depths.add(self, callback, None)

    def finish(self, value: Any, error: Optional[BaseException] = None) -> None:
        """Sets the result of the future, or an error."""
        if error is None:
            self.set_result(value)
        else:
            self.set_exception(error if isinstance(error, CallError) else CallError(error))


class CallError(RuntimeError):
    """The error of an all-reduce. C++ code, such as DDP's reducer, gets an error as a value. Torch searches this value for
    tensors: it reads the value's text, or pickles the value. In both cases torch then raises an error with this text."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.__cause__ = error

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise self


class _Callbacks:
    """The thread that calls the callbacks of one depth. The first callback starts it."""

    def __init__(self, number: int, begin: Callable[[], None]) -> None:
        self._number, self._begin = number, begin
        self._given: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None
        self._lock = threading.Lock()

    def add(self, future: Any, callback: Callable[[Any], Any], answer: Optional[Answer]) -> None:
        with self._lock:
            if self._thread is None:
                name = f"phub-callbacks-{self._number}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
        self._given.put((future, callback, answer))

    def _run(self) -> None:
        self._begin()
        while True:
            item = self._given.get()
            if item is None:
                return
            _call(*item)
            del item  # it holds tensors, and the next `get` may wait for long

    def finish(self) -> None:
        """Waits until all callbacks have been called, and ends the thread."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._given.put(None)
            thread.join()


def _call(future: Any, callback: Callable[[Any], Any], answer: Optional[Answer]) -> None:
    try:
        future.wait()
    except Exception:
        pass  # the callback gets the error from the future
    value, failed = None, None
    try:
        value = callback(future)
    except BaseException as error:
        failed = error
    if answer is not None:
        answer.finish(value, failed)
    elif failed is not None:
        _LOG.error("a callback that was added to a future raised %s: %s", type(failed).__name__, failed)
