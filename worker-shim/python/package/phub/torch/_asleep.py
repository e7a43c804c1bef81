"""Frozen parameters of an optimizer. One that the script has unfrozen gets into the job when the script reads its gradient."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Iterable

import torch

from ._held import Holder, hold, is_held, release


class Asleep:
    """The frozen parameters of an optimizer, except those that another optimizer trains."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], wake: Callable[[], bool]) -> None:
        """`wake` takes unfrozen parameters into the job. It returns false if the script is in `no_sync()`."""
        self._wake = wake
        self._holder = Holder(_no_values, _no_values, _no_values, weakref.ref(self))
        self._parameters = [each for each in parameters if not is_held(each)]
        for parameter in self._parameters:
            hold(parameter, self._holder)

    def handed_out(self, parameter: Any, _gradient: torch.Tensor) -> None:
        """Has the job take the parameter, so that the script finds the mean of all workers."""
        self._read(parameter)

    def missed(self, parameter: Any) -> None:
        """Has the job take the parameter, because another worker may have a gradient of it."""
        self._read(parameter)

    def given(self, parameter: Any) -> None:
        """Does nothing: a gradient that the script has set is read later, or goes with the next step."""

    def _read(self, parameter: Any) -> None:
        if parameter.requires_grad and self._wake():
            _ = parameter.grad  # the read now notifies the new job

    def leave(self) -> None:
        """Makes the parameters ordinary parameters again."""
        for parameter in self._parameters:
            release(parameter, self._holder)


def _no_values(*_arguments: Any) -> None:
    """Does nothing: the hub does not change frozen parameters."""
