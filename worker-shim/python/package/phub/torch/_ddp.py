"""A communication hook for DistributedDataParallel: gradients are averaged by the hub, the optimizer stays local."""

from __future__ import annotations

import queue
import threading
import weakref
from typing import Any, Dict, List, NamedTuple, Optional, Union

import torch

from .._hub import Hub
from .._keys import Key
from .._optimizers import Average
from .._phub import Error, SettingsError
from .._run import Helper
from .._session import Session
from ._joined import leave_dropped
from ._settings import DTYPES
from ._windows import tensor as window

_KEY = "bucket"

# The most shapes of parameters that stand in an error.
_SHAPES = 4


class _Sent(NamedTuple):
    """A bucket on its way."""

    session: Session
    buffer: torch.Tensor
    given: Any
    failed: List[BaseException]


class HubState:
    """The state of `ddp_hook`: `model.register_comm_hook(phub.torch.HubState(), phub.torch.ddp_hook)`.

    DDP fixes its buckets after the first iteration only. So each bucket is a job of its own, joined when the bucket is
    first seen; all workers see the same buckets in the same order. Those of the first iteration are left when DDP
    has built others.
    """

    def __init__(
        self,
        hub: Union[str, Hub, None] = None,
        rank: Optional[int] = None,
        world_size: Optional[int] = None,
        **session: Any,
    ) -> None:
        """Args: as for `phub.Session`."""
        self._place = (hub, rank, world_size)
        self._job = session.pop("job", None)
        self._settings = session
        self._sessions: Dict[int, Session] = {}
        self._words: Dict[int, str] = {}
        self._made = 0
        self._answers: "queue.SimpleQueue[Optional[_Sent]]" = queue.SimpleQueue()
        # The thread does not know this state: one that a script has dropped leaves its jobs.
        self._thread = threading.Thread(target=_receive, args=(self._answers,), name="phub-ddp", daemon=True)
        self._thread.start()
        weakref.finalize(self, _drop, self._sessions, self._answers).atexit = False

    def average(self, bucket: Any) -> Any:
        """Sends a bucket; a future of its mean, in place.

        Raises:
            SettingsError: the hub does not take such a bucket.
        """
        buffer = bucket.buffer()
        session = self._session(bucket, buffer)
        what = self._words[bucket.index()]
        try:
            host = window(session, _KEY, "gradient")
            host.copy_(buffer)  # from a GPU this waits for the copy
            session.push(_KEY)
        except Error as error:
            raise type(error)(f"{what}: {error}") from error
        failed: List[BaseException] = []

        def outcome(_given: Any) -> torch.Tensor:
            if failed:
                raise RuntimeError(f"{what}: {type(failed[0]).__name__}: {failed[0]}") from failed[0]
            return buffer

        given: Any = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else [])
        # What `then` raises is an error for DDP's reducer as well, which is C++. `set_exception` makes a value of it.
        answer = given.then(outcome)
        self._answers.put(_Sent(session, buffer, given, failed))
        return answer

    def _session(self, bucket: Any, buffer: torch.Tensor) -> Session:
        known = self._sessions.get(bucket.index())
        if known is not None and known.gradient(_KEY).shape == (buffer.numel(),):
            return known
        what = self._words[bucket.index()] = _spoken(bucket)
        if buffer.layout != torch.strided:
            raise SettingsError(
                f"{what}: its gradients are {buffer.layout}, and the hub takes dense ones: make its modules with sparse=False"
            )
        if buffer.dtype not in DTYPES:
            raise SettingsError(
                f"{what}: the hub averages float32, float16 and bfloat16. Make the model one of these (model.float()), or leave "
                f"the hook out: DDP averages {buffer.dtype} by itself"
            )
        if known is not None:
            # DDP has rebuilt its buckets: no old bucket comes again, and none is under way.
            self.leave()
        self._made += 1
        keys = {_KEY: Key((buffer.numel(),), DTYPES[buffer.dtype])}
        job = Helper("ddp") if self._job is None else f"{self._job}-ddp-{self._made}"
        try:
            session = Session(*self._place, keys=keys, optimizer=Average(), job=job, **self._settings)
        except Error as error:
            raise type(error)(f"{what}: {error}") from error
        self._sessions[bucket.index()] = session
        return session

    def leave(self) -> None:
        """Leaves all jobs. At the end of a script this happens automatically."""
        sessions: List[Session] = list(self._sessions.values())
        self._sessions.clear()
        for session in sessions:
            session.leave()


def _receive(answers: "queue.SimpleQueue[Optional[_Sent]]") -> None:
    while True:
        item = answers.get()
        if item is None:
            return
        try:
            item.session.wait(_KEY)
            item.buffer.copy_(window(item.session, _KEY, "weights"))
        except BaseException as error:
            item.failed.append(error)
        item.given.set_result(item.buffer)
        del item


def _drop(sessions: Dict[int, Session], answers: "queue.SimpleQueue[Optional[_Sent]]") -> None:
    """Leaves the jobs of a state that a script has dropped."""
    answers.put(None)
    for session in sessions.values():
        leave_dropped(session.job, session.leave)


def _spoken(bucket: Any) -> str:
    """A bucket, in words. Torch does not tell the names of its parameters."""
    buffer = bucket.buffer()
    shapes = [str(tuple(each.shape)) for each in bucket.parameters()]
    rest = f" and {len(shapes) - _SHAPES} more" if len(shapes) > _SHAPES else ""
    return (
        f"DDP's bucket {bucket.index()} ({buffer.numel()} elements of {str(buffer.dtype).partition('.')[2]}; parameters of shapes "
        f"{', '.join(shapes[:_SHAPES])}{rest})"
    )


def ddp_hook(state: HubState, bucket: Any) -> Any:
    """The hook: `torch.distributed.GradBucket` in, a future of its mean out."""
    return state.average(bucket)


if torch.distributed.is_available():
    # DDP compares these with its own, as types and not as text.
    ddp_hook.__annotations__.update(bucket=torch.distributed.GradBucket)  # type: ignore[attr-defined]
    ddp_hook.__annotations__["return"] = torch.futures.Future[torch.Tensor]
