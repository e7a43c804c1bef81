"""Errors of training with torch: each names the line or the parameter, and says what to do."""

from __future__ import annotations

from .._phub import Error, OrderError


class GradientError(OrderError):
    """A gradient that a hub cannot take, such as a sparse gradient."""


class MeanError(Error):
    """A read of gradients that waited for the mean of all workers, which did not arrive."""


class StateError(OrderError):
    """A write to `optimizer.state`, although the state is at the hub."""


class WrapError(OrderError):
    """A call that is only possible before `DistributedOptimizer`, or only after it."""
