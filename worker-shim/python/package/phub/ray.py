"""Ray Train with hubs that Ray places: `TorchTrainer(train, torch_config=phub.ray.HubConfig(), ...)`.

Each attempt of a run has its own hubs, which are Ray actors. The hubs start before the attempt's workers join, and end after
the workers. This module runs in Ray's controller, except for the functions that are sent to workers and hubs.
"""

from __future__ import annotations

import collections
import dataclasses
import importlib
import logging
import os
import secrets
from typing import Any, Dict, List, Optional, Tuple

import ray
import ray.train
from ray.train.torch import TorchConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ._launch import job_name
from ._phub import HubStartError
from ._placed import PlacedHub

__all__ = ["HubConfig"]

_log = logging.getLogger(__name__)
# The timeouts for the start of a hub, and for its last checkpoints and its end, in seconds.
_START_S = 300.0
_STOP_S = 120.0
_TorchBackend: Any = TorchConfig().backend_cls


@dataclasses.dataclass
class HubConfig(TorchConfig):  # type: ignore[misc]
    """A `ray.train.torch.TorchConfig` with hubs for `phub.torch.DistributedOptimizer` and `phub.Session`.

    Each node with workers has a hub, and the hubs are a mesh. With `backend="phub"` the hubs also do DDP's all-reduces.
    """

    resource: Optional[str] = None
    """A resource of Ray, such as "hub". If it is given, the hubs are on the nodes that have this resource, and the job is spread
    over all these hubs."""
    checkpoints: Optional[str] = None
    """A directory that all nodes share. Each run has a directory in it, by the run's name. A run whose directory exists continues
    from its checkpoint."""
    settings: Dict[str, Any] = dataclasses.field(default_factory=dict)
    """More settings of the hubs, as for `phub.serve`, such as `{"checkpoint_every": 100}`."""
    num_cpus: float = 0.0
    """The number of a node's CPUs that Ray reserves for the hub. The hub uses half of the cores, or `cores` in `settings`."""
    token: str = dataclasses.field(default_factory=lambda: os.environ.get("PHUB_TOKEN") or secrets.token_hex(32), repr=False)
    """The secret of hubs and workers. Default: the driver's `PHUB_TOKEN`, or a new secret. The secret is not in a runtime
    environment, because Ray shows runtime environments."""

    @property
    def backend_cls(self) -> Any:
        return _Backend


class _Backend(_TorchBackend):  # type: ignore[misc]
    """Ray's backend for torch. It starts the hubs before the training, and stops them after it."""

    _hubs: "List[_Placed]" = []

    def on_start(self, worker_group: Any, backend_config: HubConfig) -> None:
        try:
            places = worker_group.execute(_place)
            self._hubs = _start(places, backend_config)
            environments = _environments(places, self._hubs, backend_config)
            ray.get([worker_group.execute_single_async(rank, _join, each) for rank, each in enumerate(environments)])
            if backend_config.backend == "phub":
                worker_group.execute(_import_backend)
            super().on_start(worker_group, backend_config)
        except BaseException:
            self._stop("the workers did not start")
            raise

    def on_shutdown(self, worker_group: Any, backend_config: HubConfig) -> None:
        try:
            super().on_shutdown(worker_group, backend_config)
        finally:
            self._stop("Ray ends the workers")

    def _stop(self, why: str) -> None:
        """Stops the hubs, which write a checkpoint of each job. Logs the hubs that were lost."""
        hubs, self._hubs = self._hubs, []
        ends = [hub.actor.stop.remote(why) for hub in hubs]
        ray.wait(ends, num_returns=len(ends), timeout=_STOP_S) if ends else None
        for hub, end in zip(hubs, ends):
            try:
                ray.get(end, timeout=0.0)
            except Exception as error:
                _log.error(f"{hub} is lost, or did not end in {_STOP_S:.0f} s: {str(error).partition(chr(10))[0]}")
            ray.kill(hub.actor)


@dataclasses.dataclass
class _Placed:
    """A hub, and its address."""

    actor: Any
    number: int
    of: int
    node: str
    address: str = ""

    def __str__(self) -> str:
        return f"hub {self.number} of {self.of}, {self.address or 'not started'}, on Ray's node {self.node}"


def _start(places: List[Tuple[str, str]], config: HubConfig) -> List[_Placed]:
    """Starts the hubs: one on each node with workers, in the order of ranks, or one on each node with the resource."""
    nodes = list(dict.fromkeys(node for node, _ in places))
    if config.resource is not None:
        nodes = [each["NodeID"] for each in ray.nodes() if each["Alive"] and config.resource in each["Resources"]]
        if not nodes:
            raise HubStartError(f"no node of Ray's has the resource {config.resource!r}, which the hubs need")
    of = len(nodes)
    checkpoints = None if config.checkpoints is None else os.path.join(config.checkpoints, job_name(places[0][1]))
    hubs = []
    for number, node in enumerate(nodes):
        on = NodeAffinitySchedulingStrategy(node, soft=False)
        actor = ray.remote(PlacedHub).options(num_cpus=config.num_cpus, scheduling_strategy=on)
        hubs.append(_Placed(actor.remote(config.token, number, of, checkpoints, config.settings), number, of, node))
    for hub in hubs:
        try:
            hub.address = ray.get(hub.actor.address.remote(), timeout=_START_S)
        except Exception as error:
            for each in hubs:
                ray.kill(each.actor)
            raise HubStartError(f"{hub}: {error}") from None
        _log.info(f"{hub}")
    return hubs


def _environments(places: List[Tuple[str, str]], hubs: List[_Placed], config: HubConfig) -> List[Dict[str, str]]:
    """Returns the environment of each worker. The environment has local ranks, too, because Ray counts local ranks by address,
    and two nodes may have the same address."""
    sizes = collections.Counter(node for node, _ in places)
    seen: "collections.Counter[str]" = collections.Counter()
    environments = []
    for rank, (node, run) in enumerate(places):
        env = {"PHUB_TOKEN": config.token, "PHUB_JOB": job_name(run), "PHUB_LEVELS": "flat"}
        env.update(PHUB_RANK=str(rank), PHUB_WORLD_SIZE=str(len(places)))
        env.update(PHUB_LOCAL_RANK=str(seen[node]), PHUB_LOCAL_WORLD_SIZE=str(sizes[node]))
        env["PHUB_HUB"] = ",".join(hub.address for hub in hubs)
        # Workers do not wait for a lost hub: its loss ends the attempt, and the next attempt has new hubs.
        env["PHUB_HUB_WAIT"] = "0"
        if config.resource is None and len(hubs) > 1:
            [mine] = [hub for hub in hubs if hub.node == node]
            env.update(PHUB_LEVELS="machine", PHUB_MESH=f"{mine.number}/{mine.of}@{hubs[0].address}", PHUB_HUB=mine.address)
        seen[node] += 1
        environments.append(env)
    return environments


# ---- functions that workers run


def _place() -> Tuple[str, str]:
    """Returns the node that this worker is on, and the run's name."""
    return ray.get_runtime_context().get_node_id(), ray.train.get_context().get_experiment_name()


def _join(environment: Dict[str, str]) -> None:
    os.environ.update(environment)


def _import_backend() -> None:
    importlib.import_module("phub.c10d")
