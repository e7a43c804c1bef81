"""A communication hook for DistributedDataParallel: the hub averages gradients, and the optimizer remains local."""

from __future__ import annotations

import queue
import threading
import weakref
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

import torch

from .._hub import Hub
from .._keys import Key
from .._optimizers import Average
from .._phub import Error, OrderError, SettingsError
from .._run import Helper
from .._session import Session
from ._held import eager
from ._joined import leave_dropped
from ._settings import DTYPES, check_parts
from ._windows import tensor as window

# The largest number of shapes that an error lists.
_SHAPES = 4

# The number of elements and their type, for each bucket of a pass, in the order of the calls.
_Pass = Tuple[Tuple[int, str], ...]


class _Sent(NamedTuple):
    """A bucket that was sent, and whose mean has not arrived yet."""

    session: Session
    key: str
    buffer: torch.Tensor
    given: Any
    failed: List[BaseException]


class _Jobs:
    """The jobs of a `HubState`. This object holds no reference to the state, so it can leave the jobs when a script drops the
    state."""

    def __init__(self, place: Tuple[Any, ...], settings: Dict[str, Any]) -> None:
        self._place = place
        self._name = settings.pop("job", None)
        self._settings = settings
        self._made = 0
        self.session: Optional[Session] = None

    def join(self, buckets: _Pass, **settings: Any) -> Session:
        """Joins a job with a key for each bucket."""
        self._made += 1
        keys = {str(number): Key((elements,), dtype) for number, (elements, dtype) in enumerate(buckets)}
        job = Helper("ddp") if self._name is None else f"{self._name}-ddp-{self._made}"
        return Session(*self._place, keys=keys, optimizer=Average(), job=job, **{**self._settings, **settings})

    def leave(self) -> None:
        """Leaves the job of all buckets. A second call does nothing."""
        session, self.session = self.session, None
        if session is not None:
            session.leave()


class HubState:
    """The state of `ddp_hook`: `model.register_comm_hook(phub.torch.HubState(), phub.torch.ddp_hook)`.

    DDP does not announce its buckets, and builds new buckets after its first pass. So in the first passes each bucket has a
    separate job, and the backward pass waits for its mean. After two passes with the same buckets, one job has all buckets.
    From then on the backward pass does not wait, and `compression` is used.
    """

    def __init__(
        self,
        hub: Union[str, Hub, None] = None,
        rank: Optional[int] = None,
        world_size: Optional[int] = None,
        **session: Any,
    ) -> None:
        """Args: as for `phub.Session`.

        Raises:
            SettingsError: `clip_norm`, `skip_nonfinite` or a similar setting, which a bucket alone cannot have.
        """
        check_parts("HubState", session)
        self._jobs = _Jobs((hub, rank, world_size), session)
        self._passes: Tuple[_Pass, _Pass] = ((), ())
        self._seen: _Pass = ()
        self._keys: _Pass = ()
        self._words: Dict[int, str] = {}
        self._given: Dict[int, Any] = {}  # the future of each bucket of the job of all buckets
        self._answers: "queue.SimpleQueue[Optional[_Sent]]" = queue.SimpleQueue()
        # The thread holds no reference to this state, so that the state can be collected when a script drops it. The finalizer
        # then leaves the jobs.
        self._thread = threading.Thread(target=_receive, args=(self._answers,), name="phub-ddp", daemon=True)
        self._thread.start()
        weakref.finalize(self, _drop, self._jobs, self._answers).atexit = False

    @property
    def session(self) -> Optional[Session]:
        """The session of the job that has all buckets; `None` in the first passes."""
        return self._jobs.session

    @eager
    def average(self, bucket: Any) -> Any:
        """Sends a bucket. Returns a future of the bucket's buffer, which has the mean when the future is done.

        Raises:
            SettingsError: the bucket's gradients are sparse, or of a type that the hub does not take.
        """
        buffer = bucket.buffer()
        dtype = _checked(bucket)
        number = len(self._seen)
        try:
            if number == 0:
                self._begin_pass()
            shape = buffer.numel(), dtype
            self._seen += (shape,)
            has_key = self._jobs.session is not None and self._keys[number : number + 1] == (shape,)
            if bucket.is_last():
                self._passes, self._seen = (self._passes[1], self._seen), ()
            return self._send(number, bucket) if has_key else self._mean_now(buffer, dtype)
        except Error as error:
            raise type(error)(f"{_spoken(bucket)}: {error}") from error

    def _begin_pass(self) -> None:
        """Leaves the job of all buckets if the last pass had other buckets. Joins such a job if the last two passes had equal
        buckets. No bucket is in flight."""
        before, last = self._passes
        if self._jobs.session is not None and last != self._keys:
            self._jobs.leave()
        if self._jobs.session is None and last and before == last:
            self._keys, self._words, self._given = last, {}, {}
            self._jobs.session = self._jobs.join(last)

    def _mean_now(self, buffer: torch.Tensor, dtype: str) -> Any:
        """Sends a bucket in a separate job, because it is not in the job of all buckets. Waits for the bucket's mean."""
        session = self._jobs.join(((buffer.numel(), dtype),), compression=None)
        try:
            window(session, "0", "gradient").copy_(buffer)
            session.push("0")
            session.wait("0")
            buffer.copy_(window(session, "0", "weights"))
            session.leave()
        finally:
            session.close()
        answer = _future(buffer)
        answer.set_result(buffer)
        return answer

    def _send(self, number: int, bucket: Any) -> Any:
        """Pushes a bucket. The thread takes the mean when it arrives."""
        buffer, session, key = bucket.buffer(), self._jobs.session, str(number)
        assert session is not None
        what = self._words.get(number) or self._words.setdefault(number, _spoken(bucket))
        if number in self._given and not self._given[number].done():
            raise OrderError(
                "its mean of the previous pass has not arrived: two models share a HubState; give each its own HubState"
            )
        host = window(session, key, "gradient")
        host.copy_(buffer)  # from a GPU, it returns when the copy is complete
        session.push(key)
        failed: List[BaseException] = []

        def outcome(_given: Any) -> torch.Tensor:
            if failed:
                raise RuntimeError(f"{what}: {type(failed[0]).__name__}: {failed[0]}") from failed[0]
            return buffer

        given = self._given[number] = _future(buffer)
        # DDP's reducer, which is C++, must get the error, too. It does not get an exception that `set_exception` has set, so a
        # callback of `then` raises the exception.
        answer = given.then(outcome)
        self._answers.put(_Sent(session, key, buffer, given, failed))
        return answer

    def leave(self) -> None:
        """Leaves the job, as the end of a script does."""
        self._jobs.leave()


def _checked(bucket: Any) -> str:
    """Returns the hub's name for the type of a bucket's numbers.

    Raises:
        SettingsError: the gradients are sparse, or of a type that the hub does not take.
    """
    buffer = bucket.buffer()
    if buffer.layout != torch.strided:
        raise SettingsError(
            f"{_spoken(bucket)}: its gradients are {buffer.layout}, and the hub takes only dense gradients: make its modules with "
            "sparse=False"
        )
    if buffer.dtype not in DTYPES:
        raise SettingsError(
            f"{_spoken(bucket)}: the hub averages float32, float16 and bfloat16. Convert the model to one of these types (model.float()), or "
            f"leave the hook out: DDP averages {buffer.dtype} by itself"
        )
    return DTYPES[buffer.dtype]


def _future(buffer: torch.Tensor) -> Any:
    return torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else [])


def _receive(answers: "queue.SimpleQueue[Optional[_Sent]]") -> None:
    while True:
        item = answers.get()
        if item is None:
            return
        try:
            item.session.wait(item.key)
            item.buffer.copy_(window(item.session, item.key, "weights"))
        except BaseException as error:
            item.failed.append(error)
        item.given.set_result(item.buffer)
        del item


def _drop(jobs: _Jobs, answers: "queue.SimpleQueue[Optional[_Sent]]") -> None:
    """Ends the thread and leaves the jobs of a `HubState` that a script has dropped."""
    answers.put(None)
    if jobs.session is not None:
        leave_dropped(jobs.session.job, jobs.leave)


def _spoken(bucket: Any) -> str:
    """Describes a bucket for an error. Torch does not give the names of a bucket's parameters, so the text has their shapes."""
    buffer = bucket.buffer()
    shapes = [str(tuple(each.shape)) for each in bucket.parameters()]
    rest = f" and {len(shapes) - _SHAPES} more" if len(shapes) > _SHAPES else ""
    return (
        f"DDP's bucket {bucket.index()} ({buffer.numel()} elements of {str(buffer.dtype).partition('.')[2]}; parameters of shapes "
        f"{', '.join(shapes[:_SHAPES])}{rest})"
    )


def ddp_hook(state: HubState, bucket: Any) -> Any:
    """Averages a bucket of DDP at the hub: the communication hook for `register_comm_hook`. Takes a
    `torch.distributed.GradBucket`, and returns a future of its mean."""
    return state.average(bucket)


if torch.distributed.is_available():
    # DDP checks the annotations of a hook: they must be types, and not texts.
    ddp_hook.__annotations__.update(bucket=torch.distributed.GradBucket)  # type: ignore[attr-defined]
    ddp_hook.__annotations__["return"] = torch.futures.Future[torch.Tensor]
