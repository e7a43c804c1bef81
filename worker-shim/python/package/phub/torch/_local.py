"""Slim-DP under torch: an optimizer makes its own steps, and their changes are exchanged (algorithm 1). Unlike in
the paper, a change that was left out is pushed at a later step (decision 21)."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

import torch

from .._keys import Key
from .._optimizers import Sgd
from .._session import Session
from ._errors import WrapError
from ._joined import Joined
from ._settings import dtype_of
from ._windows import tensor


class LocalExchange:
    """Parameters by key. The values that are sent are replaced by the hub's. The other values are made by the worker's own
    steps."""

    def __init__(self, parameters: Dict[str, torch.nn.Parameter], settings: Dict[str, Any]) -> None:
        self.parameters = parameters
        keys = {name: Key(tuple(each.shape), dtype_of(name, each)) for name, each in parameters.items()}
        # The hub's weights change by the mean of the workers' changes.
        self.session = Session(keys=keys, optimizer=Sgd(1.0), **settings)
        try:
            # A change that is not sent is kept here, and leaves with a later step.
            self._changes = {name: tensor(self.session, name, "gradient") for name in parameters}
            self._weights = {name: tensor(self.session, name, "weights") for name in parameters}
            if self.session.rank == 0:
                with torch.no_grad():
                    for name, parameter in parameters.items():
                        self._changes[name].copy_(parameter)
            self.session.broadcast()
            self._take()
        except BaseException:
            self.session.close()
            raise

    @torch.no_grad()
    def begin_step(self) -> None:
        """Stores the values of the parameters."""
        for name, parameter in self.parameters.items():
            self._weights[name].copy_(parameter)

    @torch.no_grad()
    def end_step(self) -> None:
        """Sends the changes of the step, and takes the mean of all workers' changes."""
        for name, parameter in self.parameters.items():
            weights = self._weights[name]
            after = parameter.to(weights.device)
            self._changes[name].add_(weights - after)
            weights.copy_(after)
            self.session.push(name)
        self.session.wait()
        self._take()

    @torch.no_grad()
    def _take(self) -> None:
        for name, parameter in self.parameters.items():
            parameter.copy_(self._weights[name])

    def leave(self) -> None:
        """Leaves the job. Parameters keep their values."""
        self.session.leave()


class StepsItself(Joined):
    """The actions of an optimizer before and after its own step."""

    _phub: LocalExchange

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:  # type: ignore[override]
        """Makes this optimizer's own step, sends its changes, and takes the hub's values of the sent
        parameters."""
        self._phub.begin_step()
        loss = super().step(closure)  # type: ignore[arg-type]
        self._phub.end_step()
        return loss

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Raises a `WrapError`: the keys of the job are fixed."""
        if "_phub" in self.__dict__:
            raise WrapError("with SlimDP the hub's keys are fixed at the join: add parameter groups before DistributedOptimizer")
        super().add_param_group(param_group)

    def synchronize(self) -> None:
        """Does nothing: parameters have their values when `step` returns."""
