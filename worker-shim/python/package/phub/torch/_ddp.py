"""A communication hook for DistributedDataParallel: gradients are averaged by the hub, the optimizer stays local."""

from __future__ import annotations

import queue
import threading
from typing import Any, Dict, List, Optional, Tuple, Union

import torch

from .._hub import Hub
from .._keys import Key
from .._launch import worker
from .._optimizers import Average
from .._session import Session
from ._settings import dtype_of
from ._windows import tensor as window

_KEY = "bucket"


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
        self._made = 0
        self._answers: "queue.SimpleQueue[Optional[Tuple[Session, torch.Tensor, Any, List[BaseException]]]]" = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._receive, name="phub-ddp", daemon=True)
        self._thread.start()

    def average(self, bucket: Any) -> Any:
        """Sends a bucket; a future of its mean, in place."""
        buffer = bucket.buffer()
        session = self._session(bucket.index(), buffer)
        host = window(session, _KEY, "gradient")
        host.copy_(buffer)  # from a GPU this waits for the copy
        session.push(_KEY)
        failed: List[BaseException] = []

        def outcome(_given: Any) -> torch.Tensor:
            if failed:
                raise RuntimeError(f"{type(failed[0]).__name__}: {failed[0]}") from failed[0]
            return buffer

        given: Any = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else [])
        # What `then` raises is an error for DDP's reducer as well, which is C++. `set_exception` makes a value of it.
        answer = given.then(outcome)
        self._answers.put((session, buffer, given, failed))
        return answer

    def _session(self, index: int, buffer: torch.Tensor) -> Session:
        known = self._sessions.get(index)
        if known is not None and known.gradient(_KEY).shape == (buffer.numel(),):
            return known
        if known is not None:
            # DDP has rebuilt its buckets: no old bucket comes again, and none is under way.
            self.leave()
        self._made += 1
        key = Key((buffer.numel(),), dtype_of(_KEY, buffer))
        job = f"{self._job or worker().job[:40]}-ddp-{self._made}"
        session = Session(*self._place, keys={_KEY: key}, optimizer=Average(), job=job, **self._settings)
        self._sessions[index] = session
        return session

    def _receive(self) -> None:
        while True:
            item = self._answers.get()
            if item is None:
                return
            session, buffer, given, failed = item
            try:
                session.wait(_KEY)
                buffer.copy_(window(session, _KEY, "weights"))
            except BaseException as error:
                failed.append(error)
            given.set_result(buffer)

    def leave(self) -> None:
        """Leaves all jobs. At the end of a script this happens automatically."""
        sessions: List[Session] = list(self._sessions.values())
        self._sessions.clear()
        for session in sessions:
            session.leave()


def ddp_hook(state: HubState, bucket: Any) -> Any:
    """The hook: `torch.distributed.GradBucket` in, a future of its mean out."""
    return state.average(bucket)


if torch.distributed.is_available():
    # DDP compares these with its own, as types and not as text.
    ddp_hook.__annotations__.update(bucket=torch.distributed.GradBucket)  # type: ignore[attr-defined]
    ddp_hook.__annotations__["return"] = torch.futures.Future[torch.Tensor]
