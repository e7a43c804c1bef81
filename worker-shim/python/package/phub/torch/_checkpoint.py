"""A hub's checkpoint, loaded into a model's parameters and a torch optimizer's state: to continue or to evaluate without a
hub."""

from __future__ import annotations

import os
from typing import Iterable, Optional, Tuple, Union

import torch

from .._phub import SettingsError, check_digest
from .._follow import check_target
from .._state import read
from ._state import steps, to_torch


def load_checkpoint(
    path: Union[str, "os.PathLike[str]"],
    named_parameters: Iterable[Tuple[str, torch.Tensor]],
    optimizer: Optional[torch.optim.Optimizer] = None,
) -> int:
    """Loads the weights of a hub's checkpoint into parameters. With `optimizer`, also loads the optimizer state (momentum, Adam's
    means) into a torch optimizer. All values in the file are f32, and are converted to the types of the parameters.

    Args:
        path: the hub's file `JOB.safetensors`.
        named_parameters: the model or the parameters that were given to `DistributedOptimizer`. The file must have all of
            them.
        optimizer: a torch optimizer with these parameters, of the kind that the hub ran, and not a `DistributedOptimizer`.
            The settings of its groups do not change.

    Returns:
        The number of steps in the checkpoint.

    Raises:
        SettingsError: the file is not a checkpoint, is damaged or incomplete, or is of another model. No parameter has changed.
    """
    with open(path, "rb") as file:
        check_digest(os.fspath(path))
        state = read(file, os.fspath(path))
    ours = [(name, parameter) for name, parameter in named_parameters if parameter.requires_grad]
    for name, parameter in ours:
        values = state.tensors.get(name)
        if values is None or values.shape != tuple(parameter.shape):
            seen = "not there" if values is None else f"of shape {values.shape}"
            raise SettingsError(f"{path}: {name!r} is {seen}; expected shape {tuple(parameter.shape)}")
        check_target(name, parameter)
    with torch.no_grad():
        for name, parameter in ours:
            parameter.copy_(torch.from_numpy(state.tensors[name]))
            if optimizer is not None and state.names:
                optimizer.state[parameter] = to_torch(state, name, parameter)
    return steps(state)
