"""A hub's checkpoint, as a model's parameters and a torch optimizer's state. For continuing without a hub, for a look at it, or
for giving it away."""

from __future__ import annotations

import os
from typing import Iterable, Optional, Tuple, Union

import torch

from .._phub import SettingsError
from .._state import read
from ._state import steps, to_torch


def load_checkpoint(
    path: Union[str, "os.PathLike[str]"],
    named_parameters: Iterable[Tuple[str, torch.Tensor]],
    optimizer: Optional[torch.optim.Optimizer] = None,
) -> int:
    """Loads the weights of a hub's checkpoint into parameters. Loads the state of its optimizer (momentum, the means of
    Adam) into an optimizer of torch, which has these parameters and is not distributed.

    The file is the hub's `JOB.safetensors`, all in f32; parameters and state are of the parameters' own type.

    Args:
        path: the file.
        named_parameters: as they were given to `DistributedOptimizer`. Every one must be in the file.
        optimizer: of the kind that the hub ran; the settings of its groups do not change.

    Returns:
        The number of steps that are in it.

    Raises:
        SettingsError: the file is not a checkpoint, is cut short, or is of another model.
    """
    with open(path, "rb") as file:
        state = read(file, os.fspath(path))
    with torch.no_grad():
        for name, parameter in named_parameters:
            if not parameter.requires_grad:
                continue
            values = state.tensors.get(name)
            if values is None or values.shape != tuple(parameter.shape):
                seen = "not there" if values is None else f"of shape {values.shape}"
                raise SettingsError(f"{path}: {name!r} is {seen}; expected shape {tuple(parameter.shape)}")
            parameter.copy_(torch.from_numpy(values))
            if optimizer is not None and state.names:
                optimizer.state[parameter] = to_torch(state, name, parameter)
    return steps(state)
