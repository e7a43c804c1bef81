"""This process's place among the workers, from the environment that its launcher set. The environment is read nowhere
else."""

from __future__ import annotations

import dataclasses
import os
from typing import Mapping, Optional

from ._phub import SettingsError

# Launcher, its rank, its number of workers. An inner launcher comes before an outer one, such as torchrun under Slurm.
_LAUNCHERS = (
    ("PHUB", "PHUB_RANK", "PHUB_WORLD_SIZE"),
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("Slurm", "SLURM_PROCID", "SLURM_NTASKS"),
    ("DMLC", "DMLC_WORKER_ID", "DMLC_NUM_WORKER"),
)
# A launcher's names for a process's place on its machine.
_ON_MACHINE = {
    "torchrun": ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "Open MPI": ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    "Slurm": ("SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
}
# The hub of a machine, if the environment names none.
_BESIDE = "127.0.0.1:7077"


@dataclasses.dataclass(frozen=True)
class Worker:
    """A place among the workers of a job."""

    rank: int
    """From 0."""
    world_size: int
    """The number of workers."""
    job: str
    """A name that all workers of this run have, and a later run does not."""
    hub: Optional[str]
    """`host:port` of a hub that runs, if the environment names a hub."""
    serve_at: Optional[str]
    """`host:port` where rank 0 starts a hub, if the environment names none."""


def worker(environment: Optional[Mapping[str, str]] = None) -> Worker:
    """This process's place, from `PHUB_RANK` and `PHUB_WORLD_SIZE`, torchrun, Open MPI, Slurm or `DMLC_*`. Without a
    launcher it is the only worker.

    The hub is `PHUB_HUB`, else `DMLC_PS_ROOT_URI:DMLC_PS_ROOT_PORT`. If neither is set, with torchrun rank 0 starts a
    hub at `MASTER_ADDR`, on `PHUB_PORT` or a port that follows from `MASTER_PORT`. A process without a launcher starts
    a hub for itself.

    With `PHUB_LEVELS=machine` each machine has a hub that is below others or in a mesh (`phub-server serve --mesh`). Then
    the place is that among the workers of this machine, and the hub is `PHUB_HUB` or 127.0.0.1:7077.

    Raises:
        SettingsError: the launcher's environment is wrong.
    """
    env = os.environ if environment is None else environment
    rank, world_size, launcher = 0, 1, ""
    levels = env.get("PHUB_LEVELS", "flat")
    if levels not in ("flat", "machine"):
        raise SettingsError(f"environment: PHUB_LEVELS is {levels!r}; expected flat or machine")
    for name, rank_name, size_name in _LAUNCHERS:
        if rank_name in env and size_name in env:
            launcher, names = name, (rank_name, size_name)
            if levels == "machine":
                names = _ON_MACHINE.get(name, names)
            rank, world_size = (_number(env, each) for each in names)
            break
    if rank >= world_size:
        raise SettingsError(f"{launcher}: rank {rank} of {world_size} workers: expected a rank below that")
    hub = env.get("PHUB_HUB", _BESIDE if levels == "machine" else None)
    if hub is None and "DMLC_PS_ROOT_URI" in env:
        hub = f"{env['DMLC_PS_ROOT_URI']}:{_number(env, 'DMLC_PS_ROOT_PORT')}"
    serve_at = "127.0.0.1:0" if hub is None and not launcher else None
    if hub is None and launcher == "torchrun" and "MASTER_ADDR" in env:
        port = _number(env, "PHUB_PORT") if "PHUB_PORT" in env else _port_after(_number(env, "MASTER_PORT"))
        serve_at = f"{env['MASTER_ADDR']}:{port}"
    return Worker(rank, world_size, env.get("PHUB_JOB") or _job(env, launcher), hub, serve_at)


def _port_after(master: int) -> int:
    """The next port, or a port of 16384 to 32767 if Linux may give the next one to a connection at any moment. Torchrun
    chooses such ports."""
    port = master + 1
    return port if port < 32768 else 16384 + port % 16384


def _job(env: Mapping[str, str], launcher: str) -> str:
    if launcher == "torchrun":
        # A restart brings all workers back with new ranks. It is another job, unless PHUB_JOB names the same job: then
        # that continues from its checkpoint.
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
