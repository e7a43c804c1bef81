"""Who a process is, by its launcher's environment."""

import socket

import pytest

import phub


@pytest.mark.parametrize(
    "environment, expected",
    [
        ({}, (0, 1, None, "127.0.0.1:0")),
        ({"PHUB_RANK": "2", "PHUB_WORLD_SIZE": "3", "PHUB_HUB": "box:7077"}, (2, 3, "box:7077", None)),
        (
            {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"},
            (1, 4, None, "10.0.0.1:29501"),
        ),
        # torchrun --standalone takes a free port; the next one may be a connection's.
        (
            {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "51007"},
            (1, 4, None, "a:18240"),
        ),
        (
            {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1", "PHUB_HUB": "box:1"},
            (1, 4, "box:1", None),
        ),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, (3, 4, None, None)),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_JOB_ID": "77"}, (5, 6, None, None)),
        (
            {
                "DMLC_WORKER_ID": "1",
                "DMLC_NUM_WORKER": "2",
                "DMLC_PS_ROOT_URI": "10.0.0.9",
                "DMLC_PS_ROOT_PORT": "9000",
            },
            (1, 2, "10.0.0.9:9000", None),
        ),
        # A hub on each machine: the place on the machine counts.
        (
            {
                **{"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"},
                **{"MASTER_ADDR": "a", "MASTER_PORT": "1", "PHUB_LEVELS": "machine"},
            },
            (1, 4, "127.0.0.1:7077", None),
        ),
        (
            {"PHUB_RANK": "1", "PHUB_WORLD_SIZE": "2", "PHUB_LEVELS": "machine", "PHUB_HUB": "here:1"},
            (1, 2, "here:1", None),
        ),
    ],
)
def test_launchers(environment, expected):
    worker = phub.worker(environment)
    assert (worker.rank, worker.world_size, worker.hub, worker.serve_at) == expected


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
    assert jobs == ["run_one-0", "run_one-1"]
    assert phub.worker({**torchrun, "PHUB_JOB": "mine"}).job == "mine"


def test_an_environment_that_makes_no_sense():
    with pytest.raises(phub.SettingsError, match="RANK is 'x'; expected a number"):
        phub.worker({"RANK": "x", "WORLD_SIZE": "2"})
    with pytest.raises(phub.SettingsError, match="PHUB_LEVELS is 'two'; expected flat or machine"):
        phub.worker({"PHUB_LEVELS": "two"})
    slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "PHUB_LEVELS": "machine"}
    with pytest.raises(phub.SettingsError, match="SLURM_NTASKS_PER_NODE is ''"):
        phub.worker(slurm)
    with pytest.raises(phub.SettingsError, match="rank 2 of 2"):
        phub.worker({"RANK": "2", "WORLD_SIZE": "2"})


def test_a_process_alone_starts_its_own_hub(monkeypatch):
    for name in ("PHUB_HUB", "DMLC_PS_ROOT_URI", "RANK", "PHUB_RANK"):
        monkeypatch.delenv(name, raising=False)
    with phub.Session(keys={"only": (3,)}, optimizer=phub.Average()) as session:
        assert session.average({"only": [1, 2, 3]})["only"].tolist() == [1, 2, 3]
