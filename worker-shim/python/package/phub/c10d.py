"""A backend of torch.distributed: `import phub.c10d`, then `torch.distributed.init_process_group("phub")`.

The hub does every all-reduce of one dense f32, f16 or bf16 tensor in host memory, as a sum or a mean. Gloo does all other
operations, and all operations of subgroups. `counts` returns how often the hub and gloo were called. Needs torch 2.4 or later.
"""

from __future__ import annotations

import collections
import datetime
import functools
import json
import sys
import threading
import weakref
from typing import Any, Callable, Counter, Deque, Dict, List, Optional, Tuple

import torch

from ._board import StoreBoard, gather
from ._hub import serve_for
from ._launch import worker
from ._optimizers import Average, Sum
from ._phub import SettingsError
from ._run import new_word
from ._session import Session
from .torch._calls import Answer, Depths
from .torch._means import Way, put
from .torch._settings import DTYPES

__all__ = ["counts"]

if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 4):
    raise SettingsError(f"phub.c10d needs torch 2.4 or later, and this is {torch.__version__}; ddp_hook needs 1.13")
if not torch.distributed.is_available():
    raise SettingsError("phub.c10d needs torch.distributed, which this build of torch lacks")

_torch: Any = torch  # untyped, because mypy may see another version of torch than the script uses
_c10d: Any = torch.distributed.distributed_c10d
_Group: Any = _c10d.ProcessGroup
_Work: Any = _c10d.Work
# In torch 2.4 options name the default backend of a group, and not a method.
_OPTIONS = () if hasattr(_Group, "_set_default_backend") else (_Group.Options("gloo"),)
# An upper bound for the number of all-reduces of one element between a forward pass under `Join` and its backward pass. DDP makes
# a few, and a script may add some for its losses.
_SMALL_CALLS = 256
_COUNTS: Dict[str, Counter[str]] = {"hub": collections.Counter(), "gloo": collections.Counter()}


def counts() -> Dict[str, Dict[str, int]]:
    """Returns the number of calls of each operation in this process: `{"hub": {"allreduce": 12}, "gloo": {...}}`. "new_group" is
    the number of subgroups. Calls in subgroups are not counted."""
    return {by: dict(calls) for by, calls in _COUNTS.items()}


def _never_compiled(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the method, marked so that `torch.compile` leaves it out: `torch.compile` cannot compile calls of a group."""
    disabled: Optional[Callable[..., Any]] = None

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal disabled
        if "torch._dynamo" not in sys.modules:  # the script compiles nothing, and the import of _dynamo takes seconds
            return method(*args, **kwargs)
        if disabled is None:
            disabled = _torch.compiler.disable(method)
        return disabled(*args, **kwargs)

    return call


class _CallUnderWay(_Work):  # type: ignore[misc]
    """An all-reduce in progress. Another thread calls `finish` when the result or an error has arrived."""

    def __init__(self, depths: Depths, tensors: List[torch.Tensor]) -> None:
        super().__init__()
        self._tensors = tensors
        self._error: Optional[BaseException] = None
        self._done = threading.Event()
        self._future = Answer(depths)

    def finish(self, error: Optional[BaseException]) -> None:
        self._error = error
        self._done.set()
        self._future.finish(self._tensors, error)

    def wait(self, timeout: Optional[datetime.timedelta] = None) -> bool:
        limit = timeout.total_seconds() if timeout is not None else 0.0
        if not self._done.wait(limit if limit > 0.0 else None):
            raise RuntimeError(f"all-reduce: the hub did not answer in {limit:.3f} s, for example because a worker is late")
        if self._error is not None:
            raise self._error
        self._future.wait()  # `finish` completes the future right after `_done`
        return True

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> Any:
        return self._future

    def result(self) -> List[torch.Tensor]:
        self.wait()
        return self._tensors

    def is_completed(self) -> bool:
        return bool(self._future.done())

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> Optional[BaseException]:
        return self._error


class _HubGroup(_Group):  # type: ignore[misc]
    """A process group of all workers. Calls that the hub does not support go to a group of gloo's."""

    def __init__(self, store: Any, rank: int, size: int, timeout: datetime.timedelta) -> None:
        # The store may have the keys of an earlier group, so rank 0 gives the keys of this group a new prefix.
        words = gather(StoreBoard(store), rank, size, new_word(), timeout.total_seconds())
        self.unique_name = words[0]
        store = _c10d.PrefixStore(self.unique_name, store)
        try:
            super().__init__(store, rank, size, *_OPTIONS)
        except TypeError:  # torch 2.9 gives only a group of its own class a store
            super().__init__(rank, size)
        gloo, kind = _c10d.ProcessGroupGloo(store, rank, size, timeout=timeout), _Group.BackendType.GLOO
        self._gloo = _Group(store, rank, size, *_OPTIONS)
        for group in (self, self._gloo):
            if not _OPTIONS:
                group._set_default_backend(kind)
            group._register_backend(torch.device("cpu"), kind, gloo)
        hub, job = _agree_on_hub(store, rank, self.unique_name)
        limit = timeout.total_seconds()

        def join(depth: int, way: str, **keys: Any) -> Session:
            # A hub that returns restores all keys at one round. In the group's jobs keys have no common round, because some
            # keys are used more often. So a session does not wait for a lost hub.
            limits: Dict[str, Any] = {"join_limit": limit, "wait_limit": limit, "hub_wait": 0.0}
            name = f"{job}-{way}-of-callbacks-{depth}" if depth else f"{job}-{way}"
            return Session(hub, rank, size, job=name, **keys, **limits)

        self._depths = Depths(join)
        # Under `Join`, DDP's reducer keeps the C++ object of a call with one element, and uses it later. The C++ object does not
        # keep its Python object alive, so the group keeps the last Python objects.
        self._small: Deque[_CallUnderWay] = collections.deque(maxlen=_SMALL_CALLS)
        # Torch before 2.6 does not call `shutdown`, so the jobs are also left when the group is collected.
        self._leave = weakref.finalize(self, self._depths.leave)
        self._leave.atexit = False

    def getBackendName(self) -> str:
        return "phub"

    @_never_compiled
    def allreduce(self, tensors: Any, options: Any = None) -> Any:
        options = _c10d.AllreduceOptions() if options is None else options
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        if not _is_the_hubs(tensors, options.reduceOp):
            _COUNTS["gloo"]["allreduce"] += 1
            is_mean = options.reduceOp == _c10d.ReduceOp.AVG
            return self._mean_by_gloo(tensors, options) if is_mean else self._gloo.allreduce(tensors, options)
        _COUNTS["hub"]["allreduce"] += 1
        tensor = tensors[0].detach()
        flat = tensor.contiguous().view(-1)
        way = Way(DTYPES[tensor.dtype], Sum() if options.reduceOp == _c10d.ReduceOp.SUM else Average())
        work = _CallUnderWay(self._depths, tensors)

        def done(error: Optional[BaseException]) -> None:
            try:
                if error is None and flat.data_ptr() != tensor.data_ptr():
                    put(tensor, flat.view(tensor.shape))
            except BaseException as failed:
                error = failed
            work.finish(error)

        if tensor.numel() == 1:
            self._small.append(work)
        self._depths.reduce(way, flat, done)
        return work

    def _mean_by_gloo(self, tensors: List[torch.Tensor], options: Any) -> _CallUnderWay:
        """Computes a mean as gloo's sum and a division, because gloo has no mean of integers. A mean of integers is rounded
        toward zero, as with NCCL; Lightning asks for such means."""
        options.reduceOp = _c10d.ReduceOp.SUM
        work, size = _CallUnderWay(self._depths, tensors), self.size()

        def divide(sums: Any) -> None:
            error = None
            try:
                sums.wait()
                for each in tensors:
                    is_whole = not (each.is_floating_point() or each.is_complex())
                    put(each, each.div(size, rounding_mode="trunc" if is_whole else None))
            except BaseException as failed:
                error = failed
            work.finish(error)

        self._gloo.allreduce(tensors, options).get_future().then(divide)
        return work

    def shutdown(self) -> None:
        """Leaves the jobs. A hub that rank 0 started ends with rank 0's process."""
        self._leave()


def _is_the_hubs(tensors: List[torch.Tensor], op: Any) -> bool:
    """Whether the hub does this all-reduce. The answer must be the same at all workers."""
    # `op` must be on the left: with `ReduceOp.SUM` on the left, torch finds equal operations different.
    if len(tensors) != 1 or not (op == _c10d.ReduceOp.SUM or op == _c10d.ReduceOp.AVG):
        return False
    tensor = tensors[0]
    return (
        tensor.layout == torch.strided and tensor.device.type == "cpu" and tensor.dtype in DTYPES and tensor.numel() > 0
    )


def _agree_on_hub(store: Any, rank: int, name: str) -> Tuple[Optional[str], str]:
    """Returns the hub's address, or None if the launcher's environment has the address. Also returns the beginning of the names
    of the group's jobs. In a job's name, the type of the job's numbers follows this beginning."""
    if rank == 0:
        me = worker()
        # If rank 0 picks a free port, it writes the address to the store for the other workers.
        alone = me.hub is None and me.machine is None and me.serve_at is not None and me.serve_at.endswith(":0")
        hub = serve_for(str(me.serve_at), is_here=me.is_on_one_machine) if alone else None
        # The longest name of a job adds 39 letters to the run's name: "-c10d-01234567-bf16-mean-of-callbacks-7". Two levels of
        # hubs add 12 letters, and a name has at most 64.
        store.set("phub", json.dumps([hub, f"{me.job[:13]}-c10d-{name}"]))
    said: Tuple[Optional[str], str] = tuple(json.loads(store.get("phub")))
    return said


def _by_gloo(name: str) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        _COUNTS["gloo"][name] += 1
        return getattr(self._gloo, name)(*args, **kwargs)

    call.__name__ = name
    return _never_compiled(call)


# All operations that gloo does. Versions of torch name some of them differently, so not all names are in each version.
for _name in (
    "_allgather_base",
    "_reduce_scatter_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "monitored_barrier",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
):
    if hasattr(_Group, _name):
        setattr(_HubGroup, _name, _by_gloo(_name))


def _create(store: Any, rank: int, size: int, timeout: datetime.timedelta) -> Any:
    if torch.distributed.is_initialized():
        _COUNTS["gloo"]["new_group"] += 1
        all_workers = _c10d._get_default_group()
        if isinstance(all_workers, _HubGroup):
            store = _c10d.PrefixStore(all_workers.unique_name, store)
        return _c10d.ProcessGroupGloo(store, rank, size, timeout=timeout)
    return _HubGroup(store, rank, size, timeout)


_c10d.Backend.register_backend("phub", _create, devices=["cpu"])
