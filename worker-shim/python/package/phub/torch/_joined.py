"""What each optimizer in a job has, whether the hub makes its steps or not."""

from __future__ import annotations

from typing import Any, Dict, Protocol, Type

import torch

from .._phub import OrderError
from .._session import Session, Times


class Membership(Protocol):
    """A model's exchange with the hub."""

    session: Session

    def leave(self) -> None:
        """Waits for all keys that are under way, and leaves the job. Parameters keep their values."""


class Joined(torch.optim.Optimizer):
    """Mixed into the optimizer's own class."""

    _phub: Membership

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

    def join_hook(self, **_settings: Any) -> Any:
        """Refuses `torch.distributed.algorithms.join.Join`, which would have this worker make steps of its own accord."""
        raise OrderError(
            "Join([optimizer]): this optimizer's steps are the hub's, and all workers make as many. For uneven inputs, let a worker "
            "that has no more inputs go on with zero_grad() and step() as often as the others, so that its gradients count as "
            "zeros; or give all as many (drop_last=True). Join([model]) is for DistributedDataParallel, by phub.torch.ddp_hook or "
            "phub.c10d, with an optimizer of torch's own"
        )

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        if hasattr(self, "_phub"):
            raise OrderError("the hub's keys are fixed at the join: add parameter groups before DistributedOptimizer")
        super().add_param_group(param_group)


def mix_in(optimizer: torch.optim.Optimizer, joined: Type[Joined], membership: Membership) -> None:
    """Makes the optimizer, which stays the object that it is, one of `joined` as well."""
    kind = type(optimizer)
    optimizer.__class__ = type(kind.__name__, (joined, kind), {"__doc__": kind.__doc__})
    optimizer._phub = membership  # type: ignore[attr-defined]
