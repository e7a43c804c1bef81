"""A hub's checkpoint, as a model's parameters and a torch optimizer's state: to go on without a hub, to look, to give
away."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, Iterable, Optional, Tuple, Union

import numpy as np
import torch

from .._phub import SettingsError

_STATE = "optimizer/"


def load_checkpoint(
    path: Union[str, "os.PathLike[str]"],
    named_parameters: Iterable[Tuple[str, torch.Tensor]],
    optimizer: Optional[torch.optim.Optimizer] = None,
) -> int:
    """Loads the weights of a hub's checkpoint into parameters, and the state of its optimizer (momentum, the means of
    Adam) into an optimizer of torch's own that has these parameters and is not distributed.

    The file is the hub's `JOB.safetensors`, all in f32; parameters and state are of the parameters' own type.

    Args:
        path: the file.
        named_parameters: as they were given to `DistributedOptimizer`. Every one must be in the file.
        optimizer: of the kind that the hub ran; the settings of its groups stay as they are.

    Returns:
        The number of steps that are in it.

    Raises:
        SettingsError: the file is no checkpoint, is cut short, or is of another model.
    """
    tensors, settings = _read(Path(path))
    states = sorted({name.split("/")[1] for name in tensors if name.startswith(_STATE)})
    steps = max(int(settings["round"]) - 1, 0)  # round 0 is the broadcast
    with torch.no_grad():
        for name, parameter in named_parameters:
            if not parameter.requires_grad:
                continue
            values = tensors.get(name)
            if values is None or values.shape != tuple(parameter.shape):
                seen = "not there" if values is None else f"of shape {values.shape}"
                raise SettingsError(f"{path}: {name!r} is {seen}; expected shape {tuple(parameter.shape)}")
            parameter.copy_(torch.from_numpy(values))
            if optimizer is None or not states:
                continue
            state: Dict[str, Any] = {
                each: torch.from_numpy(tensors[f"{_STATE}{each}/{name}"]).to(parameter) for each in states
            }
            if "exp_avg" in state:
                state["step"] = torch.tensor(float(steps))
            optimizer.state[parameter] = state
    return steps


def _read(path: Path) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """The tensors of a checkpoint, by name, and what it says of itself."""
    content = path.read_bytes()
    try:
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        settings = header.pop("__metadata__")
        int(settings["round"])
        tensors = {}
        for name, entry in header.items():
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            values = np.frombuffer(content[begin:end], "<f4")
            tensors[name] = values.reshape(tuple(entry["shape"])).copy()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SettingsError(f"{path}: not a whole checkpoint of a hub: {error!r}") from error
    return tensors, settings
