"""What each optimizer in a job has, whether the hub makes its steps or not."""

from __future__ import annotations

from typing import Any, Protocol, Type

import torch

from .._session import Session, Times


class Membership(Protocol):
    """A model's exchange with the hub."""

    session: Session

    def leave(self) -> None:
        """Waits for all keys that are under way, and leaves the job. Parameters keep their values."""


class Joined(torch.optim.Optimizer):
    """Mixed into the optimizer's own class."""

    _phub: Membership
    _phub_own: type

    def leave(self) -> None:
        """Waits for all parameters, and leaves the job. At the end of a script this happens automatically."""
        self._phub.leave()

    @property
    def session(self) -> Session:
        """The session with the hub."""
        return self._phub.session

    @property
    def times(self) -> Times:
        """Where this worker's time went: computing, pushing, or waiting for the hub."""
        return self.session.times


def mix_in(optimizer: torch.optim.Optimizer, joined: Type[Joined], membership: Membership) -> None:
    """Makes the optimizer, which stays the object that it is, one of `joined` as well."""
    kind: Any = type(optimizer)
    named = {"__doc__": kind.__doc__, "__module__": kind.__module__, "_phub_own": kind}
    optimizer.__class__ = type(kind.__name__, (joined, kind), named)
    optimizer._phub = membership  # type: ignore[attr-defined]
    # Torch calls hooks of steps, and marks steps for its profiler, by a function around `step` of each class.
    getattr(optimizer, "_patch_step_function", getattr(optimizer, "_hook_for_profile", None))()
    if hasattr(optimizer, "_step_supports_amp_scaling"):
        optimizer._step_supports_amp_scaling = False  # so a GradScaler unscales gradients itself
