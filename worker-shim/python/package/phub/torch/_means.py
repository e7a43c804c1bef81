"""Sums and means of tensors of any shape, by sessions whose keys are fixed."""

from __future__ import annotations

import collections
import queue
import threading
import warnings
from typing import Any, Callable, Deque, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple, Union

import torch

from .._keys import Key
from .._optimizers import Average, Sum
from .._phub import Error, OrderError
from .._session import Session
from ._windows import tensor as window

# The sizes of the keys, in elements. There are several keys of each size, which are used in turn: 18 MB of f32 gradients in all,
# and 18 MB of means.
_SIZES = (1 << 18, 1 << 14, 1 << 10, 1 << 8)
_KEYS_OF_A_SIZE = 16


def pieces(elements: int) -> Iterator[Tuple[int, int]]:
    """Cuts a tensor: yields for each piece the size of its key, and the number of elements that the piece uses of the key.
    Both numbers depend only on the tensor's number of elements, so all workers cut alike. A piece uses more than half of its key,
    unless the key has the smallest size."""
    while elements > 0:
        size = next((size for size in _SIZES if 2 * elements > size), _SIZES[-1])
        yield size, min(size, elements)
        elements -= size


class Way(NamedTuple):
    """The type of a tensor's numbers, and whether sums or means are computed."""

    dtype: str
    optimizer: Union[Average, Sum]

    def __str__(self) -> str:
        return self.dtype if isinstance(self.optimizer, Sum) else f"{self.dtype}-mean"


class _Piece(NamedTuple):
    way: Way
    key: str
    target: torch.Tensor
    done: Optional[Callable[[Optional[BaseException]], None]]  # for the last piece of a tensor


class Means:
    """All-reduces of tensors in host memory, in place. They run in the order of the calls, which must be the same at all workers.

    A separate thread runs them, so a call of `reduce` does not wait. Each `Way` has a session, which the thread joins for the
    first tensor of this `Way`.
    """

    def __init__(self, join: Callable[..., Session], begin: Callable[[], None]) -> None:
        """Args:
            join: a function that makes a session, from the name of a way (the type, and sum or mean), and the keys and the
                optimizer of the session.
            begin: a function that the thread calls first.
        """
        self._join, self._begin = join, begin
        self._sessions: Dict[Way, Session] = {}
        self._next: Dict[Tuple[Way, int], int] = {}
        self._given: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self._under_way: Deque[_Piece] = collections.deque()
        self._busy: Set[Tuple[Way, str]] = set()
        self._error: Optional[BaseException] = None
        self._thread = threading.Thread(target=self._run, name="phub-means", daemon=True)
        self._thread.start()

    def reduce(self, way: Way, flat: torch.Tensor, done: Callable[[Optional[BaseException]], None]) -> None:
        """Replaces the elements of `flat`, a tensor of one dimension, by their sums or means over all workers. Returns at once.
        The thread then calls `done`, with an error or `None`. After an error, all later tensors fail with the same error."""
        self._given.put((way, flat, done))

    def finish(self) -> None:
        """Waits until all tensors are done, and ends the thread."""
        self._given.put(None)
        self._thread.join()

    def leave(self) -> None:
        """Leaves the jobs, after `finish`. A second call does nothing."""
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            try:
                if self._error is None:
                    session.leave()
            except Error as error:
                text = f"job {session.job!r}: this worker could not leave the job: {error}"
                warnings.warn(text, RuntimeWarning, stacklevel=2)
            finally:
                session.close()

    # ---- the thread

    def _run(self) -> None:
        self._begin()
        while True:
            if self._under_way and self._given.empty():
                self._settle_oldest()
                continue
            item = self._given.get()
            if item is None:
                break
            way, flat, done = item
            try:
                if self._error is not None:
                    raise self._error
                self._send(way, flat, done)
            except BaseException as error:
                self._fail(error, done)
        while self._under_way:
            self._settle_oldest()

    def _send(self, way: Way, flat: torch.Tensor, done: Callable[[Optional[BaseException]], None]) -> None:
        session = self._sessions.get(way)
        if session is None:
            keys = {f"{size}/{slot}": Key((size,), way.dtype) for size in _SIZES for slot in range(_KEYS_OF_A_SIZE)}
            session = self._sessions[way] = self._join(str(way), keys=keys, optimizer=way.optimizer)
        cut: List[Tuple[int, int]] = list(pieces(flat.numel()))
        at = 0
        for number, (size, used) in enumerate(cut):
            slot = self._next[(way, size)] = (self._next.get((way, size), -1) + 1) % _KEYS_OF_A_SIZE
            key, target = f"{size}/{slot}", flat[at : at + used]
            while (way, key) in self._busy:
                self._settle_oldest()
            if self._error is not None:
                raise self._error
            gradient = window(session, key, "gradient")
            gradient[:used].copy_(target)
            gradient[used:].zero_()
            gradient[used : used + 1].fill_(-1.0)
            session.push(key)
            self._busy.add((way, key))
            self._under_way.append(_Piece(way, key, target, done if number == len(cut) - 1 else None))
            at += used

    def _settle_oldest(self) -> None:
        piece = self._under_way.popleft()
        try:
            if self._error is not None:
                raise self._error
            session = self._sessions[piece.way]
            session.wait(piece.key)
            answer, used = window(session, piece.key, "weights"), piece.target.numel()
            _check_end(answer[used:], session, isinstance(piece.way.optimizer, Sum))
            put(piece.target, answer[:used])
        except BaseException as error:
            self._error = self._error or error
        self._busy.discard((piece.way, piece.key))
        if piece.done is not None:
            piece.done(self._error)

    def _fail(self, error: BaseException, done: Callable[[Optional[BaseException]], None]) -> None:
        self._error = self._error or error
        done(self._error)


def put(target: torch.Tensor, values: torch.Tensor) -> None:
    """Copies values into a tensor of the script, which may be from `torch.inference_mode()`: torch lets only code within this mode
    write such a tensor."""
    with torch.inference_mode(target.is_inference()):
        target.copy_(values)


def _check_end(rest: torch.Tensor, session: Session, is_sum: bool) -> None:
    """Checks that the tensors of all workers end at the same element of a key. Each worker writes -1 after its last element,
    and zeros after it. A tensor that fills its key has no rest; then the workers with shorter tensors find the difference.

    Args:
        rest: the hub's answer after this worker's last element.

    Raises:
        OrderError: the tensors have different numbers of elements.
    """
    if rest.numel() == 0:
        return
    workers = -rest[0].item() * (1 if is_sum else session.world_size)
    # The computed `workers` may differ from the world size by less than a half, or by the rounding error of 16 bits.
    limit = max(0.5, session.world_size / 128 if rest.element_size() == 2 else 0.0)
    if not abs(workers - session.world_size) < limit or bool(rest[1:].any()):
        raise OrderError(
            f"job {session.job!r}: in an all-reduce, rank {session.rank} has another number of elements than other workers have. "
            f"All workers must call all_reduce with tensors of one size, in the same order"
        )
