"""A hub's checkpoint, loaded into a model's parameters and a torch optimizer's state: to continue or to evaluate without a
hub."""

from __future__ import annotations

import os
from typing import Iterable, Mapping, Optional, Tuple, Union

import torch

from .._phub import SettingsError, check_digest
from .._follow import check_target
from .._optimizers import state_names
from .._state import State, read
from ._joined import Joined
from ._model import pairs_of
from ._settings import Settings
from ._state import steps, to_torch


def load_checkpoint(
    path: Union[str, "os.PathLike[str]"],
    named_parameters: Union[torch.nn.Module, Mapping[str, torch.Tensor], Iterable[Tuple[str, torch.Tensor]]],
    optimizer: Optional[torch.optim.Optimizer] = None,
) -> int:
    """Loads the weights of a hub's checkpoint into parameters. With `optimizer`, also loads the optimizer state (momentum, Adam's
    means) into a torch optimizer. All values in the file are f32, and are converted to the types of the parameters.

    Args:
        path: the hub's file `JOB.safetensors`.
        named_parameters: the model or the parameters that were given to `DistributedOptimizer`. The file must have all of
            them that are not frozen. Frozen parameters are loaded if the file has them.
        optimizer: a torch optimizer with these parameters, of the kind that the hub ran, and not a `DistributedOptimizer`.
            The settings of its groups do not change.

    Returns:
        The number of steps in the checkpoint.

    Raises:
        SettingsError: the file is not a checkpoint, is damaged or incomplete, or is of another model or optimizer. No parameter has
            changed.
    """
    with open(path, "rb") as file:
        check_digest(os.fspath(path))
        state = read(file, os.fspath(path))
    if isinstance(named_parameters, torch.nn.Module):
        named_parameters = named_parameters.named_parameters()
    ours = [(name, each) for name, each in pairs_of(named_parameters) if each.requires_grad or name in state.tensors]
    for name, parameter in ours:
        values = state.tensors.get(name)
        if values is None or values.shape != tuple(parameter.shape):
            seen = "not there" if values is None else f"of shape {values.shape}"
            raise SettingsError(f"{path}: {name!r} is {seen}; expected shape {tuple(parameter.shape)}")
        check_target(name, parameter, torch.from_numpy(values))
    if optimizer is not None and state.names:
        _check_kind(path, state, optimizer)
    with torch.no_grad():
        for name, parameter in ours:
            parameter.copy_(torch.from_numpy(state.tensors[name]))
            if optimizer is not None and state.names:
                optimizer.state[parameter] = to_torch(state, name, parameter)
    return steps(state)


def _check_kind(path: object, state: State, optimizer: torch.optim.Optimizer) -> None:
    """Checks that a torch optimizer keeps the state that the hub's optimizer kept. Torch would ignore other state.

    Raises:
        SettingsError: the optimizer keeps other state, or its state is at a hub.
    """
    if isinstance(optimizer, Joined):
        raise SettingsError(f"{path}: the optimizer is a DistributedOptimizer; expected torch's own: load the checkpoint before the wrap")
    kept = sorted(state_names(Settings.of(optimizer).optimizer))
    if kept != state.names:
        raise SettingsError(
            f"{path} has the optimizer state {', '.join(state.names)}, and this {type(optimizer).__name__} keeps {', '.join(kept) or 'none'}; "
            f"expected an optimizer of the same kind and with the same settings as the job's, or no optimizer"
        )
