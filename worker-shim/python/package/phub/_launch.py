"""Who this process is among the workers, by what its launcher put into the environment. The environment is
read nowhere else."""

from __future__ import annotations

import dataclasses
import os
from typing import Mapping, Optional

from ._phub import SettingsError

# Launcher, its rank, its number of workers. A launcher inside another one is found first: torchrun under Slurm.
_LAUNCHERS = (
    ("PHUB", "PHUB_RANK", "PHUB_WORLD_SIZE"),
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("Slurm", "SLURM_PROCID", "SLURM_NTASKS"),
    ("DMLC", "DMLC_WORKER_ID", "DMLC_NUM_WORKER"),
)


@dataclasses.dataclass(frozen=True)
class Worker:
    """A place among the workers of a job."""

    rank: int
    """From 0."""
    world_size: int
    """How many workers there are."""
    job: str
    """A name that all of them have, and a later run has not."""
    hub: Optional[str]
    """`host:port` of a hub that runs, when the environment names one."""
    serve_at: Optional[str]
    """`host:port` where rank 0 is to start one, when it names none."""


def worker(environment: Optional[Mapping[str, str]] = None) -> Worker:
    """Who this process is, by `PHUB_RANK` and `PHUB_WORLD_SIZE`, torchrun, Open MPI, Slurm or `DMLC_*`; alone when
    there is no launcher.

    The hub is `PHUB_HUB`, else `DMLC_PS_ROOT_URI:DMLC_PS_ROOT_PORT`. With torchrun and neither, rank 0 starts one at
    `MASTER_ADDR`, on `PHUB_PORT` or a port that follows from `MASTER_PORT`. A process without a launcher starts one for
    itself.

    Raises:
        SettingsError: what the launcher says makes no sense.
    """
    env = os.environ if environment is None else environment
    rank, world_size, launcher = 0, 1, ""
    for name, rank_name, size_name in _LAUNCHERS:
        if rank_name in env and size_name in env:
            rank, world_size, launcher = _number(env, rank_name), _number(env, size_name), name
            break
    if rank >= world_size:
        raise SettingsError(f"{launcher}: rank {rank} of {world_size} workers: expected a rank below that")
    hub = env.get("PHUB_HUB")
    if hub is None and "DMLC_PS_ROOT_URI" in env:
        hub = f"{env['DMLC_PS_ROOT_URI']}:{_number(env, 'DMLC_PS_ROOT_PORT')}"
    serve_at = "127.0.0.1:0" if hub is None and not launcher else None
    if hub is None and launcher == "torchrun" and "MASTER_ADDR" in env:
        port = _number(env, "PHUB_PORT") if "PHUB_PORT" in env else _port_after(_number(env, "MASTER_PORT"))
        serve_at = f"{env['MASTER_ADDR']}:{port}"
    return Worker(rank, world_size, env.get("PHUB_JOB") or _job(env, launcher), hub, serve_at)


def _port_after(master: int) -> int:
    """The next port. Where Linux deals it out to connections, as those after torchrun's own choices, one of 16384 to
    32767: a dealt one may be taken at any moment."""
    port = master + 1
    return port if port < 32768 else 16384 + port % 16384


def _job(env: Mapping[str, str], launcher: str) -> str:
    if launcher == "torchrun":
        # A restart brings all workers back with new ranks: it is another job, or the same one from its checkpoint
        # when PHUB_JOB says so.
        parts = [env.get("TORCHELASTIC_RUN_ID", "run"), env.get("TORCHELASTIC_RESTART_COUNT", "0")]
    elif launcher == "Slurm":
        parts = [env.get("SLURM_JOB_ID", "job"), env.get("SLURM_STEP_ID", "0")]
    else:
        parts = [env.get("OMPI_MCA_ess_base_jobid", env.get("PMIX_NAMESPACE", "train"))]
    name = "-".join(part or "train" for part in parts)
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in name)[:64]


def _number(env: Mapping[str, str], name: str) -> int:
    text = env.get(name, "")
    if not text.isascii() or not text.isdigit():
        raise SettingsError(f"environment: {name} is {text!r}; expected a number")
    return int(text)
