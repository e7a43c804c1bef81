"""`observe`: names the rank that slows down a training job, with any library that sums gradients.

```
   |<- before ->|<- forward ->|<- backward ->|<- waiting ->|
   data, step   model(...)    its gradients  those of all  model(...)
                                             ^ in every fifth step, five rows of four times are sent here
```

An all-reduce makes the steps of all ranks equally long, because every rank waits for the slowest rank. So a step's length does
not show the slowest rank. In every fifth step, before a rank waits for gradients, it sends rows with its own times of five steps
to the hub. The answer has the rows of all ranks. The hub's page compares the same ranks by the times at which their rows arrive.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import operator
import struct
import time
import weakref
from typing import Any, Callable, Deque, List, NamedTuple, Optional, Set, Tuple, Union

import numpy as np
import numpy.typing as npt
import torch

from .._hub import Hub
from .._keys import Key
from .._launch import group_of_torch, place_of
from .._optimizers import Sum
from .._phub import Error, SettingsError, StalledError
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
_BATCH = 5  # steps whose rows are sent together, because a push and its answer cost twice as much as a step's moments
_COUNT = _BATCH * _COLUMNS
_PACK = struct.Struct(f"{_COUNT}f")
_FIRST_LOG = 10
_LOGS_EVERY = 50
_BEHIND = 1000  # the largest number of steps without an answer, of 16 bytes each
_WAIT_LIMIT_S = 600.0  # how long to wait for a rank that makes no step: it may be saving a model
_FSDP = ("FSDPModule", "FullyShardedDataParallel")  # the classes of FSDP2's and FSDP1's modules
_NEEDS_RANKS = (
    "needs the rank among all workers: init_process_group of torch.distributed first, or take ranks and mesh from the environment "
    "(PHUB_LEVELS=machine)"
)
_LEAST_SHARE = 0.05  # the smallest part of a step's time that makes a rank late, as for the hub's verdict

Times = npt.NDArray[np.float32]


class _Host:
    """The host's clock, for a model on the host."""

    now = staticmethod(time.perf_counter)
    seconds = staticmethod(operator.sub)
    is_past = wait = staticmethod(bool)  # each of its moments is past, and true


class _Gpu:
    """The clock of a GPU's stream, whose moments are events."""

    @staticmethod
    def now() -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @staticmethod
    def seconds(later: Any, former: Any) -> Any:
        return former.elapsed_time(later) / 1e3

    is_past, wait = torch.cuda.Event.query, torch.cuda.Event.synchronize


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
    """Returns the median: with an even number of values, the lower of the two middle values. So of two ranks, the slower rank is
    compared with the faster rank."""
    return np.sort(values, axis).take((values.shape[axis] - 1) // 2, axis)


class _Rows:
    """The rows of all ranks. The script's thread sends the rows of this rank and takes the answers, without waiting. A separate
    thread would need the GIL while the script holds it, which would cost more than all work of this class."""

    def __init__(self, session: Session, rank: int, ranks: int, clock: Any) -> None:
        self.session, self._rank, self._ranks, self._clock = session, rank, ranks, clock
        self._mine, self._all = session.gradient(_KEY)[rank].data.cast("B"), session.weights(_KEY).data
        self.hooks: List[Any] = []
        """The hooks of the model, which are removed when the observation ends."""
        self.passes: Deque[Tuple[Any, ...]] = collections.deque()
        """Passes that are in no row yet. Each has five moments: the sums of the previous pass arrived, the forward pass began, the
        backward pass began, this rank's own gradients were made, and its own gradients of the previous pass were made. The last
        entry says whether the pass ends a step."""
        self.unsent = 0
        """The number of steps that were not sent."""
        self._row = _NO_TIME
        """The times of the step to which the next pass belongs."""
        self._rows: List[float] = []
        """The rows that were not sent, one after the other."""
        self.awaits = False
        """Whether rows have been sent whose answer has not arrived."""
        self._seen: Deque[bytes] = collections.deque(maxlen=_STEPS // _BATCH)
        """The last answers. They become arrays when somebody reads them, because a call of NumPy between long steps costs 0.02 ms."""
        self._steps = 0
        self.error: Optional[Error] = None
        self._named: Set[int] = set()
        """The ranks that were logged as late, since the last time that no rank was late."""

    def send(self) -> None:
        """Takes an answer and sends the rows of `_BATCH` steps, if either is possible without waiting. An error ends the
        observation."""
        try:
            if self.awaits and self.session.ready(_KEY):
                self.awaits = False
                self._seen.append(self._all.tobytes())
                self._steps += _BATCH
                if self._rank == 0 and (self._steps == _FIRST_LOG or self._steps % _LOGS_EVERY == 0):
                    self._log()
            self._add()
            if len(self._rows) >= _COUNT and not self.awaits:
                _PACK.pack_into(self._mine, 0, *self._rows[:_COUNT])
                del self._rows[:_COUNT]
                self.session.push(_KEY)
                self.awaits = True
                self.unsent -= _BATCH
            elif self.unsent > _BEHIND:
                raise StalledError(
                    f"the hub has not answered for {_BEHIND} steps: the hub cannot be reached, or steps are shorter than the "
                    f"hub's rounds"
                )
        except Error as error:
            self._end(error)

    def _add(self) -> None:
        """Makes rows of the passes whose times are known."""
        passes, seconds = self.passes, self._clock.seconds
        while passes and self._clock.is_past(passes[0][3]):
            began, forward, backward, ended, before, ends_step = passes.popleft()
            times = seconds(forward, began), seconds(backward, forward), seconds(ended, backward), seconds(began, before)
            self._row = tuple(map(operator.add, self._row, times))
            if ends_step:
                self._rows += self._row
                self._row = _NO_TIME

    def _log(self) -> None:
        found = self.late()
        if found is not None and found.rank not in self._named:
            self._named.add(found.rank)
            _LOG.warning("job %s: %s", self.session.job, found)
        elif found is None and self._named:
            self._named.clear()
            _LOG.info("job %s: nobody is late any more", self.session.job)

    def _end(self, error: Error) -> None:
        self.error, self.awaits = error, False
        self._remove_hooks()
        self.session.close()
        _LOG.warning("job %s: the observation has ended, and training continues: %s", self.session.job, error)

    def _remove_hooks(self) -> None:
        for hook in self.hooks:
            hook.remove()

    def late(self) -> Optional[Late]:
        """Returns the rank that slows down the job most, or `None`."""
        seen = self.times()
        return late(np.stack(seen)) if len(seen) >= _LEAST_STEPS and self._ranks > 1 else None

    def times(self) -> List[Times]:
        """Returns the times of the last steps. Omits the run's first step: DDP makes buckets in it, and its start is unknown."""
        tables = np.array([np.frombuffer(each, np.float32) for each in list(self._seen)])
        steps = tables.reshape(-1, self._ranks, _BATCH, _COLUMNS).swapaxes(1, 2).reshape(-1, self._ranks, _COLUMNS)
        return list(steps[1 if self._steps <= _STEPS else 0 :])

    def finish(self) -> None:
        """Sends all full batches of rows, and waits for their answers, which have the rows of all ranks."""
        for made in self.passes:
            self._clock.wait(made[3])
        self.send()
        while self.awaits:
            self.session.wait(_KEY)
            self.send()

    def leave(self) -> None:
        """Leaves the job. An error is only logged as a warning, because training itself has succeeded."""
        self._remove_hooks()
        try:
            if self.error is None:
                self.finish()
            if self.error is None:
                self.session.leave()
        except Error as error:
            self._end(error)


class _Hook:
    """A hook of the observed model. In a copy of the model, such as a saved model, a function that does nothing replaces the
    hook: the copy is not observed, and is loaded without this package."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> None:
        self._call(*arguments)

    def __reduce__(self) -> Tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")  # it takes any arguments


class Observer:
    """An observer of a model's training; `observe` returns it. It does not keep the model alive, and never makes a step fail."""

    __slots__ = ("_rows", "_now", "_waits", "_began", "_forward", "_backward", "_ended", "_ends_step", "_leave", "__weakref__")

    def __init__(self, model: torch.nn.Module, session: Session, rank: int, ranks: int) -> None:
        parameter = next(model.parameters(), None)
        clock: Any = _Gpu if parameter is not None and parameter.is_cuda else _Host
        self._rows, self._now = _Rows(session, rank, ranks, clock), clock.now
        unknown: Any = None
        self._waits = any(each.__name__ in _FSDP for module in model.modules() for each in type(module).__mro__)
        """Whether the passes wait for other ranks."""
        self._began = self._forward = self._backward = self._ended = unknown
        self._ends_step = True
        this, can_wait = weakref.ref(self), hasattr(model, "require_backward_grad_sync")

        def before(_module: Any, _inputs: Any) -> None:
            observer = this()
            if observer is not None and torch.is_grad_enabled():
                if observer._backward is not None:
                    observer._forget_a_failed_pass()
                if observer._forward is None:
                    observer._forward = observer._now()

        def after(module: Any, _inputs: Any, outputs: Any) -> None:
            observer = this()
            if observer is not None and observer._forward is not None:
                observer._ends_step = not can_wait or module.require_backward_grad_sync  # false in DDP's no_sync()
                _hook(outputs, observer._backward_begins)

        # The hook of FSDP2 waits for other ranks, so this hook is called before it.
        first = {"prepend": True} if self._waits else {}
        hooks = model.register_forward_pre_hook(_Hook(before), **first), model.register_forward_hook(_Hook(after))
        self._rows.hooks += hooks
        self._leave = weakref.finalize(self, leave_dropped, session.job, self._rows.leave)
        self._leave.atexit = False

    def _forget_a_failed_pass(self) -> None:
        """Forgets a backward pass that began and did not end, because it failed. If this forward pass is a part of the backward
        pass (activation checkpointing), nothing is forgotten."""
        try:
            _ENGINE.queue_callback(bool)
        except RuntimeError:  # no backward pass runs
            self._forward = self._backward = None

    def _backward_begins(self, _gradient: Any) -> None:
        if self._backward is None and self._forward is not None:
            self._backward = self._now()
            # Torch calls these callbacks in the order in which they were queued. So this callback is called before DDP's
            # callback, which waits for the gradients of all ranks.
            _ENGINE.queue_callback(self._backward_ends)

    def _backward_ends(self) -> None:
        rows, forward, now = self._rows, self._forward, self._now()
        backward, ended = (forward, forward) if self._waits else (self._backward, now)
        began = self._began or forward  # in the first pass, no moment before it is known
        before = self._ended or began
        rows.passes.append((began, forward, backward, ended, before, self._ends_step))
        rows.unsent += self._ends_step
        self._forward = self._backward = None
        self._began, self._ended = now, ended
        if rows.unsent >= _BATCH:
            rows.send()
        _ENGINE.queue_callback(self._all_is_there)

    def _all_is_there(self) -> None:
        self._began = self._now()
        if self._rows.awaits:
            self._rows.send()  # the answer may have arrived

    @property
    def late(self) -> Optional[Late]:
        """The rank that slows down the job most in the last 50 steps. `None` if the ranks are equally fast, and in the first
        10 steps."""
        return self._rows.late()

    @property
    def times(self) -> List[Times]:
        """The times of the last 50 steps: for each step an array of seconds, of shape (ranks, 4).

        The first three times of a rank are before the forward pass, in the forward pass and in the backward pass. The fourth is
        the time of waiting after the backward pass of the previous step."""
        return self._rows.times()

    @property
    def session(self) -> Session:
        """The session with the hub."""
        return self._rows.session

    def __str__(self) -> str:
        if self._rows.error is not None:
            return f"the observation has ended: {self._rows.error}"
        found, steps = self.late, len(self.times)
        if found is not None:
            return str(found)
        return f"nobody is late in {steps} steps" if steps >= _LEAST_STEPS else f"no verdict yet: {steps} of {_LEAST_STEPS} steps"

    def leave(self) -> None:
        """Leaves the job, and removes the hooks from the model. The end of a script leaves the job, too."""
        self._leave()


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

    Every rank calls `observe` once, before training. Every fifth step sends a few bytes to the hub, and does not wait for an
    answer. When a rank becomes late, rank 0 logs a warning by the logger "phub". The hub's page shows the job, too. If the hub is lost,
    the observation ends, and training continues. The time of passes in DDP's `no_sync()` is added to the next step.

    In a model of FSDP each layer waits for all ranks, so both passes count as waiting. A rank is then named if it is late with its
    data, or by anything else before the forward pass, and not if its passes are slow.

    Args:
        model: the module that the script calls, such as the `DistributedDataParallel`.
        hub, rank, world_size: as for `phub.Session`; default: from the launcher's environment, or a hub that rank 0 starts.
        session: more settings of `phub.Session`, such as `token`.

    Returns:
        The observer. Keep it: when it is dropped, the observation ends.

    Raises:
        SettingsError: the rank among all workers is unknown: `mesh` is given, or the hub is below other hubs, and there is no
            process group.
        UnreachableError, RefusedError, MissingWorkersError: as for `phub.Session`.
    """
    group = group_of_torch()
    if group is not None:
        me, ranks = group.get_rank(), group.get_world_size()  # in a mesh, the argument `rank` is the rank on this machine
    elif session.get("mesh") is not None:
        raise SettingsError(f"observe: mesh={session['mesh']!r} {_NEEDS_RANKS}")
    else:
        known = place_of(rank is not None and world_size is not None)
        me, ranks = known.rank if rank is None else rank, known.world_size if world_size is None else world_size
    settings = {"job": Helper("observed"), "wait_limit": _WAIT_LIMIT_S, **session}
    joined = Session(hub, rank, world_size, keys={_KEY: Key((ranks, _BATCH, _COLUMNS))}, optimizer=Sum(), **settings)
    if group is None and joined.has_local_rank:
        joined.close()
        raise SettingsError(f"observe: the hub at {joined.hub_address} is below other hubs, which {_NEEDS_RANKS}")
    return Observer(model, joined, me, ranks)


def _hook(outputs: Any, hook: Callable[[Any], None]) -> None:
    """Registers a hook of all tensors in a module's outputs. The outputs may be nested, and dataclasses, as in many language
    models."""
    if type(outputs) is torch.Tensor and outputs._backward_hooks is None and (made_by := outputs.grad_fn) is not None:
        # These two lines are `register_hook` without a handle, which would cost 0.02 ms more.
        outputs._backward_hooks = collections.OrderedDict({-1: hook})  # handles count from 0
        made_by._register_hook_dict(outputs)
    elif isinstance(outputs, torch.Tensor):
        if outputs.requires_grad:
            outputs.register_hook(hook)
    elif isinstance(outputs, (dict, list, tuple)):
        for each in outputs.values() if isinstance(outputs, dict) else outputs:
            _hook(each, hook)
    elif dataclasses.is_dataclass(outputs):
        for field in dataclasses.fields(outputs):
            _hook(getattr(outputs, field.name), hook)
