"""The common part of optimizers in a job: the hub makes their steps, or they step themselves."""

from __future__ import annotations

import functools
import inspect
import logging
import weakref
from typing import Any, Callable, Protocol, Type

import torch

from .._phub import LeftError
from .._session import Session, Times
from ._errors import WrapError

_LOG = logging.getLogger("phub")


class Membership(Protocol):
    """A model's exchange with the hub."""

    session: Session

    def leave(self) -> None:
        """Waits for all keys that are in flight, and leaves the job. Parameters keep their values."""


def leave_dropped(job: str, leave: Callable[[], None]) -> None:
    """Leaves a job when a script has dropped the object that joined it. Python may collect the object at any line of the script,
    so an error is only logged."""
    try:
        leave()
    except LeftError:
        pass  # the script itself has left the job before
    except Exception as error:
        _LOG.warning("job %s: the object that had joined the job was deleted, and leaving the job failed: %s", job, error)


class Joined(torch.optim.Optimizer):
    """A class that is mixed into the own class of each optimizer in a job."""

    _phub: Membership
    _phub_own: type

    def leave(self) -> None:
        """Waits for all parameters, and leaves the job, as the end of a script does."""
        self._phub.leave()

    @property
    def session(self) -> Session:
        """The session with the hub."""
        return self._phub.session

    @property
    def times(self) -> Times:
        """The times of this worker: how long it computed, pushed, and waited for the hub."""
        return self.session.times

    def join_hook(self, **_settings: Any) -> Any:
        """Refuses `torch.distributed.algorithms.join.Join`, which would make this worker step by itself."""
        raise WrapError(
            "Join([optimizer]): the hub makes this optimizer's steps, and all workers must make the same number of steps. For "
            "uneven inputs, let a worker without more inputs call zero_grad() and step() as often as the other workers, so that "
            "its gradients count as zeros; or give all workers the same number of inputs (drop_last=True). Join([model]) is for "
            "DistributedDataParallel, by phub.torch.ddp_hook or phub.c10d, with an optimizer of torch's own"
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Returns the parts of a copy or a pickle: an optimizer of torch's own class, with the current state."""
        return _optimizer, (self._phub_own,), self.__getstate__()  # type: ignore[no-untyped-call,unused-ignore]


def _optimizer(own: type) -> torch.optim.Optimizer:
    optimizer: torch.optim.Optimizer = object.__new__(own)
    return optimizer


def check_step(optimizer: torch.optim.Optimizer) -> None:
    """Checks that the optimizer has the `step` of its class. Only the function by which a scheduler counts steps may be around
    it. Another function would call torch's own step, and not the hub's.

    Raises:
        WrapError: the script has replaced `step`.
    """
    own = vars(optimizer).get("step")
    if own is None:
        return
    wrapped = getattr(own, "__wrapped__", None)
    if wrapped is None and hasattr(own, "_wrapped_by_lr_sched"):  # a scheduler's function in torch 2.4 has only a closure
        wrapped = inspect.getclosurevars(own).nonlocals.get("func")
    if wrapped is not type(optimizer).step:
        raise WrapError(
            "the script has replaced optimizer.step before DistributedOptimizer, by a function that calls torch's own step: replace "
            "optimizer.step after DistributedOptimizer, so that the function calls the hub's step"
        )


def mix_in(optimizer: torch.optim.Optimizer, joined: Type[Joined], membership: Membership) -> None:
    """Mixes `joined` into the optimizer's class. The optimizer remains the same object."""
    kind: Any = type(optimizer)
    counted = vars(optimizer).pop("step", None)
    named = {"__doc__": kind.__doc__, "__module__": kind.__module__, "_phub_own": kind}
    optimizer.__class__ = type(kind.__name__, (joined, kind), named)
    optimizer._phub = membership  # type: ignore[attr-defined]
    # Torch wraps `step` of a class in a function that calls hooks and marks steps for the profiler. The new class needs this
    # function, too.
    patch: Any = getattr(optimizer, "_patch_step_function", None) or getattr(optimizer, "_hook_for_profile")  # noqa: B009
    patch()
    if counted is not None:
        optimizer.step = _counting(optimizer, counted)  # type: ignore[method-assign]
    # A fused optimizer has this attribute. If it is removed, a GradScaler unscales gradients itself.
    vars(optimizer).pop("_step_supports_amp_scaling", None)


def _counting(counts: Any, counted: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the optimizer's step in the form that a learning-rate scheduler expects. The scheduler has replaced `step` by a
    function that counts steps, so the function that is returned here counts, too."""
    own, this = type(counts).step, weakref.ref(counts)  # a weak reference, so that a dropped optimizer is freed at once

    @functools.wraps(counted)
    def step(*arguments: Any, **named: Any) -> Any:
        optimizer: Any = this()
        optimizer._opt_called = True
        optimizer._step_count = getattr(optimizer, "_step_count", 0) + 1
        return own(optimizer, *arguments, **named)

    return step
