"""Ray Train on several nodes, each a raylet on this machine: hubs as actors, and a node that is lost."""

import ast
import functools
import importlib.metadata
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from conftest import in_processes

torch = pytest.importorskip("torch")
pytest.importorskip("ray")
pytest.importorskip("ray.train")

import ray.train.torch  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

import phub.c10d  # noqa: E402
import phub.ray  # noqa: E402
import phub.torch  # noqa: E402
from phub import _placed  # noqa: E402

NODES, WORKERS, STEPS, SAVED, LOST = 2, 4, 30, 10, 15
TESTS, EXAMPLES = Path(__file__).parent, Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="module")
def cluster():
    """Three nodes for two workers each. A run uses two nodes, so that one node may be lost."""
    few = {"RAY_TRAIN_ENABLE_STATE_TRACKING": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_prestart_worker_first_driver": "0"}
    slow = {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600", "PHUB_IDLE": "sleep", "PHUB_HEARTBEAT_LIMIT_S": "60"}
    path = os.pathsep.join([str(TESTS), str(EXAMPLES), os.environ.get("PYTHONPATH", "")])
    before = dict(os.environ)
    os.environ.update(few, **slow, PYTHONPATH=path, OMP_NUM_THREADS="1")
    node = {"num_cpus": 2, "num_gpus": 0, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    cluster = Cluster()  # the kernel kills its processes when this process ends
    try:
        cluster.add_node(wait=False, resources={"hub": 1}, **node)
        for _ in range(NODES):
            cluster.add_node(wait=False, **node)
        cluster.wait_for_nodes(timeout=120)
        ray.init(address=cluster.address)
        print(f"ray {importlib.metadata.version('ray')}, torch {torch.__version__}")
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture
def watchdog_s():
    """Ray starts some ten processes for a run, and each of them imports torch."""
    return 1800


def train(number, at_step=lambda optimizer, step: None, **where):
    """Trains one worker. Returns its first step, and its weights after the last step."""
    torch.set_num_threads(1)  # Ray's workers and forked processes then add in the same order
    torch.manual_seed(7)
    inputs = torch.randn(64, 20)
    targets = inputs[:, :5].argmax(1)
    model = torch.nn.Linear(20, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    optimizer = phub.torch.DistributedOptimizer(optimizer, model.named_parameters(), **where)
    first = optimizer.session.next_round - 1
    for step in range(first, STEPS):
        at_step(optimizer, step)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs[number::WORKERS]), targets[number::WORKERS]).backward()
        optimizer.step()
    optimizer.leave()
    return first, [parameter.tolist() for parameter in model.parameters()]


def train_by_hand(rank, hubs):
    machine, local = divmod(rank, WORKERS // NODES)
    return train(rank, hub=hubs[machine], rank=local, world_size=WORKERS // NODES, mesh=f"{machine}/{NODES}@{hubs[0]}")


def train_on_one_hub(rank, hub):
    return train(rank, hub=hub, rank=rank, world_size=WORKERS)


def train_by_ddp(rank):
    """Trains one worker by DDP. Returns the number of all-reduces at the hub, and the weights after the last step."""
    torch.manual_seed(7)
    inputs = torch.randn(64, 20)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(20, 5))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(inputs[rank::WORKERS]).square().mean().backward()
        optimizer.step()
    return phub.c10d.counts()["hub"]["allreduce"], [parameter.tolist() for parameter in model.parameters()]


def run_by_ray(tmp_path, name, work, failures=0, **hubs):
    """Runs `work(rank)` by Ray Train on each rank, and returns the results."""

    def train_here():
        rank = ray.train.get_context().get_world_rank()
        (tmp_path / str(rank)).write_text(repr(work(rank)))

    failure = ray.train.FailureConfig(max_failures=failures)
    ray.train.torch.TorchTrainer(
        train_here,
        torch_config=phub.ray.HubConfig(**hubs),
        scaling_config=ray.train.ScalingConfig(num_workers=WORKERS),
        run_config=ray.train.RunConfig(name=name, storage_path=str(tmp_path), failure_config=failure),
    ).fit()
    return [ast.literal_eval((tmp_path / str(rank)).read_text()) for rank in range(WORKERS)]


def test_hubs_on_nodes_that_have_a_resource(tmp_path, cluster, hub):
    [expected] = {repr(seen) for seen in in_processes(WORKERS, train_on_one_hub, hub.address)}
    assert {repr(seen) for seen in run_by_ray(tmp_path, "one hub", train, resource="hub")} == {expected}


def test_ddp_by_the_hubs_of_a_mesh(tmp_path, cluster):
    ended = run_by_ray(tmp_path, "ddp", train_by_ddp, backend="phub")
    assert [means for means, _ in ended] == [STEPS] * WORKERS
    assert len({repr(weights) for _, weights in ended}) == 1


def test_example(tmp_path, cluster):
    environment = {**os.environ, "RAY_ADDRESS": cluster.address}
    run = [sys.executable, str(EXAMPLES / "with_ray.py"), str(tmp_path)]
    said = subprocess.run(run, env=environment, cwd=tmp_path, text=True, stdout=subprocess.PIPE, check=True).stdout
    [loss] = re.findall(r"loss after 40 steps: (\S+)", said)
    assert float(loss) < 0.8, said  # it begins at 1.6
    assert [each.name for each in tmp_path.glob("hubs/with_ray/hubs-*/0/*.safetensors")], "no checkpoint"


def test_a_checkpoint_of_another_number_of_hubs_is_refused(tmp_path):
    for number in range(2):
        Path(_placed._own(str(tmp_path), number, 2), f"job@7.hub{number}of2.safetensors").touch()
    with pytest.raises(phub.SettingsError, match="hubs-2 has this run's checkpoint.* this attempt's 3"):
        _placed._own(str(tmp_path), 0, 3)


def test_a_run_goes_on_from_the_hubs_checkpoint_when_a_node_is_lost(tmp_path, cluster, hubs, capfd):
    [expected] = {repr(seen) for seen in in_processes(WORKERS, train_by_hand, [hub.address for hub in hubs])}
    waits, chosen, gone = tmp_path / "waits", tmp_path / "chosen", tmp_path / "gone"
    os.mkfifo(waits)
    # Ray chooses the nodes of the workers. The head node must not be lost, because the cluster ends with it.
    nodes = [each.node_id for each in cluster.worker_nodes]

    def is_chosen():
        try:
            chosen.mkdir()
        except FileExistsError:
            return False
        return True

    def at_step(optimizer, step):
        attempt_is_first = not gone.exists()
        if step == SAVED and attempt_is_first and optimizer.session.rank == 0:
            for parameter in optimizer.param_groups[0]["params"]:
                parameter.tolist()  # waits for the step before, which other workers may not have made yet
            optimizer.session.checkpoint()
        node = ray.get_runtime_context().get_node_id()
        if step == LOST and attempt_is_first and node in nodes and is_chosen():
            waits.write_text(node)
            threading.Event().wait()

    lost = []

    def lose():
        lost.append(waits.read_text())
        gone.touch()
        [node] = [each for each in cluster.worker_nodes if each.node_id == lost[0]]
        cluster.remove_node(node, allow_graceful=False)

    operator = threading.Thread(target=lose, daemon=True)
    operator.start()
    work = functools.partial(train, at_step=at_step)
    ended = run_by_ray(tmp_path, "goes on", work, failures=1, checkpoints=str(tmp_path / "hubs"))
    operator.join(timeout=60)
    assert lost, "no worker has waited for the loss of its node"
    # The result equals the result of a run in which no node is lost.
    assert {repr((0, weights)) for _, weights in ended} == {expected}
    # The hub of the lost node may see a lost worker, and save the failed job, before it is killed itself.
    [first] = {first for first, _ in ended}
    assert first in (SAVED, LOST)
    said = "".join(capfd.readouterr())
    assert f"on Ray's node {lost[0]} is lost" in said, said


def test_a_resource_that_no_node_has(tmp_path, cluster):
    # This test is the last, because Ray 2.60 without a dashboard does not release the resources of a run whose backend fails to
    # start.
    with pytest.raises(ray.train.TrainingFailedError, match="no node of Ray's has the resource 'none'"):
        run_by_ray(tmp_path, "no hub", train, resource="none")
