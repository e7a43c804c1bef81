"""Replicas of a model that FSDP2 shards: FSDP reduces gradients to shards within a replica, and the hub averages them over
replicas.

```
   replica 0   [shard 0] [shard 1]      job NAME.0: the mean of each parameter's shard 0
   replica 1   [shard 0] [shard 1]      job NAME.1: the mean of each parameter's shard 1
```

So a worker sends only its shard between the machines of two replicas, and never a whole model. Needs torch 2.7 or later.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, List, Union

import torch

from .._hub import Hub
from .._keys import Key
from .._optimizers import Average
from .._phub import SettingsError
from .._session import Session
from ._errors import GradientError
from ._settings import check_parts, dtype_of
from ._windows import copy, tensor


class Replicas:
    """The average of gradients over the replicas of a model that `fully_shard` has sharded, as a whole or also part by part."""

    def __init__(
        self, model: torch.nn.Module, mesh: Any, *, hub: Union[str, Hub, None] = None, job: str = "fsdp", **session: Any
    ) -> None:
        """Args:
            model: a model after `fully_shard` with a mesh of one dimension, the workers of a replica. From now on, its
                gradients after a backward pass are the means over all replicas.
            mesh: the dimension of the replicas, such as
                `init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))["replica"]`.
            hub: the address of the hub for all replicas. Default: `PHUB_HUB`.
            job: the first part of the names of the jobs. Each shard has a job.
            session: more settings of `phub.Session`, such as `compression`.

        Raises:
            SettingsError: the model is not sharded, or no hub is named. Or a setting such as `clip_norm` needs the whole gradient.
        """
        check_parts("Replicas", session)
        if hub is None and not os.environ.get("PHUB_HUB"):
            raise SettingsError("no hub is named for the replicas: say hub='host:port', or set PHUB_HUB")
        parts = [each for each in model.modules() if hasattr(each, "set_all_reduce_hook")]
        names = {id(parameter): name for name, parameter in model.named_parameters() if parameter.requires_grad}
        if not parts or any(not hasattr(each, "device_mesh") for each in model.parameters()):
            raise SettingsError("a parameter of the model is not sharded: call fully_shard on the model before Replicas")
        shards = next(model.parameters()).device_mesh  # type: ignore[union-attr]
        shard, count = shards.get_local_rank(), shards.size()
        self._keys: Dict[str, Key] = {}
        owned: Dict[Any, List[str]] = {}  # by FSDP's state: modules that were sharded together have one, and are reduced together
        for part in parts:
            keys = owned.setdefault(part._get_fsdp_state(), [])  # type: ignore[operator]
            for parameter in _own(part):
                name = names.pop(id(parameter), None)
                if name is not None:
                    key = f"{name}/{shard}"
                    rows = -(-parameter.shape[0] // count)  # FSDP pads the last shards to this size
                    self._keys[key] = Key((rows, *parameter.shape[1:]), dtype_of(name, parameter))
                    keys.append(key)
        place = hub, mesh.get_local_rank(), mesh.size()
        self.session = Session(*place, keys=self._keys, optimizer=Average(), job=f"{job}.{shard}", **session)
        for part in parts:
            part.set_all_reduce_hook(self._mean_of(owned[part._get_fsdp_state()]))  # type: ignore[operator]

    def _mean_of(self, keys: List[str]) -> Callable[[torch.Tensor], None]:
        """Returns FSDP's hook for a sharded module. The hook replaces the replica's gradients by the means over replicas."""
        gradients = [tensor(self.session, key, "gradient").view(-1) for key in keys]
        means = [tensor(self.session, key, "weights").view(-1) for key in keys]
        sizes = [each.numel() for each in gradients]

        def hook(reduced: torch.Tensor) -> None:
            if reduced.numel() != sum(sizes) or any(each.dtype != reduced.dtype for each in gradients):
                raise GradientError(
                    f"FSDP reduced {reduced.numel()} elements of {reduced.dtype}, but {keys[0]!r} and the {len(keys) - 1} parameters that "
                    f"are reduced with it have {sum(sizes)} elements of {gradients[0].dtype}. Each of these parameters needs a gradient in each "
                    f"backward pass, or must be frozen before Replicas; reduce_dtype must be the type of the parameters"
                )
            shards = list(reduced.split(sizes))
            copy(gradients, shards)
            self.session.push(*keys)
            self.session.wait(*keys)
            copy(shards, means)

        return hook

    def leave(self) -> None:
        """Leaves the job. Call it after the last backward pass."""
        self.session.leave()


def _own(part: torch.nn.Module) -> List[torch.nn.Parameter]:
    """Returns the parameters of a sharded module, without the parameters of sharded modules below it."""
    below = {id(each) for child in part.modules() if child is not part and hasattr(child, "set_all_reduce_hook")
             for each in child.parameters()}  # fmt: skip
    return [each for each in part.parameters() if id(each) not in below]
