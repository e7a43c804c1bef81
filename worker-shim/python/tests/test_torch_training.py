"""Training with PyTorch has the same losses as one process on the whole batch, and as DistributedDataParallel over gloo. All
runs end with equal bits. Both the hub's optimizer and DDP's hook are tested."""

import os
import socket
import subprocess
import sys

import numpy as np
import pytest
from conftest import end_gloo, in_processes

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

import models  # noqa: E402

import phub.torch  # noqa: E402

ROUNDS = 12


def alone(kind):
    """Returns the losses of one process on whole batches."""
    model = models.fresh(kind)
    optimizer = models.optimizer_of(kind, model)
    losses = []
    for inputs, targets in models.batches(kind, ROUNDS):
        optimizer.zero_grad()
        loss = models.loss_of(model, inputs, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def with_hub(rank, kind, hub, world_size, job, settings):
    model = models.fresh(kind)
    optimizer = phub.torch.DistributedOptimizer(
        models.optimizer_of(kind, model),
        model.named_parameters(),
        hub=hub,
        rank=rank,
        world_size=world_size,
        job=job,
        **settings,
    )
    losses = []
    for inputs, targets in models.batches(kind, ROUNDS, rank, world_size):
        optimizer.zero_grad()
        loss = models.loss_of(model, inputs, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    optimizer.leave()
    return losses, models.digest(model)


def with_gloo(rank, kind, store, world_size, hub):
    """Trains a rank with DDP, with gloo's all-reduce or with the hub's averages."""
    torch.distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=world_size)
    # Small buckets, so that there are several of them, and DDP builds them again after the first iteration.
    model = torch.nn.parallel.DistributedDataParallel(models.fresh(kind), bucket_cap_mb=0.01)
    if hub is not None:
        state = phub.torch.HubState(hub, rank, world_size, job="ddp")
        model.register_comm_hook(state, phub.torch.ddp_hook)
    optimizer = models.optimizer_of(kind, model)
    losses = []
    for inputs, targets in models.batches(kind, ROUNDS, rank, world_size):
        optimizer.zero_grad()
        loss = models.loss_of(model, inputs, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if hub is not None:
        state.leave()
    end_gloo()
    return losses


@pytest.mark.parametrize("kind, world_size", [("cnn", 1), ("cnn", 2), ("cnn", 4), ("transformer", 2)])
def test_workers_walk_the_way_of_one_process(hub, kind, world_size):
    results = in_processes(world_size, with_hub, kind, hub.address, world_size, "job", {})
    losses = np.mean([losses for losses, _ in results], axis=0)
    np.testing.assert_allclose(losses, alone(kind), rtol=2e-3)
    assert losses[-1] < 0.9 * losses[0]
    assert len({digest for _, digest in results}) == 1, "all workers end with the same weights"


def test_two_runs_and_all_ways_end_with_equal_bits(hub):
    ways = {
        "first": {},
        "second": {},
        "shared": {"weights": "shared"},
        "tcp": {"transport": "tcp"},
        "waiting": {"overlap": False},
        "sliced": {"schedule": "sliced"},
    }
    runs = [in_processes(2, with_hub, "cnn", hub.address, 2, job, settings) for job, settings in ways.items()]
    for run, way in zip(runs, ways):
        assert run == runs[0], way


def test_the_curve_is_that_of_ddp(hub, tmp_path):
    gloo = in_processes(2, with_gloo, "cnn", tmp_path / "gloo", 2, None)
    hook = in_processes(2, with_gloo, "cnn", tmp_path / "hook", 2, hub.address)
    ours = in_processes(2, with_hub, "cnn", hub.address, 2, "job", {})
    np.testing.assert_allclose(hook, gloo, rtol=1e-4)
    np.testing.assert_allclose([losses for losses, _ in ours], gloo, rtol=2e-3)


TORCHRUN_SCRIPT = """
import torch
import models
import phub.torch

model = models.fresh("cnn")
model.register_buffer("seen", torch.tensor(phub.worker().rank + 5))
optimizer = models.optimizer_of("cnn", model)
phub.torch.broadcast_parameters(dict(model.named_buffers()))
optimizer = phub.torch.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
me = phub.worker()
for inputs, targets in models.batches("cnn", 12, me.rank, me.world_size):
    optimizer.zero_grad()
    loss = models.loss_of(model, inputs, targets)
    loss.backward()
    optimizer.step()
means = phub.torch.allreduce_metrics({"loss": loss.item(), "rank": me.rank})
print(f"rank {me.rank}: loss {means['loss']:.4f} mean rank {means['rank']} seen {model.seen.item()}")
"""


# The options for output are given, because torch 1.13's defaults do not work with Python 3.11.
OUTPUT = ("--redirects=1", "--tee=1")


def torchrun(workers, script, *arguments):
    """Runs a script with torchrun. Returns the output of its workers, in rank order."""
    tests = os.path.dirname(models.__file__)
    # These options are those of --standalone, with a free port. In torch 1.13, --standalone uses port 29400, like the workers of
    # other jobs.
    own = ("--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0")
    command = [sys.executable, "-m", "torch.distributed.run", *own, f"--nproc_per_node={workers}", *OUTPUT]
    run = subprocess.run(
        [*command, *arguments, str(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([tests, *sys.path]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 0, run.stderr
    lines = sorted(line[line.index("rank ") :] for line in run.stdout.splitlines() if "rank " in line)
    assert len(lines) == workers, run.stdout
    return lines


def test_torchrun_needs_nothing_that_was_started_before(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TORCHRUN_SCRIPT)
    lines = torchrun(4, script)
    for rank, line in enumerate(lines):
        assert line.startswith(f"rank {rank}: loss ") and line.endswith("mean rank 1.5 seen 5"), lines
    expected = alone("cnn")[-1]
    assert float(lines[0].split()[3]) == pytest.approx(expected, rel=5e-3)


RESTARTED_SCRIPT = """
import os
import numpy
import phub

me = phub.worker()
first_time = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
with phub.Session(keys={"only": (3,)}, optimizer=phub.Sgd(learning_rate=1.0)) as session:
    session.broadcast({"only": numpy.zeros(3)})
    for number in range(4):
        if first_time and me.rank == 1 and number == 2:
            os._exit(3)  # in the middle of the job
        session.push_pull("only", numpy.full(3, me.rank))
    print(f"rank {me.rank}: {session.weights('only').tolist()}")
"""


def test_torchrun_starts_workers_again_after_one_is_lost(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(RESTARTED_SCRIPT)
    lines = torchrun(2, script, "--max_restarts=1")
    assert lines == [f"rank {rank}: [-2.0, -2.0, -2.0]" for rank in range(2)]


LOST_ON_A_MACHINE_SCRIPT = """
import hashlib
import os
import pathlib
import signal
import sys
import numpy
import phub

me, told = phub.worker(), pathlib.Path(sys.argv[1])
assert (me.machine.of, me.machine.world_size) == (2, 2), me
keys = {"a": (40, 50), "b": (7,)}
with phub.Session(keys=keys, optimizer=phub.Nesterov(0.1, 0.9), chunk_bytes=1024) as session:
    session.broadcast({key: numpy.ones(shape) for key, shape in keys.items()})
    began = session.next_round
    while session.next_round <= 12:
        if sys.argv[2] == "lost" and me.rank == 3 and session.next_round == 9 and not told.exists():
            told.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        for key in keys:
            of_round = numpy.random.default_rng([session.next_round, me.rank])
            session.gradient(key)[...] = of_round.normal(size=keys[key])
        session.push()
        session.wait()
    digest = hashlib.sha256(b"".join(session.weights(key).tobytes() for key in keys)).hexdigest()
    print(f"rank {me.rank}: from round {began}: {digest}", flush=True)
"""


def on_two_machines(directory, script, *arguments):
    """Runs a script with two agents of torchrun on this host, as on two machines. Returns the workers' output, in rank order."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        meet = free.getsockname()[1]
    # The hubs have two neighbouring ports, which differ between runs. The kernel takes no port for connections from this range.
    port = 16384 + meet % 8192 * 2
    options = ["--nnodes=2", "--nproc_per_node=2", "--max_restarts=3", "--monitor_interval=0.1", *OUTPUT]
    options += ["--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{meet}", f"--rdzv_id={directory.name}"]
    agents = []
    for machine in range(2):
        own = directory / str(machine)
        own.mkdir(parents=True)
        settings = {
            "OMP_NUM_THREADS": "1",
            "PHUB_CHECKPOINTS": str(own),
            "PHUB_CHECKPOINT_EVERY": "2",
            "PHUB_CORES": "1",
            "PHUB_HUB_LOG": str(own / "hub.log"),
            "PHUB_JOB": "train",
            "PHUB_PORT": str(port),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        command = [sys.executable, "-m", "torch.distributed.run", *options, str(script), *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        agents.append(subprocess.Popen(command, env={**os.environ, **settings}, **pipes))
    try:
        said = [agent.communicate(timeout=200) for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    assert all(agent.returncode == 0 for agent in agents), "\n".join(errors for _, errors in said)
    lines = "".join(out for out, _ in said).splitlines()
    return sorted(line[line.index("rank ") :] for line in lines if "rank " in line)


def test_torchrun_starts_workers_on_two_machines_again_after_one_is_lost(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(LOST_ON_A_MACHINE_SCRIPT)
    whole = on_two_machines(tmp_path / "whole", script, str(tmp_path / "told"), "none")
    restarted = on_two_machines(tmp_path / "restarted", script, str(tmp_path / "told"), "lost")
    assert (tmp_path / "told").exists()
    began, bits = zip(*(line.rsplit(": ", 1) for line in whole))
    assert began == tuple(f"rank {rank}: from round 1" for rank in range(4)) and len(set(bits)) == 1, whole
    began_again, bits_again = zip(*(line.rsplit(": ", 1) for line in restarted))
    # The hubs write a checkpoint every second round. No worker knows which checkpoint was the last before the loss.
    rounds = {int(each.rpartition(" ")[2]) for each in began_again}
    assert len(began_again) == 4 and len(rounds) == 1 and rounds.pop() in range(3, 10), restarted
    assert bits_again == bits


TWO_HOSTS_SCRIPT = """
import numpy
import phub

me = phub.worker()
with phub.Session(keys={"only": (3,)}, optimizer=phub.Sgd(learning_rate=1.0)) as session:
    session.broadcast({"only": numpy.zeros(3)})
    for number in range(4):
        session.push_pull("only", numpy.full(3, me.rank))
    print(f"rank {me.rank}: {session.weights('only').tolist()} by {session.ways[0].transport}")
"""

# A script that makes two machines: network namespaces with a cable between them. They are removed at the end of the script,
# because the script runs in its own namespaces.
TWO_HOSTS = """
set -eu
script=$1
shift
mount -t tmpfs tmpfs /run
ip netns add first
ip netns add second
ip link add eth0 netns first type veth peer name eth0 netns second
for host in first second; do
    case $host in first) number=1 ;; *) number=2 ;; esac
    ip -n $host addr add 10.0.0.$number/24 dev eth0
    ip -n $host link set eth0 up
    ip -n $host link set lo up
done
for rank in 1 0; do
    case $rank in 0) host=first ;; *) host=second ;; esac
    ip netns exec $host "$@" --nnodes=2 --node_rank=$rank --nproc_per_node=2 --master_addr=10.0.0.1 \\
        --master_port=29541 "$script" &
    pids="${pids:-} $!"
done
for pid in $pids; do wait $pid; done
"""
APART = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child"]


# The transports of the four workers. If each machine has a hub, all workers reach their hub by shared memory.
@pytest.mark.parametrize("levels, ways", [("auto", ["shm"] * 4), ("flat", ["shm", "shm", "tcp", "tcp"])])
def test_torchrun_on_two_hosts(levels, ways, tmp_path):
    try:
        trial = "mount -t tmpfs tmpfs /run && ip netns add one"
        subprocess.run([*APART, "sh", "-c", trial], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", b"").decode()
        pytest.skip(f"NOT RUN: no network namespaces can be made here (root is needed): {error} {said}")
    script = tmp_path / "train.py"
    script.write_text(TWO_HOSTS_SCRIPT)
    run = subprocess.run(
        [*APART, "sh", "-c", TWO_HOSTS, "hosts", str(script), sys.executable, "-m", "torch.distributed.run", *OUTPUT],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "PHUB_LEVELS": levels},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 0, run.stderr
    lines = sorted(line[line.index("rank ") :] for line in run.stdout.splitlines() if "rank " in line)
    assert lines == [f"rank {rank}: [-6.0, -6.0, -6.0] by {way}" for rank, way in enumerate(ways)]
