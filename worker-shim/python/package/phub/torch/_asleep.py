"""Parameters that the job does not have: frozen parameters of the optimizer, and parameters that are not in the optimizer.

A script may unfreeze such a parameter, or put it into a group. The parameter becomes a part of the job when the script reads
its gradient. If the optimizer does not have a parameter, the parameter's gradient is this worker's own. A script that uses such a
gradient gets an error.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from ._errors import MeanError
from ._held import Holder, gradient_of, hold, is_held, release
from ._model import Model
from ._script import line
from ._watched import unwatch, watch

_ENGINE: Any = torch.autograd.Variable._execution_engine  # type: ignore[attr-defined]


class Asleep:
    """The parameters of a model that a job does not have, except parameters that another optimizer trains."""

    def __init__(self, model: Model, optimizer: "weakref.ref[Any]") -> None:
        """Watches the parameters. The hub runs `optimizer`, whose `_phub_wake` adds parameters to its job."""
        self._optimizer = optimizer
        self._holder = Holder(_no_values, _no_values, _no_values, weakref.ref(self))
        of_model = {name: each for name, each in model.without_optimizer.items() if not is_held(each)}
        self._names = {id(each): name for name, each in of_model.items()}
        self._parameters = [*of_model.values(), *(each for each in model.asleep if not is_held(each))]
        for parameter in self._parameters:
            hold(parameter, self._holder)

    def handed_out(self, parameter: Any, gradient: torch.Tensor) -> None:
        """Adds the parameter to the job, so that the script reads the mean of all workers' gradients. If the optimizer does not
        have the parameter, watches the gradient."""
        if not self._is_taken(parameter) and id(parameter) in self._names:
            watch(gradient, self)

    def missed(self, parameter: Any) -> None:
        """Adds the parameter to the job, because another worker may have a gradient of it."""
        self._is_taken(parameter)

    def given(self, parameter: Any) -> None:
        """Does nothing: a later read or the next step finds the gradient that the script has set."""

    def moved(self, parameter: Any) -> None:
        """Does nothing: the hub does not have the parameter."""

    def _is_taken(self, parameter: Any) -> bool:
        optimizer = self._optimizer()
        if optimizer is None or not parameter.requires_grad or not optimizer._phub_wake():
            return False
        _ = parameter.grad  # the read now notifies the new job
        return True

    def touched(self, gradient: Any) -> None:
        """Refuses the use of this worker's own gradient in place of the mean of all workers, except within `no_sync()` and
        within a backward pass.

        Raises:
            MeanError: the gradient is this worker's own.
        """
        optimizer = self._optimizer()
        if optimizer is None or optimizer._phub.is_apart or _in_backward():
            return
        of_this = (self._names.get(id(each)) for each in self._parameters if gradient_of(each) is gradient)
        raise MeanError(
            f"{line()}: the gradient of {next(of_this, None)!r} is used here, but no optimizer at the hub has this parameter: the "
            f"gradient is this worker's own, and with DDP it would be the mean of all workers. Freeze the parameter "
            f"(requires_grad_(False)), or give it to an optimizer at the hub; or use the worker's own gradient in a block "
            f"`with optimizer.no_sync():`"
        )

    def zeroed_by_script(self, gradient: Any) -> None:
        """Does nothing: the script has set the gradient to zero, which is also the mean over all workers."""

    def puts_off(self, found: Any, factor: torch.Tensor) -> bool:
        """Returns False: the hub checks only gradients of the job for inf/NaN."""
        return False

    def leave(self) -> None:
        """Makes the parameters and their gradients ordinary again."""
        for parameter in self._parameters:
            gradient = gradient_of(parameter)
            if getattr(gradient, "_phub_watcher", None) is self:
                unwatch(gradient)
            release(parameter, self._holder)


def _in_backward() -> bool:
    """Whether a backward pass runs on this thread."""
    try:
        _ENGINE.queue_callback(_no_values)
    except RuntimeError:
        return False
    return True


def _no_values(*_arguments: Any) -> None:
    """Does nothing: the hub does not change these parameters."""
