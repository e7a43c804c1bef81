"""This process's place among the workers, from the environment that its launcher set. The environment is read nowhere
else."""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Mapping, Optional, Sequence, Tuple

from ._phub import SettingsError

# Launcher, its rank, its number of workers. An inner launcher comes before an outer one, such as torchrun under Slurm.
_LAUNCHERS = (
    ("PHUB", "PHUB_RANK", "PHUB_WORLD_SIZE"),
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("Slurm", "SLURM_PROCID", "SLURM_NTASKS"),
    ("DMLC", "DMLC_WORKER_ID", "DMLC_NUM_WORKER"),
)
# The longest name of a job is 64, of which levels above and helpers of phub.torch add to it.
_LONGEST_JOB = 48
# What a launcher says about a process's place on its machine.
_ON_MACHINE = {
    "PHUB": ("PHUB_LOCAL_RANK", "PHUB_LOCAL_WORLD_SIZE"),
    "torchrun": ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "Open MPI": ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    "Slurm": ("SLURM_LOCALID", "SLURM_NODEID", "SLURM_NNODES"),
}
# Where a hub is that somebody started on each machine, if the environment names none.
_BESIDE = "127.0.0.1:7077"


@dataclasses.dataclass(frozen=True)
class Machine:
    """A worker's place on its machine, where each machine has a hub for its own workers."""

    number: int
    """The machine's, from 0."""
    of: int
    """The number of machines."""
    rank: int
    """The worker's among those of the machine, from 0."""
    world_size: int
    """The number of workers of the machine."""
    hub: str
    """`host:port` of the machine's hub."""
    mesh: Optional[str]
    """The mesh of these hubs, such as "1/4@10.0.0.1:7077"; None if they are below other hubs."""
    starts: bool
    """Whether the machine's first worker starts the hub."""
    ranks: Sequence[int]
    """The ranks of the machine's workers, among the workers of all machines."""


@dataclasses.dataclass(frozen=True)
class Worker:
    """A place among the workers of a job."""

    rank: int
    """From 0."""
    world_size: int
    """The number of workers, of all machines."""
    job: str
    """A name that all workers of this run have, and a later run does not."""
    hub: Optional[str]
    """`host:port` of a hub that runs, if the environment names a hub."""
    serve_at: Optional[str]
    """`host:port` where rank 0 starts a hub, if the environment names none."""
    machine: Optional[Machine] = None
    """The place on this machine, if each machine has a hub."""
    store: Optional[Tuple[str, int]] = None
    """Host and port of torch's store, by which workers that start hubs on several machines share a secret; None if they are
    on one machine, or the environment names a secret."""


def worker(environment: Optional[Mapping[str, str]] = None) -> Worker:
    """This process's place, from `PHUB_RANK` and `PHUB_WORLD_SIZE`, torchrun, Open MPI, Slurm or `DMLC_*`. Without a
    launcher it is the only worker.

    The hub is `PHUB_HUB`, else `DMLC_PS_ROOT_URI:DMLC_PS_ROOT_PORT`. If neither is set, the launcher's environment says
    where the first machine is, or `MASTER_ADDR` does. On one machine, rank 0 then starts a hub, on `PHUB_PORT` or a port
    that follows from the run's. On several, the first worker of each machine starts a hub, and the hubs are a mesh. A
    process without a launcher starts a hub for itself.

    `PHUB_LEVELS=flat` means a hub at rank 0 also on several machines. `PHUB_LEVELS=machine` means that a hub runs on each
    machine already, at `PHUB_HUB` or 127.0.0.1:7077: below other hubs, or in the mesh `PHUB_MESH`.

    Raises:
        SettingsError: the launcher's environment is wrong.
    """
    # A variable of ours that is empty is not set.
    given = os.environ if environment is None else environment
    env = {name: text for name, text in given.items() if text or not name.startswith("PHUB_")}
    rank, world_size, launcher = 0, 1, ""
    levels = env.get("PHUB_LEVELS", "auto")
    if levels not in ("auto", "flat", "machine"):
        raise SettingsError(f"environment: PHUB_LEVELS is {levels!r}; expected auto, flat or machine")
    for name, rank_name, size_name in _LAUNCHERS:
        if rank_name in env and size_name in env:
            launcher, rank, world_size = name, _number(env, rank_name), _number(env, size_name)
            break
    if rank >= world_size:
        raise SettingsError(f"{launcher}: rank {rank} of {world_size} workers: expected a rank below that")
    job = env.get("PHUB_JOB") or _job(env, launcher)
    hub = env.get("PHUB_HUB")
    if levels == "machine":
        return Worker(rank, world_size, job, hub or _BESIDE, None, _machine(env, launcher, rank, world_size, hub))
    if hub is None and "DMLC_PS_ROOT_URI" in env:
        hub = f"{env['DMLC_PS_ROOT_URI']}:{_number(env, 'DMLC_PS_ROOT_PORT')}"
    serve_at = None if hub is not None else _first_hub(env, launcher)
    machine = None
    if serve_at is not None and launcher and levels == "auto":
        machine = _machine(env, launcher, rank, world_size, serve_at, starts=True)
    store = None if serve_at is None or launcher != "torchrun" else _store(env)
    return Worker(rank, world_size, job, hub, serve_at, machine, store)


def wait_for_hub() -> float:
    """How many seconds sessions wait for a hub: 0 from whoever places hubs that nobody starts again.

    Raises:
        SettingsError: it is no number of seconds.
    """
    text = os.environ.get("PHUB_HUB_WAIT") or "60"
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds < float("inf"):
        raise SettingsError(f"environment: PHUB_HUB_WAIT is {text!r}; expected a number of seconds from 0 on")
    return seconds


def _store(env: Mapping[str, str]) -> Optional[Tuple[str, int]]:
    """Torch's store, if workers of several machines need it to share a secret."""
    has_secret = "PHUB_TOKEN" in env or "PHUB_TOKEN_FILE" in env
    if has_secret or env.get("LOCAL_WORLD_SIZE") == env["WORLD_SIZE"] or env.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    return env["MASTER_ADDR"], _number(env, "MASTER_PORT")


def _first_hub(env: Mapping[str, str], launcher: str) -> Optional[str]:
    """`host:port` of the hub on the first machine, if the environment says where that is."""
    if not launcher:
        return "127.0.0.1:0"
    host = env.get("MASTER_ADDR")
    if host is None and launcher == "Slurm":
        host = _first_of(env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or "")
    if not host or launcher not in ("torchrun", "Open MPI", "Slurm"):
        return None
    if "PHUB_PORT" in env:
        port = _number(env, "PHUB_PORT")
    elif "MASTER_PORT" in env:
        port = _port_after(_number(env, "MASTER_PORT"))
    elif launcher == "Slurm":
        # Jobs that run at the same time have neighbouring numbers. A step has as many ports as it has machines.
        port = 16384 + 64 * (_number(env, "SLURM_JOB_ID") + _number(env, "SLURM_STEP_ID")) % 16384
    else:
        return None
    return f"{host}:{port}"


def _machine(
    env: Mapping[str, str], launcher: str, rank: int, world_size: int, hub: Optional[str], starts: bool = False
) -> Optional[Machine]:
    """The place on this machine. With `starts`, `hub` is that of the first machine; None if there is one machine only, or
    the launcher does not tell machines apart."""
    names = _ON_MACHINE.get(launcher, ())
    if starts and not all(name in env for name in names):
        return None
    if launcher == "torchrun":
        local, size = _number(env, "LOCAL_RANK"), _number(env, "LOCAL_WORLD_SIZE")
    elif launcher == "Open MPI":
        local, size = _number(env, "OMPI_COMM_WORLD_LOCAL_RANK"), _number(env, "OMPI_COMM_WORLD_LOCAL_SIZE")
    elif launcher == "Slurm":
        local, size = _number(env, "SLURM_LOCALID"), _tasks_here(env)
    elif launcher == "PHUB" and "PHUB_LOCAL_RANK" in env:
        local, size = _number(env, "PHUB_LOCAL_RANK"), _number(env, "PHUB_LOCAL_WORLD_SIZE")
    else:
        local, size = rank, world_size
    if local >= size:
        raise SettingsError(f"{launcher}: local rank {local} of {size} workers on this machine: expected a rank below that")
    # Machines with as many workers each, whose ranks follow each other, unless the launcher says otherwise.
    number, of = rank // size, -(-world_size // size)
    if launcher == "torchrun" and "GROUP_WORLD_SIZE" in env:
        number, of = _number(env, "GROUP_RANK"), _number(env, "GROUP_WORLD_SIZE")
    elif launcher == "PHUB" and re.match(r"\d+/\d+@", env.get("PHUB_MESH", "")):
        number, of = (int(each) for each in env["PHUB_MESH"].partition("@")[0].split("/"))
    elif launcher == "Slurm" and "SLURM_NNODES" in env:
        number, of = _number(env, "SLURM_NODEID"), _number(env, "SLURM_NNODES")
    elif starts and (rank % size != local or world_size % size):
        return None
    ranks: Sequence[int] = range(rank - local, rank - local + size)
    if launcher == "Slurm" and "SLURM_GTIDS" in env:
        # Slurm may deal ranks to machines in turn.
        ranks = tuple(int(each) for each in re.findall(r"\d+", env["SLURM_GTIDS"]))
        if len(ranks) != size or ranks[local] != rank:
            raise SettingsError(
                f"environment: SLURM_GTIDS is {env['SLURM_GTIDS']!r}; expected the {size} ranks of this machine, with {rank} at "
                f"place {local}"
            )
    if not starts:
        return Machine(number, of, local, size, hub or _BESIDE, env.get("PHUB_MESH"), starts, ranks)
    if of == 1:
        return None
    host, _, port = (hub or "").rpartition(":")
    # Two machines of a test may be one host: each has a port of its own.
    mine = f"127.0.0.1:{int(port) + number}"
    return Machine(number, of, local, size, mine, f"{number}/{of}@{host}:{port}", starts, ranks)


def _tasks_here(env: Mapping[str, str]) -> int:
    """The number of Slurm's tasks on this machine, from a list such as "4(x2),3"."""
    text = env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE") or env.get("SLURM_NTASKS_PER_NODE") or ""
    counts = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    node = _number(env, "SLURM_NODEID") if "SLURM_NODEID" in env else 0
    if not counts:
        raise SettingsError(f"environment: SLURM_TASKS_PER_NODE is {text!r}; expected numbers such as '4(x2),3'")
    return counts[min(node, len(counts) - 1)]


def _first_of(nodes: str) -> str:
    """The first of Slurm's nodes: "gpu[07-09,12],cpu1" begins with "gpu07"."""
    found = re.match(r"([^,\[]*)(?:\[(\w+)[^\]]*\])?([^,\[]*)", nodes)
    return "".join(part or "" for part in found.groups()) if found else ""


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
    return job_name("-".join(part or "train" for part in parts))


def job_name(name: str) -> str:
    """A launcher's name as that of a job."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in name)[:_LONGEST_JOB]


def _number(env: Mapping[str, str], name: str) -> int:
    text = env.get(name, "")
    if name == "PHUB_PORT" and "://" in text:
        raise SettingsError(
            f"environment: PHUB_PORT is {text!r}, which Kubernetes sets in pods beside a Service with the name phub; expected a "
            "number: give the Service another name, or the pod enableServiceLinks: false"
        )
    if not text.isascii() or not text.isdigit():
        raise SettingsError(f"environment: {name} is {text!r}; expected a number")
    return int(text)
