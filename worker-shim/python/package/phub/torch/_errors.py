"""Errors of training with torch: each names the line or the parameter, and a way out."""

from __future__ import annotations

from .._phub import Error, OrderError


class GradientError(OrderError):
    """A gradient that a hub cannot take, such as a sparse one."""


class MeanError(Error):
    """The mean of all workers' gradients, which a script has asked for, did not arrive."""


class StateError(OrderError):
    """A write to optimizer state that is at the hub."""


class WrapError(OrderError):
    """A call that has to come before or after `DistributedOptimizer`."""
