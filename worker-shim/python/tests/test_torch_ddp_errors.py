"""The errors of DDP's hook describe the bucket that failed."""

import os
import queue
import re
import signal

import pytest
from conftest import end_gloo, in_processes

torch = pytest.importorskip("torch")

import phub.torch  # noqa: E402

BUCKET = r"DDP's bucket 0 \({} elements of {}; parameters of shapes {}\)"


@pytest.fixture
def group(tmp_path):
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    end_gloo()


def backward(hub, model, inputs, **session):
    model = torch.nn.parallel.DistributedDataParallel(model)
    model.register_comm_hook(phub.torch.HubState(hub, 0, 1, **session), phub.torch.ddp_hook)
    model(inputs).sum().backward()


@pytest.mark.parametrize("setting", [{"clip_norm": 1.0}, {"clip_norm_last": 1.0}, {"skip_nonfinite": True}, {"skip_spikes": 3.0}])
def test_settings_that_need_the_whole_gradient(setting):
    # A skipped bucket would have the mean of the previous step.
    [name] = setting
    with pytest.raises(phub.SettingsError, match=f"HubState: {name}=.* needs the whole gradient"):
        phub.torch.HubState("127.0.0.1:1", 0, 1, **setting)
    with pytest.raises(phub.SettingsError, match=f"Replicas: {name}=.* needs the whole gradient"):
        phub.torch.Replicas(torch.nn.Linear(2, 2), None, hub="127.0.0.1:1", **setting)
    phub.torch.HubState("127.0.0.1:1", 0, 1, skip_nonfinite=False, clip_norm=None)


def test_numbers_that_the_hub_does_not_take(hub, group):
    words = BUCKET.format(20, "float64", r"\(4, 4\), \(4,\)") + ": the hub averages .*model.float.*DDP averages torch.float64 by itself"
    with pytest.raises((RuntimeError, phub.SettingsError), match=words):
        backward(hub, torch.nn.Linear(4, 4).double(), torch.ones(4).double())


def test_many_parameters_are_not_all_named(hub, group):
    layers = torch.nn.Sequential(*[torch.nn.Linear(2, 2, bias=False) for _ in range(6)]).double()
    words = BUCKET.format(24, "float64", r"\(2, 2\), \(2, 2\), \(2, 2\), \(2, 2\) and 2 more")
    with pytest.raises((RuntimeError, phub.SettingsError), match=words):
        backward(hub, layers, torch.ones(2).double())


def test_sparse_gradients(hub, group):
    with pytest.raises((RuntimeError, phub.SettingsError), match=BUCKET.format(6, "float32", r"\(3, 2\)") + ".*sparse=False"):
        backward(hub, torch.nn.Embedding(3, 2, sparse=True), torch.tensor([1, 2]))


def test_a_hub_that_is_not_there(group):
    with pytest.raises((RuntimeError, phub.UnreachableError), match=BUCKET.format(20, "float32", ".*") + ": .*is phub-server running there"):
        backward("127.0.0.1:1", torch.nn.Linear(4, 4), torch.ones(4), hub_wait=0.0)


def test_two_models_with_one_state(hub, group):
    state, models = phub.torch.HubState(hub, 0, 1), []
    for _ in range(2):
        models.append(torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4)))
        models[-1].register_comm_hook(state, phub.torch.ddp_hook)
        models[-1](torch.ones(4)).sum().backward()  # after two equal passes, one job has all buckets
    state._answers = queue.SimpleQueue()  # as if the first mean had not come yet
    words = BUCKET.format(20, "float32", ".*") + ": its mean .* has not arrived: two models share a HubState"
    with pytest.raises((RuntimeError, phub.OrderError), match=words):
        (models[0](torch.ones(4)) + models[1](torch.ones(4))).sum().backward()


def test_a_hub_that_is_lost(group):
    hub = phub.serve(cores=1, idle="sleep")

    class Stops(torch.autograd.Function):
        @staticmethod
        def forward(_context, values):
            return values.clone()

        @staticmethod
        def backward(_context, gradients):
            hub.stop("for the test")
            return gradients

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    model.register_comm_hook(phub.torch.HubState(hub, 0, 1), phub.torch.ddp_hook)
    inputs = torch.ones(4, requires_grad=True)
    for _ in range(5):  # torch builds its buckets again after the first pass
        model(inputs).sum().backward()
    with pytest.raises((RuntimeError, phub.Error), match=BUCKET.format(20, "float32", ".*") + ".*for the test"):
        Stops.apply(model(inputs)).sum().backward()


def other_fails(rank, store, hub, how, passes):
    """Trains in a process group of this worker alone, so that only the hub's answer fails."""
    torch.distributed.init_process_group("gloo", f"file://{store}-{rank}", rank=0, world_size=1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    state = phub.torch.HubState(hub, rank, 2, job="lost", join_limit=3.0)
    model.register_comm_hook(state, phub.torch.ddp_hook)
    for _ in range(passes):
        model(torch.ones(4)).sum().backward()
    if rank == 1 and how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1 and how == "leaves":
        state.leave()
        return
    with pytest.raises((RuntimeError, phub.Error)) as error:
        model(torch.ones(4)).sum().backward()
    end_gloo()
    words = {
        ("killed", 1): r"MissingWorkersError: .*for worker\(s\) \[1\] of 2 to join",
        ("killed", 5): "JobFailedError: .*worker 1 is gone",
        ("leaves", 5): "PeerLeftError: .*worker 1 left before round 3",
    }[how, passes]
    text = f"{type(error.value).__name__}: {error.value}"
    for each in (BUCKET.format(20, "float32", ".*"), words):
        assert re.search(each, text), text


# In the first passes each bucket has its own job.
@pytest.mark.parametrize("how, passes", [("killed", 1), ("killed", 5), ("leaves", 5)])
def test_a_worker_that_is_lost_or_leaves(hub, tmp_path, how, passes):
    work = (2, other_fails, tmp_path / "store", hub.address, how, passes)
    if how == "leaves":
        in_processes(*work)
        return
    with pytest.raises(AssertionError, match="rank 1: it ended without a word, status -9"):
        in_processes(*work)
