"""A process finds rank, workers, machine and hub in its launcher's environment, or gets an error that says how to start it."""

import socket
import subprocess
import sys

import pytest

import phub
from phub import _hub, _phub
from phub._compression import to_text
from phub._launch import wait_for_hub


@pytest.mark.parametrize(
    "environment, expected",
    [
        ({}, (0, 1, None, "127.0.0.1:0")),
        ({"PHUB_RANK": "2", "PHUB_WORLD_SIZE": "3", "PHUB_HUB": "box:7077"}, (2, 3, "box:7077", None)),
        (
            {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"},
            (1, 4, None, "10.0.0.1:21440"),
        ),
        # Another MASTER_PORT means another run, whose hub has another port.
        (
            {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "29501"},
            (1, 4, None, "a:21456"),
        ),
        # If rank 0 can send its port to the other ranks, it takes a free port.
        (
            {
                **{"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "a"},
                **{"MASTER_PORT": "29500", "TORCHELASTIC_USE_AGENT_STORE": "True"},
            },
            (1, 4, None, "a:0"),
        ),
        (
            {
                **{"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "a"},
                **{"MASTER_PORT": "29500"},
            },
            (1, 4, None, "127.0.0.1:0"),
        ),
        # IPv6, with brackets and without.
        *(
            (
                {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": host, "MASTER_PORT": "29500"},
                (1, 4, None, "[fd00::7]:21440"),
            )
            for host in ("fd00::7", "[fd00::7]")
        ),
        (
            {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1", "PHUB_HUB": "box:1"},
            (1, 4, "box:1", None),
        ),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, (3, 4, None, None)),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_JOB_ID": "77"}, (5, 6, None, None)),
        # Without a rank on the machine, this package does not distinguish machines.
        (
            {
                **{"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_JOB_ID": "300", "SLURM_STEP_ID": "1"},
                "SLURM_JOB_NODELIST": "gpu[07-09,12],cpu1",
            },
            (5, 6, None, "gpu07:19264"),
        ),
        (
            {
                **{"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_JOB_ID": "300", "SLURM_STEP_ID": "1"},
                "SLURM_STEP_NODELIST": "rack[1-2,5]gpu[07-09],cpu1",
            },
            (5, 6, None, "rack1gpu07:19264"),
        ),
        # MPICH, Intel MPI, MVAPICH and horovodrun, on one machine.
        *(
            (
                dict(zip(names, ("3", "4", "3", "4"))),
                (3, 4, None, "127.0.0.1:0"),
            )
            for names in (
                ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
                ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
                ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
                (
                    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
                    *("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
                ),
            )
        ),
        # On several machines the environment must name the first machine. This environment does not, so there is no hub.
        ({"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, (3, 4, None, None)),
        # Hydra starts its proxies by srun, one on each machine. Slurm's ranks are then not the ranks of the workers.
        (
            {
                **{"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
                **{"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "300", "SLURM_STEP_ID": "0"},
            },
            (3, 4, None, None),
        ),
        # Slurm sets PMI's variables, too.
        (
            {
                **{"PMI_RANK": "3", "PMI_SIZE": "4", "SLURM_STEP_NODELIST": "a[1-2]"},
                **{"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "300", "SLURM_STEP_ID": "1"},
            },
            (3, 4, None, "a1:19264"),
        ),
        # A batch script of a job with one task is a single worker. So is an interactive step of such a job.
        ({"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_NNODES": "1"}, (0, 1, None, "127.0.0.1:0")),
        (
            {
                **{"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1"},
                "SLURM_STEP_ID": "4294967290",
            },
            (0, 1, None, "127.0.0.1:0"),
        ),
        ({"PHUB_RANK": "0", "PHUB_WORLD_SIZE": "1", "SLURM_JOB_ID": "77", "SLURM_NTASKS": "4"}, (0, 1, None, "127.0.0.1:0")),
        # The only worker starts a hub on the given port, although the launcher does not give its local rank.
        ({"RANK": "0", "WORLD_SIZE": "1", "PHUB_PORT": "7100"}, (0, 1, None, "127.0.0.1:7100")),
        ({"PMI_RANK": "0", "PMI_SIZE": "1", "PHUB_PORT": "7100"}, (0, 1, None, "127.0.0.1:7100")),
        ({"PHUB_RANK": "0", "PHUB_WORLD_SIZE": "1", "PHUB_PORT": "7100"}, (0, 1, None, "127.0.0.1:7100")),
        # BytePS's launcher: two processes on each of three machines.
        (
            {
                **{"DMLC_WORKER_ID": "1", "DMLC_NUM_WORKER": "3", "DMLC_ROLE": "worker"},
                **{"BYTEPS_LOCAL_RANK": "1", "BYTEPS_LOCAL_SIZE": "2"},
                **{"DMLC_PS_ROOT_URI": "fd00::9", "DMLC_PS_ROOT_PORT": "9000"},
            },
            (3, 6, "[fd00::9]:9000", None),
        ),
        (
            {
                "DMLC_WORKER_ID": "1",
                "DMLC_NUM_WORKER": "2",
                "DMLC_PS_ROOT_URI": "10.0.0.9",
                "DMLC_PS_ROOT_PORT": "9000",
            },
            (1, 2, "10.0.0.9:9000", None),
        ),
    ],
)
def test_launchers(environment, expected):
    worker = phub.worker(environment)
    assert (worker.rank, worker.world_size, worker.hub, worker.serve_at) == expected


TORCHRUN = {
    **{"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"},
    **{"GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"},
}
OPEN_MPI = {
    **{"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8"},
    **{"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"},
}
SLURM = {
    **{"SLURM_PROCID": "5", "SLURM_NTASKS": "7", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_NNODES": "2"},
    **{"SLURM_STEP_TASKS_PER_NODE": "4,3", "SLURM_STEP_NODELIST": "a[1-2]", "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"},
}


@pytest.mark.parametrize(
    "environment, expected",
    [
        # The machine's number, the number of machines, the rank on the machine, the workers on it, its hub, and the mesh.
        (TORCHRUN, (1, 2, 1, 4, "127.0.0.1:21441", "1/2@10.0.0.1:21440")),
        ({**TORCHRUN, "MASTER_ADDR": "fd00::7"}, (1, 2, 1, 4, "127.0.0.1:21441", "1/2@[fd00::7]:21440")),
        ({**OPEN_MPI, "MASTER_ADDR": "a", "MASTER_PORT": "29500"}, (1, 2, 1, 4, "127.0.0.1:21441", "1/2@a:21440")),
        (
            {
                **{"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"},
                **{"MASTER_ADDR": "a", "MASTER_PORT": "29500"},
            },
            (1, 2, 1, 4, "127.0.0.1:21441", "1/2@a:21440"),
        ),
        (SLURM, (1, 2, 1, 3, "127.0.0.1:16449", "1/2@a1:16448")),
        ({**SLURM, "SLURM_GTIDS": "1,5,3"}, (1, 2, 1, 3, "127.0.0.1:16449", "1/2@a1:16448")),
        # The machines get no hubs of their own if there is one machine, if the first machine has no name, with PHUB_LEVELS=flat,
        # or with PHUB_HUB.
        ({**TORCHRUN, "WORLD_SIZE": "4", "RANK": "1", "GROUP_WORLD_SIZE": "1", "GROUP_RANK": "0"}, None),
        (OPEN_MPI, None),
        ({**TORCHRUN, "PHUB_LEVELS": "flat"}, None),
        ({**TORCHRUN, "PHUB_HUB": "box:7077"}, None),
        # If neighbouring ranks are on different machines, the rank does not show the machine.
        (
            {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK": "2", "MASTER_ADDR": "a", "MASTER_PORT": "29500"},
            None,
        ),
        # Hubs already run on each machine, below other hubs or in a mesh.
        ({**TORCHRUN, "PHUB_LEVELS": "machine"}, (1, 2, 1, 4, "127.0.0.1:7077", None)),
        (
            {**TORCHRUN, "PHUB_LEVELS": "machine", "PHUB_HUB": "here:1", "PHUB_MESH": "1/2@a:1"},
            (1, 2, 1, 4, "here:1", "1/2@a:1"),
        ),
        (
            {
                **{"PHUB_RANK": "5", "PHUB_WORLD_SIZE": "7", "PHUB_LOCAL_RANK": "1", "PHUB_LOCAL_WORLD_SIZE": "3"},
                **{"PHUB_LEVELS": "machine", "PHUB_HUB": "here:1", "PHUB_MESH": "1/2@a:1"},
            },
            (1, 2, 1, 3, "here:1", "1/2@a:1"),
        ),
    ],
)
def test_machines(environment, expected):
    worker = phub.worker(environment)
    place = worker.machine
    assert worker.rank == int(environment.get("RANK", 5))  # the rank among the workers of all machines
    seen = place and (place.number, place.of, place.rank, place.world_size, place.hub, place.mesh)
    assert seen == expected
    if place:
        listed = [int(rank) for rank in environment.get("SLURM_GTIDS", "").split(",") if rank]
        assert list(place.ranks) == (listed or list(range(4, 4 + place.world_size)))


def test_slurm_names_the_ranks_of_a_machine():
    with pytest.raises(phub.SettingsError, match="SLURM_GTIDS is '1,3,5'; expected the 3 ranks of this machine, with 5 at place 1"):
        phub.worker({**SLURM, "SLURM_GTIDS": "1,3,5"})


def test_a_hub_beside_the_workers_outlives_them_and_ends_when_it_is_not_used(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = "127.0.0.1:{}".format(free.getsockname()[1])
    monkeypatch.setenv("PHUB_UNUSED_LIMIT_S", "8")  # not less, because a join takes some seconds on a busy machine
    for _ in range(2):
        _hub.serve_beside(address)  # the second call finds the hub of the first
    [hub] = _hub._BESIDE
    with phub.Session(address, 0, 1, keys={"only": (3,)}, optimizer=phub.Average()) as session:
        assert session.average({"only": [1, 2, 3]})["only"].tolist() == [1, 2, 3]
    assert hub.wait(timeout=60) == 0
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(phub.HubStartError, match="already in use.*PHUB_PORT"):
            _hub.serve_beside("127.0.0.1:{}".format(taken.getsockname()[1]))


def test_terms_that_no_mesh_has_use_one_hub_at_rank_0():
    assert _phub.refused_below([]) is None
    assert _phub.refused_below([("compression", "qsgd:8:512"), ("consistency", "ssp:2")]) is None
    assert "each worker's own steps" in _phub.refused_below([("compression", to_text(phub.SlimDP(0.3, 0.15)))])
    with pytest.raises(phub.SettingsError, match="schedule"):
        _phub.refused_below([("schedule", "x")])


def test_a_port_that_is_taken_is_named_with_the_way_out(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        torchrun = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
        for name, value in {**torchrun, "PHUB_PORT": str(taken.getsockname()[1])}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(phub.HubStartError, match="already in use.*PHUB_PORT"):
            phub.Session(keys={"only": (3,)}, optimizer=phub.Sgd(learning_rate=1.0))


def test_a_restart_under_torchrun_is_another_job():
    torchrun = {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "run one"}
    jobs = [phub.worker({**torchrun, "TORCHELASTIC_RESTART_COUNT": count}).job for count in "01"]
    assert phub.worker({**torchrun, "TORCHELASTIC_RUN_ID": "none"}).job == "train"
    assert jobs == ["run_one-0", "run_one-1"]
    assert phub.worker({**torchrun, "PHUB_JOB": "mine"}).job == "mine"


@pytest.mark.parametrize(
    "environment, words",
    [
        (
            {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"},
            "batch script or a shell of Slurm's job 77, and not one of its 4 tasks: start them by `srun python",
        ),
        # An interactive step has a number like a step of srun, or the number that Slurm keeps for interactive steps.
        *(
            (
                {
                    **{"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1"},
                    "SLURM_STEP_ID": step,
                },
                "not one of its 4 tasks: start them by `srun python",
            )
            for step in ("0", "4294967290")
        ),
        ({"SLURM_JOB_ID": "77", "SLURM_NNODES": "2"}, "not one of its 2 tasks: start them by `srun python"),
        ({"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "2"}, "DMLC_WORKER_ID is not set.*Start the script by torchrun"),
        ({"DMLC_ROLE": "server", "DMLC_NUM_WORKER": "2"}, "DMLC_ROLE is 'server'; the hub takes the place of servers"),
        ({"PMIX_RANK": "1"}, "PMIX_RANK is set, .*start the script by torchrun, mpiexec or srun, or set PHUB_RANK"),
        ({"RANK": "1"}, "RANK is set and WORLD_SIZE is not"),
        ({"PMI_RANK": "1"}, "PMI_RANK is set and PMI_SIZE is not"),
        # If one of the package's own two variables is missing, a launcher's variable does not replace it.
        ({**TORCHRUN, "PHUB_WORLD_SIZE": "8"}, "PHUB_WORLD_SIZE is '8' and PHUB_RANK is not set, .*: set both, or none"),
        ({**TORCHRUN, "PHUB_RANK": "1", "PHUB_WORLD_SIZE": ""}, "PHUB_RANK is '1' and PHUB_WORLD_SIZE is not set, so the number of workers"),
        ({"SLURM_PROCID": "1", "SLURM_STEP_ID": "0"}, "SLURM_PROCID is 1 and neither SLURM_STEP_NUM_TASKS nor SLURM_NTASKS is set"),
        ({"LOCAL_RANK": "1"}, "LOCAL_RANK is '1' and RANK is not set, .*: set RANK and WORLD_SIZE"),
        ({"MPI_LOCALNRANKS": "2"}, "MPI_LOCALNRANKS is '2' and PMI_RANK is not set"),
        *(
            ({size: "2"}, f"{size} is '2' and {rank} is not set, so this worker's rank is unknown: set both")
            for rank, size in (
                *(("PHUB_RANK", "PHUB_WORLD_SIZE"), ("RANK", "WORLD_SIZE"), ("HOROVOD_RANK", "HOROVOD_SIZE")),
                *(("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")),
            )
        ),
    ],
)
def test_a_launcher_that_does_not_say_who_this_is(environment, words, hub, monkeypatch):
    with pytest.raises(phub.SettingsError, match=words):
        phub.worker(environment)
    # A script that itself gives rank and world size needs no launcher.
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with phub.Session(hub, 0, 1, keys={"only": (3,)}, optimizer=phub.Average()) as session:
        assert session.world_size == 1


def test_an_environment_that_makes_no_sense():
    with pytest.raises(phub.SettingsError, match="RANK is 'x'; expected a number"):
        phub.worker({"RANK": "x", "WORLD_SIZE": "2"})
    with pytest.raises(phub.SettingsError, match="WORLD_SIZE is '99999999999'; expected a number"):
        phub.worker({"RANK": "0", "WORLD_SIZE": "99999999999"})
    # Every rank checks the port. If only rank 0 checked the port, the other ranks would fail only after a minute.
    with pytest.raises(phub.SettingsError, match="PHUB_PORT is '70770'; expected a port, at most 65535"):
        phub.worker({**TORCHRUN, "PHUB_PORT": "70770"})
    with pytest.raises(phub.SettingsError, match="PHUB_LEVELS is 'two'; expected auto, flat or machine"):
        phub.worker({"PHUB_LEVELS": "two"})
    with pytest.raises(phub.SettingsError, match="SLURM_TASKS_PER_NODE is ''"):
        phub.worker({**SLURM, "SLURM_STEP_TASKS_PER_NODE": ""})
    with pytest.raises(phub.SettingsError, match="local rank 4 of 4"):
        phub.worker({**TORCHRUN, "LOCAL_RANK": "4"})
    with pytest.raises(phub.SettingsError, match="rank 2 of 2"):
        phub.worker({"RANK": "2", "WORLD_SIZE": "2"})
    with pytest.raises(phub.SettingsError, match="MASTER_ADDR is not set, so torchrun's store is unknown"):
        phub.worker({"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_USE_AGENT_STORE": "True"})


@pytest.mark.parametrize("run, job", [("../x", "_._x"), ("-1", "_1"), ("a.b-1", "a.b-1")])
def test_a_run_with_any_name_has_a_job(hub, run, job, monkeypatch):
    for name, value in {"TORCHELASTIC_RUN_ID": run, "RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    with phub.Session(hub, keys={"only": (3,)}, optimizer=phub.Average()) as session:
        assert session.job.startswith(f"{job}-")


def test_a_process_alone_starts_its_own_hub(monkeypatch):
    for name in ("PHUB_HUB", "DMLC_PS_ROOT_URI", "RANK", "PHUB_RANK"):
        monkeypatch.delenv(name, raising=False)
    with phub.Session(keys={"only": (3,)}, optimizer=phub.Average()) as session:
        assert session.average({"only": [1, 2, 3]})["only"].tolist() == [1, 2, 3]


def test_how_long_sessions_wait_for_a_hub_is_said_by_the_environment(monkeypatch):
    monkeypatch.delenv("PHUB_HUB_WAIT", raising=False)
    assert wait_for_hub() == 60.0
    monkeypatch.setenv("PHUB_HUB_WAIT", "0")
    assert wait_for_hub() == 0.0
    for wrong in ("soon", "-1", "inf", "nan"):
        monkeypatch.setenv("PHUB_HUB_WAIT", wrong)
        with pytest.raises(phub.SettingsError, match=f"PHUB_HUB_WAIT is '{wrong}'"):
            wait_for_hub()


def test_a_variable_that_is_empty_is_not_set():
    worker = phub.worker({"PHUB_HUB": "", "PHUB_JOB": "", "PHUB_RANK": "", "PHUB_LEVELS": "", "PHUB_PORT": ""})
    assert (worker.rank, worker.world_size, worker.hub, worker.serve_at) == (0, 1, None, "127.0.0.1:0")


def test_the_variable_of_a_kubernetes_service_is_explained():
    environment = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "PHUB_PORT": "tcp://10.0.0.1:7077"}
    with pytest.raises(phub.SettingsError, match="Kubernetes.*Service another name"):
        phub.worker(environment)


def test_only_an_error_of_the_port_names_the_variable_of_the_port(monkeypatch, tmp_path):
    monkeypatch.setenv("PHUB_CHECKPOINTS", str(tmp_path / "no" / "where"))
    with pytest.raises(phub.HubStartError, match="checkpoint directory") as refused:
        _hub.serve_for("localhost:0")
    assert "PHUB_PORT" not in str(refused.value)


def test_a_lone_process_needs_no_home(monkeypatch):
    for name in ("XDG_CONFIG_HOME", "PHUB_TOKEN", "PHUB_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/proc/nowhere")
    # Two sessions, both at the hub that the first session started.
    script = """
import phub
for job in ("a", "b"):
    with phub.Session(keys={"a": (3,)}, optimizer=phub.Average(), job=job) as session:
        print(session.world_size)
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert said.stdout.split() == ["1", "1"], said.stderr
