"""The workers of a run agree on the address of the hub that they start, and on a random word."""

import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

import phub
from phub import _board, _run

SCRIPT = """
import numpy
import phub

with phub.Session(keys={"only": (3,)}, optimizer=phub.Average()) as session:
    mean = session.average({"only": numpy.full(3, session.rank)})["only"].tolist()
    print(f"rank {session.rank}: {mean} in {session.job} at {session.hub_address}")
"""


def environment(**settings):
    """Returns the environment of this process without the variables of launchers, and with these settings."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PHUB_", "PMI_", "SLURM_", "OMPI_", "DMLC_"))}
    return {**own, "PYTHONPATH": os.pathsep.join(sys.path), "PHUB_CORES": "1", "PHUB_IDLE": "sleep", **settings}


def finish(processes):
    """Waits for processes, which must succeed, and returns the lines of their output, sorted."""
    try:
        said = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, said):
        assert process.returncode == 0, "\n".join(errors for _, errors in said)
    return sorted(line for out, _ in said for line in out.splitlines())


def start(command, **settings):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment(**settings), **pipes)


def workers(environments, script=SCRIPT):
    """Runs a script in a worker for each of these environments, and returns the lines of their output, sorted."""
    return finish([start([sys.executable, "-c", script], **settings) for settings in environments])


# A launcher that starts workers as mpiexec does: one worker directly, and the other worker through a shell.
LAUNCHER = """
import os, subprocess, sys
command = [sys.executable, "-c", sys.argv[1]]
ways = [command, ["sh", "-c", '"$@"; exit $?', "sh", *command]]
names = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
places = [dict(zip(names, map(str, (rank, 2, rank, 2)))) for rank in range(2)]
workers = [subprocess.Popen(way, env={**os.environ, **place}) for way, place in zip(ways, places)]
sys.exit(max(worker.wait() for worker in workers))
"""


def test_workers_of_mpiexec_find_each_other_and_no_others(tmp_path):
    runs = [start([sys.executable, "-c", LAUNCHER, SCRIPT], XDG_RUNTIME_DIR=str(tmp_path)) for _ in range(2)]
    said = [finish([run]) for run in runs]
    words = set()
    for lines in said:
        found = [re.fullmatch(r"rank (\d): \[0.5, 0.5, 0.5\] in (train-\w+) at 127.0.0.1:(\d+)", line) for line in lines]
        assert [each and each[1] for each in found] == ["0", "1"], said
        assert found[0].groups()[1:] == found[1].groups()[1:], said
        words.add(found[0][2])
    assert len(words) == 2
    [own] = tmp_path.iterdir()
    assert own.stat().st_mode & 0o077 == 0 and not list(own.iterdir()), "nothing stays"


def test_files_of_others_are_not_trusted(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    own = tmp_path / f"phub-{os.getuid()}"
    own.mkdir()
    own.chmod(0o777)
    with pytest.raises(phub.SettingsError, match="directory of this user that nobody else can write"):
        _board.of_user("PHUB_NO_SUCH_VARIABLE", 0)
    own.rmdir()
    own.symlink_to(tmp_path)
    with pytest.raises(phub.SettingsError, match="directory of this user that nobody else can write"):
        _board.of_user("PHUB_NO_SUCH_VARIABLE", 0)


# A worker of rank 0, which writes a text for the other workers. It prints its process id, and runs until its stdin is closed.
WITH_BOARD = """
import os, sys
from phub import _board
_board.of_user("PHUB_NO_SUCH_VARIABLE", 0).set("name", "text")
print(os.getpid())
sys.stdin.read()
"""


def test_the_files_of_a_killed_run_are_removed_and_those_of_a_running_one_stay(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    # Each worker has its own launcher.
    command = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-uc", WITH_BOARD]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    env = environment(XDG_RUNTIME_DIR=str(tmp_path))
    with subprocess.Popen(command, env=env, **pipes) as running, subprocess.Popen(command, env=env, **pipes) as killed:
        assert int(running.stdout.readline()) > 0
        os.kill(int(killed.stdout.readline()), signal.SIGKILL)
        killed.wait(timeout=60)
        own = tmp_path / f"phub-{os.getuid()}"
        assert {each.name.partition("-")[0] for each in own.iterdir()} == {str(running.pid), str(killed.pid)}
        mine = _board.of_user("PHUB_NO_SUCH_VARIABLE", 1)
        assert {each.name.partition("-")[0] for each in own.iterdir()} == {str(running.pid), str(os.getppid())}
        mine.remove()
    assert not list(own.iterdir()), "nothing stays"


def free_ports(count):
    """Returns the first of `count` neighbouring ports that are free. They are below the range from which the kernel takes ports
    itself."""
    while True:
        port = random.randrange(10_000, 32_000)
        try:
            for each in range(port, port + count):
                socket.create_server(("0.0.0.0", each)).close()
        except OSError:
            continue
        return port


def by_hand(port, addresses, **settings):
    """Returns the environments of workers that a person starts by hand, with torch's variables."""
    names = {"WORLD_SIZE": str(len(addresses)), "MASTER_PORT": str(port), **settings}
    return [{**names, "RANK": str(rank), "MASTER_ADDR": address} for rank, address in enumerate(addresses)]


def test_rank_0_is_found_where_it_calls_itself_localhost():
    # The other workers use another address of the same machine, as with Kubeflow's operator.
    lines = workers(by_hand(free_ports(1), ["localhost", "127.0.0.2"]))
    assert [line.partition(" in ")[0] for line in lines] == ["rank 0: [0.5, 0.5, 0.5]", "rank 1: [0.5, 0.5, 0.5]"]


@pytest.mark.parametrize("address", ["::1", "[::1]"])
def test_rank_0_is_found_by_ipv6(address):
    if not socket.has_dualstack_ipv6():
        pytest.skip("NOT RUN: this machine has no IPv6")
    lines = workers(by_hand(free_ports(1), [address, address]))
    assert [line.partition(" in ")[0] for line in lines] == ["rank 0: [0.5, 0.5, 0.5]", "rank 1: [0.5, 0.5, 0.5]"]
    assert " at [::1]:" in lines[1]


def test_torchruns_side_by_side_take_no_port_of_each_other(tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    port = free_ports(2)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--redirects=1", "--tee=1"]
    # The workers of the first run wait for a file, so that the first run's hub is there before the second run begins.
    script.write_text("import os, time\nwhile not os.path.exists(os.environ['GO']): time.sleep(0.05)\n" + SCRIPT)
    waits = script.read_text().replace("    mean", "    import pathlib; pathlib.Path(os.environ['HERE']).touch()\n    mean")
    (tmp_path / "first.py").write_text(
        waits.replace("    mean", "    while not os.path.exists(os.environ['DONE']): time.sleep(0.05)\n    mean")
    )
    settings = {"GO": str(script), "HERE": str(tmp_path / "here"), "DONE": str(tmp_path / "done"), "OMP_NUM_THREADS": "1"}
    first = start([*torchrun, f"--master_port={port}", str(tmp_path / "first.py")], **settings)
    while not (tmp_path / "here").exists():
        assert first.poll() is None, first.communicate()
    second = start([*torchrun, f"--master_port={port + 1}", str(script)], **settings)
    of_second = finish([second])
    (tmp_path / "done").touch()
    names = []
    for lines in finish([first]), of_second:
        found = [re.search(r"rank (\d): \[0.5, 0.5, 0.5\] in (train-\w+) at", line) for line in lines]
        assert sorted(each[1] for each in found if each) == ["0", "1"], lines
        [name] = {each[2] for each in found if each}
        names.append(name)
    assert names[0] != names[1]


TORCHS_GROUP_SCRIPT = """
import sys
import torch

torch.distributed.init_process_group("gloo", f"file://{sys.argv[1]}", rank=int(sys.argv[2]), world_size=2)
""" + SCRIPT


def test_a_process_group_says_who_a_worker_is(tmp_path):
    pytest.importorskip("torch")
    command = [sys.executable, "-c", TORCHS_GROUP_SCRIPT, str(tmp_path / "store")]
    lines = finish([start([*command, str(rank)]) for rank in range(2)])
    assert [line.partition(" in ")[0] for line in lines] == ["rank 0: [0.5, 0.5, 0.5]", "rank 1: [0.5, 0.5, 0.5]"]


TRAINED = """
import numpy
import phub

with phub.Session(keys={"only": (3,)}, optimizer=phub.Sgd(1.0)) as session:
    began = session.next_round
    session.broadcast({"only": numpy.zeros(3)})
    session.push_pull("only", numpy.ones(3))
    print(f"rank {session.rank} of job {session.job}: from {began} to {session.weights('only').tolist()}")
"""


def test_a_run_goes_on_from_a_checkpoint_only_if_its_name_says_so(tmp_path):
    with phub.serve(cores=1, idle="sleep", checkpoints=tmp_path, checkpoint_every=1) as hub:

        def run(**settings):
            ranks = [{"PHUB_HUB": hub.address, "PHUB_RANK": str(rank), "PHUB_WORLD_SIZE": "2", **settings} for rank in range(2)]
            processes = [start([sys.executable, "-c", TRAINED], **each) for each in ranks]
            said = [process.communicate(timeout=120) for process in processes]
            assert [process.returncode for process in processes] == [0, 0], said
            return [out.strip() for out, _ in said], said[0][1]

        own = [run() for _ in range(2)]
        assert all(line.endswith("from 0 to [-1.0, -1.0, -1.0]") for lines, _ in own for line in lines), own
        jobs = [re.search(r"job (train-\w+):", line)[1] for lines, _ in own for line in lines]
        assert jobs[0] == jobs[1] != jobs[2] == jobs[3]
        first, second = run(PHUB_JOB="mine"), run(PHUB_JOB="mine")
        assert all(line.endswith("of job mine: from 0 to [-1.0, -1.0, -1.0]") for line in first[0]) and "continues" not in first[1]
        assert all(line.endswith("of job mine: from 2 to [-2.0, -2.0, -2.0]") for line in second[0])
        assert "job mine continues before round 2, with weights that its hub already had" in second[1]


def test_sessions_of_one_process_have_names_by_the_order_in_which_they_are_made(hub, monkeypatch):
    monkeypatch.setenv("PHUB_HUB", hub.address)
    keys, average = {"only": (3,)}, phub.Average()
    with phub.Session(keys=keys, optimizer=average) as one, phub.Session(keys=keys, optimizer=average) as two:
        assert two.job == f"{one.job}-2"
    monkeypatch.setenv("PHUB_JOB", "mine")
    with phub.Session(keys=keys, optimizer=average) as one, phub.Session(keys=keys, optimizer=average, job="other") as two:
        # A session that could not join gives its name back, and the next session gets it.
        with pytest.raises(phub.SettingsError):
            phub.Session(keys=keys, optimizer=phub.Momentum(0.1, momentum=2.0))
        with phub.Session(keys=keys, optimizer=average) as three:
            assert (one.job, two.job, three.job) == ("mine", "other", "mine-2")


def test_jobs_that_belong_to_jobs_with_long_names_differ():
    long = ["a" * 62 + "-1", "a" * 62 + "-2"]
    for suffix in ("-mean", "-buffers", ".1", "-2"):
        names = [_run.beside(job, suffix) for job in long]
        assert len({*names, *long}) == 4 and all(len(name) <= 52 and name.endswith(suffix) for name in names)
    assert _run.beside("b" * 47, "-mean") == "b" * 47 + "-mean"


class Words(_board.Board):
    """A board in memory, which may have words of an earlier run."""

    def __init__(self, texts):
        self.texts = texts

    def set(self, name, text):
        self.texts[name] = text

    def now(self, name):
        return self.texts.get(name)


def test_words_of_an_earlier_run_are_not_taken_for_those_of_a_worker():
    board = Words({"ask/1": "old"})
    # The second run begins after a whole run, whose texts stay on the board.
    for texts in ["zero", "one"], ["zero again", "one again"]:
        said, old = {}, f"seen/{board.texts['ask/1']}"
        former = board.texts.get(old)
        threads = [
            threading.Thread(target=lambda rank=rank: said.setdefault(rank, _board.gather(board, rank, 2, texts[rank])))
            for rank in range(2)
        ]
        threads[0].start()
        while board.texts.get(old) == former:
            time.sleep(0.01)
        threads[1].start()
        for thread in threads:
            thread.join()
        assert said == {0: texts, 1: texts}
    with pytest.raises(phub.MissingWorkersError, match="rank 1 of 2 did not report"):
        _board.gather(Words({}), 0, 2, "zero", limit_s=0.1)
    with pytest.raises(phub.MissingWorkersError, match="rank 1 of 2 has waited"):
        _board.gather(Words({}), 1, 2, "one", limit_s=0.1)


@pytest.mark.parametrize("ranks", [(0, 0), (1, 1)])
def test_two_processes_with_one_rank_are_both_refused_at_once(ranks):
    board, said = Words({}), []

    def gather(rank):
        with pytest.raises(phub.SettingsError) as refused:
            _board.gather(board, rank, 2, "")
        said.append(str(refused.value))

    threads = [threading.Thread(target=gather, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    words = f"rank {ranks[0]} of 2: another process of this run has the same rank; give each worker its own rank from 0 to 1"
    assert [text.startswith(words) for text in said] == [True, True], said


def test_a_child_of_a_fork_is_a_run_of_its_own():
    at = _run.Place("hub", 0, 1, "")
    word = _run.word_at(at, "train", lambda name: pytest.fail("one worker needs no meeting"))
    assert _run.word_at(at, "train", lambda name: "") == word
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, _run.word_at(at, "train", lambda name: "").encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100).decode() not in ("", word)
