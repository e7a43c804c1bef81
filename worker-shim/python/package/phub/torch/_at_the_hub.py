"""An optimizer whose steps the hub makes: the methods that differ from torch's."""

from __future__ import annotations

import inspect
import itertools
from typing import Any, Callable, ContextManager, Dict, List, Mapping, NamedTuple, Optional

import torch

from .._phub import SettingsError
from ._errors import StateError
from ._exchange import Exchange
from ._held import drop_gradient, eager, gradient_of, unasked
from ._join import Join
from ._joined import Joined
from ._scaler import found_infinite, reads_before_steps, unscaling
from ._state import to_torch

_SETS_TO_NONE: bool = inspect.signature(torch.optim.Optimizer.zero_grad).parameters["set_to_none"].default  # True from torch 2 on


class _Read(NamedTuple):
    """A parameter's optimizer state, as a script has read it."""

    values: Dict[str, Any]
    versions: Dict[str, int]

    def changed(self, now: Dict[str, Any]) -> List[str]:
        """Returns the names of the values that the script has written since it read the state."""
        replaced = [name for name in {*now, *self.values} if now.get(name) is not self.values.get(name)]
        return replaced + [name for name, version in self.versions.items() if self.values[name]._version != version]


class AtTheHub(Joined):
    """A class that is mixed into the optimizer's own class, for an optimizer whose steps the hub makes."""

    _phub: Exchange
    _phub_join: Join
    _phub_read: Optional[Dict[Any, _Read]] = None
    """The state that a script has read since the last step, by parameter."""

    @eager
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:  # type: ignore[override]
        """Makes a step with the current gradients, parameters and settings. Does not wait for the new values: a read of a
        parameter waits for them, and a call of a module waits for its parameters.

        Args:
            closure: as for torch's optimizers.

        Returns:
            The result of `closure`, or `None`.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._phub.check_own("step()")
        if found_infinite(self) and not self._phub.is_asked:
            self._phub.unscale(unscaling(self))
            return loss  # what the scaler searched was the mean, so no worker makes this step
        self._take_changes_of_state()
        if self._phub_join.model.changes_in_step(self):
            self._join_anew()
        self._phub.step(self.param_groups, unscaling(self))
        return loss

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether `step` unscales gradients. In its step, torch's `GradScaler` reads this property first. Then the scaler
        searches the gradients for values that are not finite; see `_scaler`."""
        unscales = self._phub.session.skips_nonfinite and not reads_before_steps(self)
        if unscales and not self._phub_join.model.changes_in_step(self):
            self._phub.expect_search()
        return unscales

    def zero_grad(self, set_to_none: bool = _SETS_TO_NONE) -> None:
        """Sets the gradients to zero or `None`, as torch does. The call does not count as the script's access to gradients."""
        if self._phub_join.model.has_changed(self):
            self._join_anew()  # before a backward pass, so that the script finds means of the new parameters, too
        kept = []
        marked = torch.autograd.profiler.record_function(self._zero_grad_profile_name)  # type: ignore[attr-defined]
        with marked, unasked():  # no notes of accesses, and no waits for values
            for parameter in itertools.chain.from_iterable(group["params"] for group in self.param_groups):
                gradient = gradient_of(parameter)
                if gradient is not None and set_to_none:
                    drop_gradient(parameter)
                elif gradient is not None:
                    kept.append(gradient.detach_() if gradient.grad_fn is not None else gradient.requires_grad_(False))
            if kept:
                torch._foreach_zero_(kept)  # type: ignore[attr-defined]
            self._phub.zeroed()

    def no_sync(self) -> ContextManager[None]:
        """Returns a context in which backward passes add to this worker's own gradients, as in DDP's `no_sync`. In the context
        no gradients are sent, and the script reads this worker's gradients. After the first backward pass outside of the
        context, all that was added is in the mean."""
        return self._phub.apart()

    def synchronize(self) -> None:
        """Waits until all parameters have their new values. For code that reads parameters without torch's functions."""
        self._phub.synchronize()

    @property
    def grad_norm(self) -> Optional[float]:
        """The norm of the mean gradient of the last step, before clipping. A read waits for all parameters. `None` without
        `clip_norm`, `skip_nonfinite` and `skip_spikes`."""
        self.synchronize()
        norm = self._phub.session.norm
        return None if norm is None else norm.value

    def averaged(self) -> ContextManager[None]:
        """Returns a context in which the parameters have the averages that the hub keeps with `ema=`, for an evaluation. After
        the context they have their own values again, bit for bit. Buffers, such as those of BatchNorm, do not change.

        The averages are fetched from the hub; for 16-bit parameters they are rounded. One worker may enter the context alone:
        the other workers wait for it at their next step.

        Raises:
            SettingsError: the job keeps no average.
        """
        return self._phub.averaged()

    # ---- the state

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The optimizer state by parameter, fetched from the hub. A script may read it. After a write, the next step raises a
        `StateError`."""
        found = self.__dict__["state"]
        if not found and "_phub" in self.__dict__:
            if self._phub_read:
                self._take_changes_of_state()  # the script has cleared what it had read
            self._fetch_state()
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

    def _fetch_state(self, dtype: Optional[torch.dtype] = None) -> None:
        """Fetches the optimizer state from the hub, except for parameters that are reset before the next step. The state has the
        type `dtype`; default: the type of each parameter."""
        found = self.__dict__["state"]
        found.update(self._phub_join.aside)
        if self._phub.has_stepped and self._phub_join.keeps_state:
            self.synchronize()
            state = self._phub.session.state()
            for key, parameter in self._phub.parameters.items():
                kept = {} if self._phub.is_reset(key) else to_torch(state, key, parameter, dtype)
                if kept:
                    found[parameter] = kept

    def reset_state(self, *parameters: torch.Tensor) -> None:
        """Resets parameters before the next step: sets their optimizer state and their numbers of steps to zero. Without
        arguments, resets all parameters. Every worker must call it. `optimizer.state.clear()` also resets all parameters,
        and the deletion of a parameter's entry in `optimizer.state` resets that parameter."""
        if not parameters:
            parameters = (*self._phub.parameters.values(), *self._phub_join.aside)
        self._phub.reset(parameters)
        for parameter in parameters:
            self._phub_join.aside.pop(parameter, None)

    def _take_changes_of_state(self) -> None:
        """Resets the optimizer state that the script has deleted since the last step.

        Raises:
            StateError: the script has written to the optimizer state.
        """
        read, self._phub_read = self._phub_read or {}, None
        found = dict(self.__dict__["state"])
        self.__dict__["state"].clear()
        changed = [] if found.keys() <= read.keys() else ["optimizer.state"]
        for parameter, kept in found.items():
            if parameter in read:
                changed += [f"{name!r} of optimizer.state" for name in read[parameter].changed(kept)]
        if changed:
            raise StateError(
                f"{changed[0]} was written, but the state is at the hub: change it by load_state_dict, and keep values of the "
                f"script's own in another dict"
            )
        gone = [parameter for parameter in read if parameter not in found]
        if gone:
            self.reset_state(*gone)

    def state_dict(self) -> Dict[str, Any]:
        """Returns the groups and the optimizer state, in torch's form. The state is fetched from the hub: it is the state between
        this worker's last step and its next step. One worker may call this method alone, and the other workers may continue.

        Raises:
            RefusedError: the hubs of the job are in different rounds.
        """
        _ = self.state  # a read fetches it
        return super().state_dict()

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:  # type: ignore[override]
        """Loads the groups' settings and the optimizer state. Every worker must call it. With a state, every worker leaves the
        job, and joins a new job, whose name ends with a number. The new job begins with rank 0's current parameters and state.
        A `state_dict` without state resets all parameters, as in torch, and the job stays.

        Raises:
            SettingsError: the state belongs to another model or optimizer.
        """
        self._phub.check_own("load_state_dict()")
        self.synchronize()
        super().load_state_dict(state_dict)
        self._phub_read = None
        if not state_dict.get("state"):
            self.__dict__["state"].clear()
            if self._phub_join.keeps_state:
                self.reset_state()
            return
        try:
            self._phub_join.check(self)
        except BaseException:
            self.__dict__["state"].clear()
            raise
        self._phub = self._phub_join.again(self, self._averages())

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Adds a parameter group. Every worker must call it: every worker leaves the job, and joins a new job with the
        parameters of all groups. The new job begins with rank 0's parameters and state.

        Raises:
            SettingsError: the new job cannot have these parameters; the group is not added.
            StateError: the call is within `averaged()`; the group is not added.
        """
        if "_phub" in self.__dict__:
            self._phub.check_own("another group of parameters")
        super().add_param_group(param_group)
        if "_phub" in self.__dict__:
            try:
                self._join_anew()
            except SettingsError:
                self.param_groups.pop()
                raise

    def _join_anew(self) -> None:
        """Joins a new job with the current parameters and the current state of the optimizer."""
        self._phub.check_own("another group of parameters")
        self._take_changes_of_state()
        self._fetch_state(torch.float32)  # 16 bits would round it
        averages = self._averages()
        model = self._phub_join.model
        former = dict(vars(model))
        try:
            model.follow(self)
            self._phub_join.check(self)
        except BaseException:
            vars(model).update(former)  # so that the next call raises again
            self.__dict__["state"].clear()
            raise
        self._phub = self._phub_join.again(self, averages)

    def _averages(self) -> Optional[Mapping[str, Any]]:
        """Fetches the averages for a new job, at rank 0 only: the new job takes rank 0's state."""
        return self._phub.averages() if self._phub.session.rank == 0 else None

    def _phub_wake(self) -> bool:
        """Joins a new job with the parameters that the script has unfrozen or put into a group, before the script reads their
        gradients. Every worker must read these gradients. In `no_sync()` the script reads this worker's own gradients, and the
        job stays. Returns whether there is a new job."""
        if self._phub.is_apart or not self._phub_join.model.has_changed(self):
            return False
        self._join_anew()
        return True


def _versions(kept: Dict[str, Any]) -> Dict[str, int]:
    return {name: each._version for name, each in kept.items() if isinstance(each, torch.Tensor)}
