"""The hub's optimizer state in torch's own form, and back."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

import torch

from .. import _optimizers
from .._phub import SettingsError
from .._state import Array, State, name_of, steps_of

# The step count of torch.
_STEP = "step"


def to_torch(state: State, key: str, parameter: torch.Tensor) -> Dict[str, Any]:
    """Returns the state of torch's optimizer for a parameter, in the parameter's type, on its device. Before its first step it
    is empty, as torch's own."""
    if not state.made(key):
        return {}
    kept: Dict[str, Any] = {each: torch.from_numpy(state.of(each, key)).to(parameter) for each in state.names}
    if "exp_avg_sq" in kept:
        kept[_STEP] = torch.tensor(float(state.made(key)))
    return kept


def steps(state: State) -> int:
    """Returns the number of steps of the key that has made the most."""
    return max((state.made(key) for key in state.steps), default=max(state.round - 1, 0))


def from_torch(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, torch.nn.Parameter],
    at_hub: _optimizers.Optimizer,
    averages: Optional[Mapping[str, Array]] = None,
) -> Optional[State]:
    """Returns the parameters, and the state that torch's optimizer keeps of them, with averages by key; `None` if
    there is neither.

    Raises:
        SettingsError: it is another model's or another optimizer's.
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
            # The parameter never had a gradient. Zeros are right: torch begins its means with the first
            # gradient.
            kept[key] = {name: torch.zeros_like(parameter) for name in names}
        elif seen != sorted(names):
            raise SettingsError(
                f"parameter {key!r}: torch's optimizer keeps {', '.join(seen) or 'nothing'} of it, and "
                f"{type(at_hub).__name__} keeps {', '.join(names) or 'nothing'}: the state is another optimizer's"
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
        elif isinstance(at_hub, _optimizers.Dampened):
            made[key] = int(bool(seen))  # torch does not count, and its first step differs
    if not averages:
        return State(max(made.values(), default=0) + 1, tensors, made)
    # An average is of a key that has made a step.
    state = State(max(made.values(), default=1) + 1, tensors, made)
    return state.with_ema({key: values for key, values in averages.items() if key in parameters})


def _kept(optimizer: torch.optim.Optimizer, parameter: torch.nn.Parameter) -> Dict[str, Any]:
    kept = optimizer.state[parameter] if parameter in optimizer.state else {}
    return {name: value for name, value in kept.items() if value is not None}


def _array(tensor: torch.Tensor) -> Any:
    return tensor.detach().to("cpu", torch.float32).contiguous().numpy()
