"""An optimizer whose steps the hub makes: the methods that differ from torch's."""

from __future__ import annotations

import importlib
import inspect
from typing import Any, Callable, ContextManager, Dict, List, NamedTuple, Optional

import torch

from .._phub import SettingsError
from ._errors import StateError
from ._exchange import Exchange
from ._held import drop_gradient, gradient_of, unasked
from ._join import Join
from ._joined import Joined
from ._scaler import found_infinite, unscaling
from ._state import to_torch

_SETS_TO_NONE: bool = inspect.signature(torch.optim.Optimizer.zero_grad).parameters["set_to_none"].default  # True from torch 2 on

_of_optimizers = importlib.import_module("torch.optim.optimizer")  # which torch.optim need not name
_HOOKS_BEFORE_ALL_STEPS: Dict[Any, Any] = getattr(_of_optimizers, "_global_optimizer_pre_hooks", {})  # torch 2.0


class _Read(NamedTuple):
    """A parameter's state, which a script has read."""

    values: Dict[str, Any]
    versions: Dict[str, int]

    def changed(self, now: Dict[str, Any]) -> List[str]:
        """Returns the names of the values that the script has written since it read the state."""
        replaced = [name for name in {*now, *self.values} if now.get(name) is not self.values.get(name)]
        return replaced + [name for name, version in self.versions.items() if self.values[name]._version != version]


class AtTheHub(Joined):
    """A class that is mixed into an optimizer's own class."""

    _phub: Exchange
    _phub_join: Join
    _phub_read: Optional[Dict[Any, _Read]] = None
    """The state that a script has read since the last step, by parameter."""

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:  # type: ignore[override]
        """Makes a step with the current gradients, parameters and settings, and does not wait for the new values. A read of a
        parameter waits for its values, and a call of a module waits for all of its parameters."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._phub.check_own("step()")
        if found_infinite(self) and not self._phub.is_asked:
            self._phub.unscale(unscaling(self))
            return loss  # in the mean, so that no worker makes this step
        self._take_changes_of_state()
        if self._phub_join.model.has_grown:
            self._join_anew()
        self._phub.step(self.param_groups, unscaling(self))
        return loss

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether `step` unscales gradients. torch's `GradScaler` asks this first in its own step, and then searches the
        gradients for values that are not finite; see `_scaler`."""
        reads_before = vars(self).get("_optimizer_step_pre_hooks") or _HOOKS_BEFORE_ALL_STEPS  # unscaled gradients
        unscales = self._phub.session.skips_nonfinite and not reads_before
        if unscales and not self._phub_join.model.has_grown:
            self._phub.expect_search()
        return unscales

    def zero_grad(self, set_to_none: bool = _SETS_TO_NONE) -> None:
        """Zeros the gradients, or sets them to `None`, as torch does. It does not count as an access by the script."""
        kept = []
        marked = torch.autograd.profiler.record_function(self._zero_grad_profile_name)  # type: ignore[attr-defined]
        with marked, unasked():  # neither gradients nor parameters need be asked
            for parameter in (each for group in self.param_groups for each in group["params"]):
                gradient = gradient_of(parameter)
                if gradient is not None and set_to_none:
                    drop_gradient(parameter)
                elif gradient is not None:
                    kept.append(gradient.detach_() if gradient.grad_fn is not None else gradient.requires_grad_(False))
            if kept:
                torch._foreach_zero_(kept)  # type: ignore[attr-defined]
            self._phub.zeroed()

    def no_sync(self) -> ContextManager[None]:
        """Returns a context in which backward passes add to this worker's own gradients, as in DDP's: no bytes leave, and
        the script reads its own gradients. The first backward pass after it makes the mean of the whole sum."""
        return self._phub.apart()

    def synchronize(self) -> None:
        """Waits until all parameters have their new values. For code that reads the memory without torch's functions."""
        self._phub.synchronize()

    @property
    def grad_norm(self) -> Optional[float]:
        """The norm of the mean gradient of the last step, before the hub has clipped it; waits for all parameters. `None` without
        `clip_norm`, `skip_nonfinite` and `skip_spikes`."""
        self.synchronize()
        norm = self._phub.session.norm
        return None if norm is None else norm.value

    def averaged(self) -> ContextManager[None]:
        """Returns a context in which the parameters have the averages that the hub keeps with `ema=`, for an evaluation.
        After it they have their own values again, bit for bit. Buffers, such as those of BatchNorm, stay. The averages are
        fetched, and the averages of 16-bit
        parameters rounded. Not every worker need enter it: other workers wait for this one at their next step.

        Raises:
            SettingsError: the job keeps no average.
        """
        return self._phub.averaged()

    # ---- the state

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The optimizer state by parameter, fetched from the hub. It can be read; a write is an error at the next step."""
        found = self.__dict__["state"]
        if not found and "_phub" in self.__dict__ and self._phub.has_stepped and self._phub_join.keeps_state:
            self.synchronize()
            state = self._phub.session.state()
            for key, parameter in self._phub.parameters.items():
                kept = to_torch(state, key, parameter)
                if kept:
                    found[parameter] = kept
            self._phub_read = {parameter: _Read(dict(kept), _versions(kept)) for parameter, kept in found.items()}
        return found

    @state.setter
    def state(self, state: Any) -> None:
        if "_phub" not in self.__dict__:
            self.__dict__["state"] = state
        elif state:
            raise StateError("optimizer.state is at the hub: change it by load_state_dict")
        else:
            self.reset_state()

    def reset_state(self, *parameters: torch.Tensor) -> None:
        """Sets the optimizer state of parameters to zero before the next step, and their numbers of steps; without parameters, of
        all. To clear `optimizer.state`, or to delete a parameter's part of it, does the same. Every worker calls it."""
        self._phub.reset(parameters or self._phub.parameters.values())

    def _take_changes_of_state(self) -> None:
        """Resets the state that a script has deleted since the last step. Raises a `StateError` if it has written to the state."""
        read, self._phub_read = self._phub_read or {}, None
        found = dict(self.__dict__["state"])
        self.__dict__["state"].clear()
        changed = [] if found.keys() <= read.keys() else ["optimizer.state"]
        for parameter, kept in found.items():
            if parameter in read:
                changed += [f"{name!r} of optimizer.state" for name in read[parameter].changed(kept)]
        if changed:
            raise StateError(f"{changed[0]} was written, but the state is at the hub: change it by load_state_dict")
        gone = [parameter for parameter in read if parameter not in found]
        if gone:
            self.reset_state(*gone)

    def state_dict(self) -> Dict[str, Any]:
        """Returns the groups, and the optimizer state, which is fetched from the hub. It is the state between this worker's
        last step and its next one; other workers may continue meanwhile. Not every worker need call it.

        Raises:
            RefusedError: the hubs of a job are before different rounds, as they may be unless it is "bsp".
        """
        _ = self.state  # fetches it
        return super().state_dict()

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:  # type: ignore[override]
        """Takes the groups' settings, and gives the hub the state of the optimizer: every worker leaves the job, and
        joins a new job, whose name ends with a number. The new job begins with rank 0's current parameters and state.
        So call this on every worker. A `state_dict` without state changes the groups only.

        Raises:
            SettingsError: the state belongs to another model or optimizer.
        """
        self._phub.check_own("load_state_dict()")
        self.synchronize()
        super().load_state_dict(state_dict)
        self._phub_read = None
        if not state_dict.get("state"):
            self.__dict__["state"].clear()
            return
        try:
            self._phub_join.check(self)
        except BaseException:
            self.__dict__["state"].clear()
            raise
        self._phub = self._phub_join.again(self)

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Adds a group: every worker leaves the job, and joins a new job with the keys of all groups, which begins with rank 0's
        parameters and state. So call this on every worker."""
        super().add_param_group(param_group)
        if "_phub" in self.__dict__:
            try:
                self._join_anew()
            except SettingsError:
                self.param_groups.pop()
                raise

    def _join_anew(self) -> None:
        """Joins a new job with the current parameters of the optimizer, and the current state."""
        self._phub.check_own("another group of parameters")
        _ = self.state  # fetches it
        self._phub_read = None
        averages = self._phub.averages() if self._phub.session.rank == 0 else None  # rank 0's state is everybody's
        model = self._phub_join.model
        former = model.trained
        try:
            model.follow(self)
            self._phub_join.check(self)
        except BaseException:
            model.trained = former
            self.__dict__["state"].clear()
            raise
        self._phub = self._phub_join.again(self, averages)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies or pickles a plain torch optimizer with the current state."""
        state = {"defaults": self.defaults, "state": self.state, "param_groups": self.param_groups}
        return _optimizer, (self._phub_own,), state


def _optimizer(own: type) -> torch.optim.Optimizer:
    optimizer: torch.optim.Optimizer = object.__new__(own)
    return optimizer


def _versions(kept: Dict[str, Any]) -> Dict[str, int]:
    return {name: each._version for name, each in kept.items() if isinstance(each, torch.Tensor)}
