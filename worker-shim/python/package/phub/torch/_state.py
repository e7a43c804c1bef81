"""The conversion of the hub's optimizer state to the form of torch's optimizers, and back."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

import torch

from .. import _optimizers
from .._phub import SettingsError
from .._state import Array, State, name_of, steps_of

# Torch's name for the number of steps.
_STEP = "step"


def to_torch(state: State, key: str, parameter: torch.Tensor, dtype: Optional[torch.dtype] = None) -> Dict[str, Any]:
    """Returns the optimizer state of a parameter, as a torch optimizer keeps it: on the parameter's device, in the parameter's
    type or in `dtype`. Before the first step the state is empty, as with torch."""
    if not state.made(key):
        return {}
    kept: Dict[str, Any] = {each: torch.from_numpy(state.of(each, key)).to(parameter.device, dtype or parameter.dtype) for each in state.names}
    if "exp_avg_sq" in kept:
        kept[_STEP] = torch.tensor(float(state.made(key)))
    return kept


def steps(state: State) -> int:
    """Returns the largest number of steps of a key."""
    return max((state.made(key) for key in state.steps), default=max(state.round - 1, 0))


def from_torch(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, torch.nn.Parameter],
    at_hub: _optimizers.Optimizer,
    averages: Optional[Mapping[str, Array]] = None,
) -> Optional[State]:
    """Returns a state for the hub: the parameters, the state that a torch optimizer keeps of them, and averages by key. `None` if
    there is neither optimizer state nor an average.

    Raises:
        SettingsError: the optimizer state belongs to another model or another optimizer.
    """
    kept = {key: _kept(optimizer, parameter) for key, parameter in parameters.items()}
    if not any(kept.values()) and not averages:
        return None
    names = _optimizers.state_names(at_hub)
    tensors: Dict[str, Any] = {key: _array(parameter) for key, parameter in parameters.items()}
    made: Dict[str, int] = {}
    for key, parameter in parameters.items():
        seen = sorted(set(kept[key]) - {_STEP})
        if not seen:
            # The parameter never had a gradient, so its state at the hub is zeros. Torch, too, begins its means with the first
            # gradient.
            kept[key] = {name: torch.zeros_like(parameter) for name in names}
        elif seen != sorted(names):
            raise SettingsError(
                f"parameter {key!r}: torch's optimizer has the state {', '.join(seen)}, and the "
                f"hub's {type(at_hub).__name__} keeps {', '.join(names) or 'no state'}: load a state of the same optimizer"
            )
        for name in names:
            value = kept[key][name]
            if tuple(value.shape) != tuple(parameter.shape):
                raise SettingsError(
                    f"parameter {key!r}: its {name} is of shape {tuple(value.shape)}; expected {tuple(parameter.shape)}"
                )
            tensors[name_of(name, key)] = _array(value)
        if "exp_avg_sq" in names:
            made[key] = steps_of(kept[key].get(_STEP, 0), f"parameter {key!r}")
        elif names:
            made[key] = int(bool(seen))  # torch has no count here; but there is state only after the first step
    if not averages:
        return State(max(made.values(), default=0) + 1, tensors, made)
    # A state with averages counts at least one step, even if torch's optimizer counts no step.
    state = State(max(made.values(), default=1) + 1, tensors, made)
    return state.with_ema({key: values for key, values in averages.items() if key in parameters})


def _kept(optimizer: torch.optim.Optimizer, parameter: torch.nn.Parameter) -> Dict[str, Any]:
    kept = vars(optimizer)["state"].get(parameter, {})  # without a fetch from the hub
    return {name: value for name, value in kept.items() if value is not None}


def _array(tensor: torch.Tensor) -> Any:
    return tensor.detach().to("cpu", torch.float32).contiguous().numpy()
