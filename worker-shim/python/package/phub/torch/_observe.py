"""`observe`: names the rank that slows down a training job, with any library that sums gradients.

```
   |<- before ->|<- forward ->|<- backward ->|<- waiting ->|
   data, step   model(...)    its gradients  those of all  model(...)
                              ^ a row of four times leaves here
```

An all-reduce makes the steps of all ranks equally long, because every rank waits for the slowest rank. So a step's length does
not show the slowest rank. In each step, before a rank waits for gradients, it sends a row with its own times to the hub: a few
bytes. The answer has the rows of all ranks. The hub's page compares the same ranks by the times at which their rows arrive.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import time
import weakref
from typing import Any, Deque, Iterator, List, NamedTuple, Optional, Set, Tuple, Union

import numpy as np
import numpy.typing as npt
import torch

from .._hub import Hub
from .._keys import Key
from .._launch import group_of_torch, place_of
from .._optimizers import Sum
from .._phub import Error, StalledError
from .._run import Helper
from .._session import Session
from ._joined import leave_dropped

_LOG = logging.getLogger("phub")
_ENGINE: Any = torch.autograd.Variable._execution_engine  # type: ignore[attr-defined]

_KEY = "times"
_PARTS = ("before its forward pass", "in its forward pass", "in its backward pass")
_OWN = len(_PARTS)
_COLUMNS = _OWN + 1  # the parts, and the time of waiting
_NO_TIME = (0.0,) * _COLUMNS

_STEPS = 50
"""The largest number of last steps on which a verdict is based."""
_LEAST_STEPS = 5
_FIRST_LOG = 10
_LOGS_EVERY = 50
_BEHIND = 1000  # the largest number of steps without an answer, of 16 bytes each
_WAIT_LIMIT_S = 600.0  # how long to wait for a rank that makes no step: it may be saving a model
_LEAST_SHARE = 0.05  # the smallest part of a step's time that makes a rank late, as for the hub's verdict

Row = Tuple[float, ...]
Times = npt.NDArray[np.float32]


class _HostMark(NamedTuple):
    """A moment by the host's clock, with the methods of a CUDA event."""

    at: float

    def elapsed_time(self, later: "_HostMark") -> float:
        """Returns the milliseconds from this moment to a later one."""
        return 1e3 * (later.at - self.at)

    def query(self) -> bool:
        """Returns whether the moment is in the past: always true."""
        return True

    def synchronize(self) -> None:
        """Returns at once, because the moment is in the past."""


class Late(NamedTuple):
    """The rank that slows down the job most. `str()` gives a line of text."""

    rank: int
    steps: int
    """The number of steps in which this rank was the last rank."""
    of: int
    """The number of all steps that were examined."""
    by: float
    """The seconds by which this rank's own time was longer than the median of all ranks, as a median over `steps`."""
    part: str
    """The part of the step in which this rank loses most of these seconds."""
    own: float
    """The seconds that `part` takes at this rank, as a median over `steps`."""
    median: float
    """The seconds that `part` takes at the median rank, as a median over `steps`."""

    def __str__(self) -> str:
        return (
            f"rank {self.rank} is late: last in {self.steps} of {self.of} steps, by {1e3 * self.by:.3g} ms, most of it {self.part} "
            f"({1e3 * self.own:.3g} ms; the ranks' median is {1e3 * self.median:.3g} ms)"
        )


def late(times: Times) -> Optional[Late]:
    """Finds the rank that slows down the job most; `None` if it costs less than `_LEAST_SHARE` of the time.

    Args:
        times: an array of seconds, of shape (steps, ranks, 4). The four times are before the forward pass, in the forward pass,
            in the backward pass, and waiting.
    """
    own = times[:, :, :_OWN].sum(axis=2)
    typical = _lower_median(own, axis=1)
    last = own.argmax(axis=1)
    by = own.max(axis=1) - typical
    cost = np.bincount(last, weights=by, minlength=own.shape[1])
    if cost.max() < _LEAST_SHARE * times.sum(axis=2).max(axis=1).sum():
        return None
    rank = int(cost.argmax())
    where = last == rank
    parts = times[where][:, :, :_OWN]
    mine, ranks = np.median(parts[:, rank], axis=0), np.median(_lower_median(parts, axis=1), axis=0)
    part = int((mine - ranks).argmax())
    return Late(
        rank, int(where.sum()), len(times), float(np.median(by[where])), _PARTS[part], float(mine[part]), float(ranks[part])
    )


def _lower_median(values: Any, axis: int) -> Any:
    """Returns the median; of an even number of values, the lower of the two in the middle. So of two ranks, the slower is compared
    with the faster."""
    return np.quantile(values, 0.5, axis=axis, method="lower")


class _Pass(NamedTuple):
    """The moments of a forward and a backward pass."""

    began: Optional[Any]
    """The moment when the summed gradients of the pass before were ready; `None` for the first pass."""
    forward: Any
    backward: Any
    ended: Any
    """The moment when this rank's own gradients were made."""
    before: Optional["_Pass"]
    """The pass before."""
    ends_step: bool

    def times(self) -> Row:
        """Returns the seconds of the parts of this pass, and the seconds that this rank waited after the pass before."""
        begin = self.forward if self.began is None else self.began
        waited = 0.0 if self.before is None or self.began is None else self.before.ended.elapsed_time(self.began)
        moments = (begin, self.forward, self.backward, self.ended)
        milliseconds = (*(former.elapsed_time(later) for former, later in zip(moments, moments[1:])), waited)
        return tuple(each / 1e3 for each in milliseconds)


class _Rows:
    """The rows of all ranks. The script's thread sends the rows of this rank and takes the answers, without waiting. A separate
    thread would need the GIL while the script holds it, which would cost more than all work of this class."""

    def __init__(self, session: Session, rank: int, ranks: int) -> None:
        self.session, self._rank, self._ranks = session, rank, ranks
        self._mine = session.gradient(_KEY)[rank]
        self._passes: Deque[_Pass] = collections.deque()
        """The passes whose times are not known yet, because the GPU may not have reached their moments."""
        self._row = _NO_TIME
        """The times until now of the step to which the next pass belongs."""
        self._rows: Deque[Row] = collections.deque()
        """Rows that wait until the answer to an earlier row has arrived."""
        self._awaits = False
        """Whether a row has been sent whose answer has not arrived."""
        self.seen: Deque[Times] = collections.deque(maxlen=_STEPS)
        self.steps = 0
        self.error: Optional[Error] = None
        self._named: Set[int] = set()
        """The ranks that were logged as late, since the last time that no rank was late."""

    def put(self, made: _Pass) -> None:
        """Adds a pass, and sends all rows that can be sent."""
        self._passes.append(made)
        self.send()

    def send(self) -> None:
        """Takes an answer and sends a row, if either is possible without waiting. An error ends the observation."""
        if self.error is not None:
            return
        try:
            while self._passes and self._passes[0].ended.query():
                self._add(self._passes.popleft())
            self._take_if(self._awaits and self.session.is_ready(_KEY))
            if self._rows and not self._awaits:
                self._push()
            if len(self._rows) + len(self._passes) > _BEHIND:
                raise StalledError(
                    f"the hub has not answered for {_BEHIND} steps: the hub cannot be reached, or steps are shorter than the "
                    f"hub's rounds"
                )
        except Error as error:
            self._end(error)

    def _add(self, made: _Pass) -> None:
        self._row = tuple(former + more for former, more in zip(self._row, made.times()))
        if made.ends_step:
            self._rows.append(self._row)
            self._row = _NO_TIME

    def _push(self) -> None:
        self._mine[:] = self._rows.popleft()
        self.session.push(_KEY)
        self._awaits = True

    def _take_if(self, is_ready: bool) -> None:
        if not is_ready:
            return
        self._awaits = False
        self.steps += 1
        if self.steps > 1:  # the first step is slower, because DDP makes buckets, and no time before it is known
            self.seen.append(self.session.weights(_KEY).copy())
        if self._rank == 0 and (self.steps == _FIRST_LOG or self.steps % _LOGS_EVERY == 0):
            self._log()

    def _log(self) -> None:
        found = self.late()
        if found is not None and found.rank not in self._named:
            self._named.add(found.rank)
            _LOG.warning("job %s: %s", self.session.job, found)
        elif found is None and self._named:
            self._named.clear()
            _LOG.info("job %s: nobody is late any more", self.session.job)

    def _end(self, error: Error) -> None:
        self.error = error
        self.session.close()
        _LOG.warning("job %s: nobody is observed any more, and training continues: %s", self.session.job, error)

    def late(self) -> Optional[Late]:
        """Returns the rank that slows down the job most, or `None`."""
        seen = list(self.seen)
        return late(np.stack(seen)) if len(seen) >= _LEAST_STEPS and self._ranks > 1 else None

    def finish(self) -> None:
        """Sends all rows, and waits for their answers, which have the rows of all ranks."""
        if self.error is not None:
            return
        try:
            for made in self._passes:
                made.ended.synchronize()
                self._add(made)
            self._passes.clear()
            while self._rows or self._awaits:
                if self._awaits:
                    self.session.wait(_KEY)
                    self._take_if(True)
                if self._rows:
                    self._push()
        except Error as error:
            self._end(error)

    def leave(self) -> None:
        """Leaves the job. An error is only logged as a warning, because training itself has succeeded."""
        self.finish()
        if self.error is not None:
            return
        try:
            self.session.leave()
        except Error as error:
            self._end(error)


class Observer:
    """An observer of a model's training; `observe` returns it. It does not keep the model alive, and never makes a step fail."""

    def __init__(self, model: torch.nn.Module, session: Session, rank: int, ranks: int) -> None:
        self._rows = _Rows(session, rank, ranks)
        self._model = weakref.ref(model)
        parameter = next(model.parameters(), None)
        self._is_on_gpu = parameter is not None and parameter.is_cuda
        self._began: Optional[Any] = None
        self._forward: Optional[Any] = None
        self._backward: Optional[Any] = None
        self._before: Optional[_Pass] = None
        this = weakref.ref(self)

        def before(_module: Any, _inputs: Any) -> None:
            observer = this()
            if observer is not None and observer._forward is None and torch.is_grad_enabled():
                observer._forward = observer._mark()

        def after(_module: Any, _inputs: Any, outputs: Any) -> None:
            observer = this()
            if observer is not None and observer._forward is not None:
                for each in _tensors(outputs):
                    if each.requires_grad:
                        each.register_hook(observer._backward_begins)

        self._hooks = [model.register_forward_pre_hook(before), model.register_forward_hook(after)]
        weakref.finalize(self, leave_dropped, session.job, self._rows.leave).atexit = False

    def _mark(self) -> Any:
        if not self._is_on_gpu:
            return _HostMark(time.perf_counter())
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _backward_begins(self, _gradient: Any) -> None:
        if self._backward is None and self._forward is not None:
            self._backward = self._mark()
            # Torch calls these callbacks in the order in which they were queued. So `_backward_ends` is called before DDP's
            # callback, which waits for the gradients of all ranks.
            _ENGINE.queue_callback(self._backward_ends)

    def _backward_ends(self) -> None:
        model, began = self._model(), self._began
        ends_step = getattr(model, "require_backward_grad_sync", True)  # false in DDP's no_sync()
        made = _Pass(began, self._forward, self._backward, self._mark(), self._before, ends_step)
        self._forward = self._backward = None
        self._before = made._replace(before=None)
        self._rows.put(made)
        _ENGINE.queue_callback(self._all_is_there)

    def _all_is_there(self) -> None:
        self._began = self._mark()
        self._rows.send()  # the answer to the row before may have arrived

    @property
    def late(self) -> Optional[Late]:
        """The rank that slows down the job most in the last 50 steps. `None` if the ranks are equally fast, and in the first 6
        steps."""
        return self._rows.late()

    @property
    def times(self) -> List[Times]:
        """The times of the last 50 steps: for each step an array of seconds, of shape (ranks, 4).

        The first three times of a rank are before the forward pass, in the forward pass and in the backward pass. The fourth is
        the time of waiting after the backward pass of the step before."""
        return list(self._rows.seen)

    @property
    def session(self) -> Session:
        """The session with the hub."""
        return self._rows.session

    def __str__(self) -> str:
        if self._rows.error is not None:
            return f"nobody is observed any more: {self._rows.error}"
        found, steps = self.late, len(self._rows.seen)
        if found is not None:
            return str(found)
        return f"nobody is late in {steps} steps" if steps >= _LEAST_STEPS else f"no verdict yet: {steps} of {_LEAST_STEPS} steps"

    def leave(self) -> None:
        """Leaves the job, and removes the hooks from the model. The end of a script leaves the job, too."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._rows.leave()


def observe(
    model: torch.nn.Module,
    *,
    hub: Union[str, Hub, None] = None,
    rank: Optional[int] = None,
    world_size: Optional[int] = None,
    **session: Any,
) -> Observer:
    """Names the rank that slows down a training job, and the part of the step in which the rank is slow. For jobs whose gradients
    gloo, NCCL or MPI sum.

        model = DistributedDataParallel(net)
        observer = phub.torch.observe(model)
        ...
        print(observer)    # rank 2 is late: last in 48 of 50 steps, by 41.2 ms, most of it before its forward pass (...)

    Every rank calls `observe` once, before training. Each step sends a few bytes to the hub, and does not wait for an answer.
    When a rank becomes late, rank 0 logs a warning by the logger "phub". The hub's page shows the job, too. If the hub is lost,
    the observation ends, and training continues. The time of passes in DDP's `no_sync()` is added to the next step.

    With FSDP every layer waits for all ranks, so a rank that is slow in its passes makes the passes of all ranks equally long.
    Only a rank that is late before its forward pass is named, and the hub's page shows the last rank. Nobody has tried FSDP.

    Args:
        model: the module that the script calls, such as the `DistributedDataParallel`.
        hub, rank, world_size: as for `phub.Session`; default: from the launcher's environment, or a hub that rank 0 starts.
        session: more settings of `phub.Session`, such as `token`.

    Returns:
        The observer. Keep it: when it is dropped, the observation ends.

    Raises:
        UnreachableError, RefusedError, MissingWorkersError: as for `phub.Session`.
    """
    group = group_of_torch()
    if group is not None:
        me, ranks = group.get_rank(), group.get_world_size()  # in a mesh, the argument `rank` is the rank on this machine
    else:
        known = place_of(rank is not None and world_size is not None)
        me, ranks = known.rank if rank is None else rank, known.world_size if world_size is None else world_size
    settings = {"job": Helper("observed"), "wait_limit": _WAIT_LIMIT_S, **session}
    joined = Session(hub, rank, world_size, keys={_KEY: Key((ranks, _COLUMNS))}, optimizer=Sum(), **settings)
    return Observer(model, joined, me, ranks)


def _tensors(outputs: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors in a module's outputs. The outputs may be nested or dataclasses, as in many language models."""
    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, dict):
        for each in outputs.values():
            yield from _tensors(each)
    elif isinstance(outputs, (list, tuple)):
        for each in outputs:
            yield from _tensors(each)
    elif dataclasses.is_dataclass(outputs):
        for field in dataclasses.fields(outputs):
            yield from _tensors(getattr(outputs, field.name))
