"""The errors of DDP's hook speak of DDP's bucket."""

import os
import re
import signal
import sys

import pytest
from conftest import in_processes

torch = pytest.importorskip("torch")

import phub.torch  # noqa: E402

BUCKET = r"DDP's bucket 0 \({} elements of {}; parameters of shapes {}\)"


@pytest.fixture
def group(tmp_path):
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def backward(hub, model, inputs, **session):
    model = torch.nn.parallel.DistributedDataParallel(model)
    model.register_comm_hook(phub.torch.HubState(hub, 0, session.pop("world_size", 1), **session), phub.torch.ddp_hook)
    model(inputs).sum().backward()


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
    for _ in range(3):  # torch builds its buckets anew after the first
        model(inputs).sum().backward()
    with pytest.raises((RuntimeError, phub.Error), match=BUCKET.format(20, "float32", ".*") + ".*for the test"):
        Stops.apply(model(inputs)).sum().backward()


def other_fails(rank, store, hub, how):
    """Rank 1 is only a session of the hub: so it is the hub's answer that fails, and no call of gloo."""
    if rank == 1:
        session = phub.Session(
            hub, 1, 2, keys={"bucket": phub.Key((20,))}, optimizer=phub.Average(), job="lost-ddp-1"
        )
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        session.close("KeyError: 'x'")
        sys.exit()
    torch.distributed.init_process_group("gloo", f"file://{store}", rank=0, world_size=1)
    words = {"killed": "JobFailedError: .*worker 1 is gone", "fails": "JobFailedError: .*rank 1 failed: KeyError: 'x'"}[how]
    with pytest.raises((RuntimeError, phub.Error)) as error:
        backward(hub, torch.nn.Linear(4, 4), torch.ones(4), world_size=2, job="lost")
    torch.distributed.destroy_process_group()
    text = f"{type(error.value).__name__}: {error.value}"
    for each in (BUCKET.format(20, "float32", ".*"), words.partition(".*")[2]):
        assert re.search(each, text), text


@pytest.mark.parametrize("how, status", [("killed", -9), ("fails", 0)])
def test_a_worker_that_is_lost_or_fails(hub, tmp_path, how, status):
    with pytest.raises(AssertionError) as error:
        in_processes(2, other_fails, tmp_path / "store", hub.address, how)
    assert error.value.args[0].startswith("rank 1"), error.value
