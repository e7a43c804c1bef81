"""Slim-DP with torch: an optimizer makes its own steps, and workers exchange the changes (algorithm 1 of the paper). Unlike in
the paper, a change that is not sent is kept, and sent after a later step (docs/design/codecs-and-slim-dp.md)."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, ContextManager, Dict, Optional

import torch

from .._keys import Key
from .._optimizers import Sgd
from .._session import Session
from ._errors import StateError, WrapError
from ._joined import Joined
from ._model import Model
from ._scaler import found_infinite, reads_before_steps, unscale
from ._settings import dtype_of
from ._windows import have_other_bits, tensor

# Torch 2 has hooks before steps, and its scaler gives an optimizer the scale as an attribute. Torch 1 gives another argument.
_HAS_HOOKS = hasattr(torch.optim.Optimizer, "register_step_pre_hook")

_ANEW = "leave() the job, and wrap a new optimizer of torch's own"


class LocalExchange:
    """The exchange of a model's parameters after each step. Values that are sent are replaced by the hub's values. All other
    values are those of the worker's own step."""

    def __init__(self, model: Model, settings: Dict[str, Any]) -> None:
        self._model, self.parameters = model, model.trained
        parameters = self.parameters
        keys = {name: Key(tuple(each.shape), dtype_of(name, each)) for name, each in parameters.items()}
        # `Sgd(1.0)`, because the hub's weights shall change by the mean of the workers' changes.
        self.session = Session(keys=keys, optimizer=Sgd(1.0), **settings)
        try:
            # The sum of the changes that were not sent, by key. They are sent after a later step.
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
    def begin_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Checks that parameters have the values of the last exchange, and that the job has the same parameters.

        Raises:
            StateError: the script has written a parameter. The hub would replace some of the written values by its own.
            WrapError: a frozen parameter was unfrozen or got a gradient, or the groups have other parameters. The hub has no
                key for such parameters.
        """
        unfrozen = self._model.unfrozen
        if unfrozen or self._model.has_changed(optimizer):
            seen = f"parameter {unfrozen[0]!r} was unfrozen, or got a gradient," if unfrozen else "the groups got other parameters"
            raise WrapError(
                f"{seen} after DistributedOptimizer: with SlimDP the hub's keys are fixed at the join, so each worker would keep "
                f"its own values; {_ANEW} when its parameters are final"
            )
        for name, parameter in self.parameters.items():
            weights = self._weights[name]
            now = parameter.to(weights.device)
            is_alike = (now.dtype, now.shape) == (weights.dtype, weights.shape)
            if not is_alike or have_other_bits(now, weights):
                raise StateError(
                    f"parameter {name!r} was written since the last step(): with SlimDP each worker keeps changes that were not "
                    f"sent, and the hub would put its own values over written values. Write parameters (load_state_dict, clamp_) "
                    f"before DistributedOptimizer; to write parameters now, {_ANEW} after the write"
                )

    @torch.no_grad()
    def end_step(self) -> None:
        """Sends the changes of the step, waits, and copies the hub's values of the parameters that were sent."""
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


def _without_hooks(kind: Any) -> Callable[..., Any]:
    """Returns the step of torch's class without the function in which torch wraps it. That function runs the hooks of steps, and
    marks a step for the profiler. The class `StepsItself` has such a function, too, so hooks would run twice."""
    step = kind.step
    # The name is compared, too: torch.compile of torch 2.1 and 2.2 removes this function, and leaves its mark.
    is_hooked = getattr(step, "hooked", False) and step.__code__.co_name == "wrapper"
    return step.__wrapped__ if is_hooked else step  # type: ignore[no-any-return]


class StepsItself(Joined):
    """A class that is mixed into the optimizer's own class, for an optimizer that makes its own steps."""

    _phub: LocalExchange

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether torch's `GradScaler` calls `step` also if it finds a gradient that is not finite. Without this call the worker
        would fall one round behind the other workers, which have other gradients."""
        return _HAS_HOOKS and not reads_before_steps(self)

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:  # type: ignore[override]
        """Makes this optimizer's own step, sends its changes, and waits for the hub's values of the parameters that were sent.
        Returns the result of `closure`, or `None`. If a `GradScaler` skips the step of this worker, there is only the exchange.

        Raises:
            StateError: the script has written a parameter since the last step.
            WrapError: a parameter was unfrozen since `DistributedOptimizer`, or has a gradient although it is frozen.
        """
        self._phub.begin_step(self)
        loss = None
        if not found_infinite(self):
            unscale(self)
            loss = _without_hooks(self._phub_own)(self, closure)
        self._phub.end_step()
        return loss

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Raises a `WrapError`, because the keys of the job are fixed."""
        if "_phub" in self.__dict__:
            raise WrapError("with SlimDP the hub's keys are fixed at the join: add parameter groups before DistributedOptimizer")
        super().add_param_group(param_group)

    def no_sync(self) -> ContextManager[None]:
        """Returns a context that changes nothing: gradients are always this worker's own."""
        return contextlib.nullcontext()

    def synchronize(self) -> None:
        """Does nothing: parameters have their values when `step` returns."""
