"""This process's position among the workers, from the environment that its launcher set. Only this file reads the launcher's
variables."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from typing import Any, Mapping, NamedTuple, Optional, Sequence, Tuple

from ._phub import SettingsError


class _Launcher(NamedTuple):
    """The names of a launcher's variables."""

    name: str
    rank: str
    size: str
    local_rank: str = ""
    local_size: str = ""


# In this list, an inner launcher, such as torchrun under Slurm, comes before the outer launcher.
_LAUNCHERS = (
    _Launcher("PHUB", "PHUB_RANK", "PHUB_WORLD_SIZE", "PHUB_LOCAL_RANK", "PHUB_LOCAL_WORLD_SIZE"),
    _Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    _Launcher("Horovod", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    _Launcher(
        *("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        *("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ),
    _Launcher(
        *("MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
        *("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ),
    # MPICH and Intel MPI.
    _Launcher("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
# The rank variables of other launchers. This file knows no variable of these launchers for the number of workers.
_RANKS_ALONE = ("PMIX_RANK", "PALS_RANKID", "JSM_NAMESPACE_RANK", "FLUX_TASK_RANK", "ALPS_APP_PE")
_BY_HAND = "set PHUB_RANK and PHUB_WORLD_SIZE, and PHUB_HUB to the address of a running hub"
# Slurm numbers the steps of srun from 0. From this number on, steps are batch scripts, interactive shells and the like.
_SLURM_STEPS = 0xFFFF_FF00
# The most characters of a given name. Upper hubs in a tree of hubs, helper jobs of phub.torch and random words make a job's name
# longer, and a job's name has at most 64 characters.
_LONGEST_JOB, _LONGEST_RUN = 48, 32
# The address of the hub on each machine with PHUB_LEVELS=machine, if the environment names no hub.
_BESIDE = "127.0.0.1:7077"


@dataclasses.dataclass(frozen=True)
class Machine:
    """A worker's position on its machine, if each machine has a hub for its own workers."""

    number: int
    """The number of the machine, from 0."""
    of: int
    """The number of machines."""
    rank: int
    """The worker's number among the workers of the machine, from 0."""
    world_size: int
    """The number of workers of the machine."""
    hub: str
    """`host:port` of the machine's hub."""
    mesh: Optional[str]
    """The mesh of the machines' hubs, such as "1/4@10.0.0.1:7077"; None if the hubs send their sums to other hubs."""
    starts: bool
    """Whether the machine's first worker starts the hub."""
    ranks: Sequence[int]
    """The ranks of the machine's workers, among the workers of all machines."""


@dataclasses.dataclass(frozen=True)
class Worker:
    """A position among the workers of a job."""

    rank: int
    """From 0."""
    world_size: int
    """The number of workers, of all machines."""
    job: str
    """`PHUB_JOB`, or the launcher's name of this run. To the launcher's name, sessions add a new random word."""
    hub: Optional[str]
    """`host:port` of a hub that runs, if the environment names a hub."""
    serve_at: Optional[str]
    """`host:port` where rank 0 starts a hub, if the environment names no hub. With port 0 rank 0 takes a free port, and sends it
    to the other workers."""
    machine: Optional[Machine] = None
    """The position on this machine, if each machine has a hub."""
    store: Optional[Tuple[str, int]] = None
    """Host and port of torchrun's store, if the environment says that there is one."""
    launcher: str = ""
    """The launcher's name, or ""."""
    is_named: bool = False
    """Whether `PHUB_JOB` names the job."""
    is_on_one_machine: bool = False
    """Whether all workers are known to be on this machine."""
    is_port_set: bool = False
    """Whether `PHUB_PORT` names the hub's port."""
    shares_secret: bool = False
    """Whether the workers start hubs on several machines, and share a new secret by torch's store."""


def worker(environment: Optional[Mapping[str, str]] = None) -> Worker:
    """Returns this process's position among the workers. The first of these sources that exists counts: `PHUB_RANK` and
    `PHUB_WORLD_SIZE`, torchrun, Horovod, Open MPI, MVAPICH, MPICH, Intel MPI, `DMLC_*`, Slurm. The last source is the process
    group of `torch.distributed`. A process without a launcher is the only worker.

    The hub is `PHUB_HUB`, else `DMLC_PS_ROOT_URI:DMLC_PS_ROOT_PORT`. If neither is set, the workers start hubs. On one
    machine, rank 0 starts a hub, on `PHUB_PORT` or on a port that it sends to the other ranks. On several machines, the first
    worker of each machine starts a hub, and the hubs are a mesh. The launcher's environment, or `MASTER_ADDR`, then has the
    address of the first machine. A process without a launcher starts a hub for itself.

    With `PHUB_LEVELS=flat` there is a hub only at rank 0, also on several machines. `PHUB_LEVELS=machine` means that a hub
    already runs on each machine, at `PHUB_HUB` or 127.0.0.1:7077. These hubs send sums to other hubs, or are in the mesh
    `PHUB_MESH`.

    Args:
        environment: environment variables to use in place of this process's. The process group is then ignored.

    Raises:
        SettingsError: the launcher's environment is invalid, or lacks the rank or the number of workers.
    """
    return _place(os.environ if environment is None else environment, False, environment is None)


def place_of(is_known: bool) -> Worker:
    """Returns this process's position. If the script itself gives rank, world size and hub, a launcher's environment that is invalid
    is no error."""
    return _place(os.environ, is_known, True)


def _place(env: Mapping[str, str], is_known: bool, is_own: bool) -> Worker:
    # An empty variable of this package counts as not set.
    env = {name: text for name, text in env.items() if text or not name.startswith("PHUB_")}
    levels = env.get("PHUB_LEVELS", "auto")
    if levels not in ("auto", "flat", "machine"):
        raise SettingsError(f"environment: PHUB_LEVELS is {levels!r}; expected auto, flat or machine")
    try:
        launcher, rank, world_size = _launched(env) or (_by_torch() if is_own else None) or _alone(env)
    except SettingsError:
        if not is_known:
            raise
        launcher, rank, world_size = "", 0, 1
    if rank >= world_size:
        raise SettingsError(f"{launcher}: rank {rank} of {world_size} workers: expected a rank below that number")
    named = env.get("PHUB_JOB")
    job, hub = named or _job(env, launcher), env.get("PHUB_HUB")
    if levels == "machine":
        machine = _machine(env, launcher, rank, world_size, hub)
        return Worker(rank, world_size, job, hub or _BESIDE, None, machine, launcher=launcher, is_named=bool(named))
    if hub is None and "DMLC_PS_ROOT_URI" in env:
        hub = _address(env["DMLC_PS_ROOT_URI"], _number(env, "DMLC_PS_ROOT_PORT"))
    store = _store(env) if launcher == "torchrun" else None
    # A launcher need not say on which machine the only worker is.
    size_here = 1 if world_size == 1 else _size_here(env, launcher)
    serve_at = None if hub is not None else _first_hub(env, launcher, world_size, size_here == world_size, store)
    machine = None
    if serve_at is not None and launcher and levels == "auto":
        machine = _machine(env, launcher, rank, world_size, serve_at, starts=True)
    has_secret = "PHUB_TOKEN" in env or "PHUB_TOKEN_FILE" in env
    return Worker(
        *(rank, world_size, job, hub, serve_at, machine, store, launcher, bool(named), size_here == world_size),
        is_port_set="PHUB_PORT" in env,
        shares_secret=serve_at is not None and store is not None and size_here != world_size and not has_secret,
    )


def _launched(env: Mapping[str, str]) -> Optional[Tuple[str, int, int]]:
    """Returns the launcher's name, the rank and the number of workers.

    Raises:
        SettingsError: there is a launcher, but its environment lacks the rank or the number of workers.
    """
    role = env.get("DMLC_ROLE", "worker")
    if role != "worker" and "PHUB_RANK" not in env:
        raise SettingsError(
            f"environment: DMLC_ROLE is {role!r}; the hub takes the place of servers and scheduler: start a hub (phub-server serve) "
            f"and only the workers, with PHUB_HUB"
        )
    slurm = _slurm_task(env)
    for name, rank, size, *_ in _LAUNCHERS:
        if name == "PHUB" and (rank in env) != (size in env):
            # A launcher's own variables must not replace what the user has set.
            there, missing, what = (rank, size, "the number of workers") if rank in env else (size, rank, "this worker's rank")
            raise SettingsError(
                f"environment: {there} is {env[there]!r} and {missing} is not set, so {what} is unknown: set both, or none of the two"
            )
        if rank in env and size in env:
            place = _number(env, rank), _number(env, size)
            # Slurm sets PMI's variables, too. Slurm's own variables have more information, so they come first.
            return ("Slurm", *slurm) if name == "MPICH" and place == slurm else (name, *place)
    if "DMLC_NUM_WORKER" in env:
        return ("DMLC", *_dmlc(env))
    if slurm is not None:
        return ("Slurm", *slurm)
    for name, rank, size, *_ in _LAUNCHERS:
        if rank in env:
            raise SettingsError(f"environment: {rank} is set and {size} is not, so the number of workers is unknown: set both")
    for rank in _RANKS_ALONE:
        if rank in env:
            raise SettingsError(
                f"environment: {rank} is set, by a launcher that does not give the number of workers: start the script by "
                f"torchrun, mpiexec or srun, or {_BY_HAND}"
            )
    _refuse_outside_of_step(env)
    return None


def _dmlc(env: Mapping[str, str]) -> Tuple[int, int]:
    """Returns rank and number of workers from the variables of ps-lite. BytePS's launcher starts several workers on a machine.
    Its `DMLC_*` variables then count machines, and its `BYTEPS_*` variables count the workers of a machine."""
    workers = _number(env, "DMLC_NUM_WORKER")
    if "DMLC_WORKER_ID" not in env and workers > 1:
        raise SettingsError(
            f"environment: DMLC_NUM_WORKER is {workers} and DMLC_WORKER_ID is not set: launchers of ps-lite and MXNet do not tell "
            f"workers apart before they connect. Start the script by torchrun, mpiexec or srun, or set DMLC_WORKER_ID"
        )
    number = _number(env, "DMLC_WORKER_ID") if workers > 1 or "DMLC_WORKER_ID" in env else 0
    if "BYTEPS_LOCAL_RANK" not in env:
        return number, workers
    local = _number(env, "BYTEPS_LOCAL_SIZE")
    return number * local + _number(env, "BYTEPS_LOCAL_RANK"), workers * local


def _slurm_task(env: Mapping[str, str]) -> Optional[Tuple[int, int]]:
    """Returns rank and number of tasks, if this is a task of srun; None in a batch script or a shell."""
    if "SLURM_PROCID" not in env:
        return None
    tasks = env.get("SLURM_STEP_NUM_TASKS") or env.get("SLURM_NTASKS")
    step = env.get("SLURM_STEP_ID") or env.get("SLURM_STEPID") or ""
    is_step = step.isdigit() and int(step) < _SLURM_STEPS
    rank = _number(env, "SLURM_PROCID")
    if tasks is None:
        if rank == 0:
            return None
        raise SettingsError(
            f"environment: SLURM_PROCID is {rank} and neither SLURM_STEP_NUM_TASKS nor SLURM_NTASKS is set, so the number of workers is "
            f"unknown: pass Slurm's variables on to this process, or {_BY_HAND}"
        )
    of = _number({"SLURM_NTASKS": tasks}, "SLURM_NTASKS")
    # The shell of an interactive allocation is a step with one task, although the job has several tasks. So the shell is not a
    # rank.
    is_shell = of == 1 and env.get("SLURM_NTASKS", "1") != "1"
    return (rank, of) if (is_step and not is_shell) or rank > 0 else None


def _refuse_outside_of_step(env: Mapping[str, str]) -> None:
    """Refuses to start in a batch script or a shell of a Slurm job that has several tasks: this process would be the only
    worker."""
    tasks = env.get("SLURM_NTASKS") or env.get("SLURM_NPROCS") or env.get("SLURM_JOB_NUM_NODES") or env.get("SLURM_NNODES") or "1"
    if "SLURM_JOB_ID" in env and tasks != "1":
        raise SettingsError(
            f"environment: this is the batch script or a shell of Slurm's job {env['SLURM_JOB_ID']}, and not one of its {tasks} tasks: "
            f"start them by `srun python ...`; for one worker alone, set PHUB_RANK=0 and PHUB_WORLD_SIZE=1"
        )


def _alone(env: Mapping[str, str]) -> Tuple[str, int, int]:
    """Returns the position of the only worker.

    Raises:
        SettingsError: the environment has no rank, although it has a number of workers above 1, or a rank on this machine above
            0. Each process would then train alone.
    """
    for _, rank, size, local_rank, local_size in _LAUNCHERS:
        for name, alone in ((size, ("", "0", "1")), (local_size, ("", "0", "1")), (local_rank, ("", "0"))):
            if env.get(name, "0") not in alone:
                both = "both" if name == size else f"{rank} and {size}"
                raise SettingsError(
                    f"environment: {name} is {env[name]!r} and {rank} is not set, so this worker's rank is unknown: set {both}; for "
                    f"one worker alone, remove {name}"
                )
    return "", 0, 1


def _by_torch() -> Optional[Tuple[str, int, int]]:
    """Returns rank and number of workers of the script's process group, if the script has made one without a launcher."""
    group = group_of_torch()
    return None if group is None else ("torch", group.get_rank(), group.get_world_size())


def group_of_torch() -> Any:
    """Returns the module `torch.distributed`, if the script has a process group."""
    distributed = sys.modules.get("torch.distributed")
    is_initialized = getattr(distributed, "is_initialized", None)
    return distributed if is_initialized is not None and is_initialized() else None


def wait_for_hub() -> float:
    """Returns the number of seconds that sessions wait for a hub, from `PHUB_HUB_WAIT`. A launcher that never restarts hubs sets
    it to 0.

    Raises:
        SettingsError: the variable is not a number of seconds.
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
    """Returns host and port of torchrun's store, if torchrun's agent has one."""
    if env.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    if not env.get("MASTER_ADDR"):
        raise SettingsError("environment: TORCHELASTIC_USE_AGENT_STORE is 'True' and MASTER_ADDR is not set, so torchrun's store is unknown")
    return env["MASTER_ADDR"], _number(env, "MASTER_PORT")


def names_of(launcher: str) -> Optional[_Launcher]:
    """Returns the environment variables that a launcher sets for each worker, or `None` if it sets none."""
    return next((each for each in _LAUNCHERS if each.name == launcher), None)


def _size_here(env: Mapping[str, str], launcher: str) -> Optional[int]:
    """Returns the number of workers on this machine, if the launcher gives it."""
    names = names_of(launcher)
    if not launcher:
        return 1
    return _number(env, names.local_size) if names is not None and names.local_size in env else None


def _first_hub(
    env: Mapping[str, str], launcher: str, world_size: int, is_here: bool, store: Optional[Tuple[str, int]]
) -> Optional[str]:
    """Returns `host:port` of the hub on the first machine, if the environment has it. Port 0 means that the hub takes a free
    port, and that the workers get the port later."""
    port = _number(env, "PHUB_PORT") if "PHUB_PORT" in env else 0
    if world_size == 1:
        return f"127.0.0.1:{port if launcher else 0}"
    if launcher == "torch":
        return f"127.0.0.1:{port}"  # the workers later agree on the host of the first worker
    host = env.get("MASTER_ADDR")
    if host is None and launcher == "Slurm":
        host = _first_of(env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or "")
    if launcher in ("PHUB", "DMLC") or not (host or is_here):
        return None
    if is_here:
        return f"127.0.0.1:{port}"
    assert host is not None
    if port or store is not None:
        return _address(host, port)
    if launcher == "Slurm":
        # Jobs that run at the same time have neighbouring numbers, so their ports are 64 apart. A step uses a port for each
        # of its machines.
        return _address(host, 16384 + 64 * (_number(env, "SLURM_JOB_ID") + _number(env, "SLURM_STEP_ID")) % 16384)
    return _address(host, _port_of(_number(env, "MASTER_PORT"))) if "MASTER_PORT" in env else None


def _address(host: str, port: int) -> str:
    """Returns `host:port`, with brackets around an IPv6 address."""
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def _machine(
    env: Mapping[str, str], launcher: str, rank: int, world_size: int, hub: Optional[str], starts: bool = False
) -> Optional[Machine]:
    """Returns the worker's position on this machine. With `starts` the workers start the hubs, and `hub` is the hub of the first
    machine. The result is then None if there is only one machine, or if the launcher does not distinguish machines."""
    names = names_of(launcher)
    local_names = ("SLURM_LOCALID", "SLURM_NODEID", "SLURM_NNODES") if launcher == "Slurm" else names and names[3:]
    if starts and not (local_names and all(name in env for name in local_names)):
        return None
    if launcher == "Slurm":
        local, size = _number(env, "SLURM_LOCALID"), _tasks_here(env)
    elif names is not None and (launcher != "PHUB" or names.local_rank in env):
        local, size = _number(env, names.local_rank), _number(env, names.local_size)
    else:
        local, size = rank, world_size
    if local >= size:
        raise SettingsError(f"{launcher}: local rank {local} of {size} workers on this machine: expected a rank below that number")
    # Unless the launcher says otherwise, each machine has the same number of workers, in the order of their ranks.
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
        # Slurm may give neighbouring ranks to different machines.
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
    # In a test, two "machines" may be the same host, so each has its own port.
    mine = f"127.0.0.1:{int(port) + number if int(port) else 0}"
    return Machine(number, of, local, size, mine, f"{number}/{of}@{host}:{port}", starts, ranks)


def _tasks_here(env: Mapping[str, str]) -> int:
    """Returns the number of Slurm's tasks on this machine, from a list such as "4(x2),3"."""
    text = env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE") or env.get("SLURM_NTASKS_PER_NODE") or ""
    counts = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    node = _number(env, "SLURM_NODEID") if "SLURM_NODEID" in env else 0
    if not counts:
        raise SettingsError(f"environment: SLURM_TASKS_PER_NODE is {text!r}; expected numbers such as '4(x2),3'")
    return counts[min(node, len(counts) - 1)]


def _first_of(nodes: str) -> str:
    """Returns the first of Slurm's nodes: "rack[1-2]gpu[07-09,12],cpu1" begins with "rack1gpu07"."""
    found = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[(\w*)[^\]]*\]", r"\1", found.group() if found else "")


def _port_of(master: int) -> int:
    """Returns a port from 16384 to 28671, for workers that have no store. Linux uses none of these ports for outgoing
    connections. Jobs whose MASTER_PORTs differ by 1 get ports that differ by 16."""
    return 16384 + 16 * (master % 768)


def _job(env: Mapping[str, str], launcher: str) -> str:
    if launcher == "torchrun":
        parts = [env.get("TORCHELASTIC_RUN_ID", ""), env.get("TORCHELASTIC_RESTART_COUNT", "")]
        if parts[0] in ("", "none"):  # torchrun says "none" for a run without a name
            parts = []
    elif launcher == "Slurm":
        parts = [env.get("SLURM_JOB_ID", "job"), env.get("SLURM_STEP_ID", "0")]
    else:
        parts = [env.get("OMPI_MCA_ess_base_jobid", "") or env.get("PMIX_NAMESPACE", "")]
    return job_name("-".join(part for part in parts if part))[:_LONGEST_RUN] or "train"


def job_name(name: str) -> str:
    """Returns a launcher's name of a run, changed into a valid name of a job, which does not begin with a dot or a dash."""
    valid = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in name)[:_LONGEST_JOB]
    return re.sub(r"^[.-]", "_", valid)


def _number(env: Mapping[str, str], name: str) -> int:
    text = env.get(name, "")
    if name == "PHUB_PORT" and "://" in text:
        raise SettingsError(
            f"environment: PHUB_PORT is {text!r}, which Kubernetes sets in pods beside a Service with the name phub; expected a "
            "number: give the Service another name, or set enableServiceLinks: false in the pod's spec"
        )
    if not text.isascii() or not text.isdigit() or len(text) > 10:
        raise SettingsError(f"environment: {name} is {text!r}; expected a number")
    if name == "PHUB_PORT" and int(text) > 65535:
        raise SettingsError(f"environment: PHUB_PORT is {text!r}; expected a port, at most 65535")
    return int(text)
