"""A hub as an actor of Ray. The actor's process does not import torch."""

from __future__ import annotations

import glob
import os
from typing import Any, Dict, Optional

import ray.util

from ._hub import serve
from ._phub import SettingsError


class PlacedHub:
    """One hub of a run with `of` hubs. `number` counts the hubs from 0."""

    def __init__(self, token: str, number: int, of: int, checkpoints: Optional[str], settings: Dict[str, Any]) -> None:
        if "PHUB_CORES" not in os.environ:
            settings = {"cores": "half", **settings}
        if checkpoints is not None:
            settings = {**settings, "checkpoints": _own(checkpoints, number, of)}
        self._hub = serve("0.0.0.0:0", token=token, **settings)

    def address(self) -> str:
        """Returns the hub's `host:port`, which is valid on all nodes."""
        return f"{ray.util.get_node_ip_address()}:{self._hub.address.rpartition(':')[2]}"

    def stop(self, why: str) -> None:
        """Writes checkpoints, and ends the hub."""
        self._hub.stop(why)


def _own(checkpoints: str, number: int, of: int) -> str:
    """Returns a hub's own directory in the run's directory of checkpoints, and creates it.

    Raises:
        SettingsError: the run has a checkpoint of another number of hubs, which cannot be read by `of` hubs.
    """
    for file in sorted(glob.glob(os.path.join(glob.escape(checkpoints), "hubs-*", "*", "*.safetensors"))):
        others = os.path.relpath(file, checkpoints).partition(os.sep)[0]
        if others != f"hubs-{of}":
            raise SettingsError(
                f"{checkpoints}/{others} has this run's checkpoint, which another number of hubs wrote; this attempt has {of} hubs: "
                f"give the run as many nodes as before, or move these files away and continue from Ray's own checkpoint "
                f"(ray.train.get_checkpoint)"
            )
    own = os.path.join(checkpoints, f"hubs-{of}", str(number))
    os.makedirs(own, exist_ok=True)
    return own
