"""Uneven inputs: torch's `Join` works with DDP over the hub, by the hook and by the backend, and a `DistributedOptimizer` refuses
it."""

import importlib
import os

import pytest
from conftest import end_gloo, in_processes

torch = pytest.importorskip("torch")

import models  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.algorithms.join import Join  # noqa: E402

import phub.torch  # noqa: E402

HAS_BACKEND = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 4)
WAYS = ["gloo", "hook", "phub"] if HAS_BACKEND else ["gloo", "hook"]


def train(way, store, hub, rank, initial):
    if way == "phub":
        importlib.import_module("phub.c10d")
    os.environ["PHUB_HUB"] = hub
    dist.init_process_group("phub" if way == "phub" else "gloo", f"file://{store}", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(models.fresh("cnn"), bucket_cap_mb=0.005)
    state = None
    if way == "hook":
        state = phub.torch.HubState(hub, rank, 2, job="uneven")
        model.register_comm_hook(state, phub.torch.ddp_hook)
    optimizer = models.optimizer_of("cnn", model)
    losses = []
    with Join([model], divide_by_initial_world_size=initial):
        for inputs, targets in models.batches("cnn", 3 + 3 * rank, rank, 2):
            optimizer.zero_grad()
            loss = models.loss_of(model, inputs, targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    if state is not None:
        state.leave()
    if way == "phub":
        dist.destroy_process_group()
    else:
        end_gloo()
    return losses, models.digest(model)


def uneven(rank, store, hub):
    seen = {}
    for way in WAYS:
        # A hook divides by the number of all workers, as torch's own hooks do.
        for initial in (True,) if way == "hook" else (True, False):
            seen[way, initial] = train(way, f"{store}-{way}-{initial}", hub, rank, initial)
    return seen


def test_workers_with_fewer_inputs_wait_for_the_others(hub, tmp_path):
    both = in_processes(2, uneven, tmp_path / "store", hub.address)
    for rank, seen in enumerate(both):
        assert seen["gloo", True][0] != pytest.approx(seen["gloo", False][0], rel=1e-4) or rank == 0
        for (way, initial), (losses, digest) in seen.items():
            assert len(losses) == 3 + 3 * rank
            assert losses == pytest.approx(seen["gloo", initial][0], rel=1e-4), (way, initial)
            assert digest == both[0][way, initial][1], "all end with the weights of the last one"


def test_an_optimizer_of_the_hub_says_what_to_do_instead(hub):
    model = torch.nn.Linear(2, 2)
    for more in ({}, {"compression": phub.SlimDP(0.5, 0.5, 2)}):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = phub.torch.DistributedOptimizer(optimizer, hub=hub, rank=0, world_size=1, job=f"job-{len(more)}", **more)
        with pytest.raises(phub.OrderError, match=r"Join\(\[optimizer\]\).*zero_grad\(\) and step\(\).*Join\(\[model\]\)"):
            with Join([optimizer]):
                pytest.fail("Join has taken it")
        optimizer.leave()


def zeros_by_hand(rank, hub):
    model = models.fresh("cnn")
    optimizer = phub.torch.DistributedOptimizer(
        models.optimizer_of("cnn", model), model.named_parameters(), hub=hub, rank=rank, world_size=2, job="by-hand"
    )
    batches = list(models.batches("cnn", 3 + 3 * rank, rank, 2))
    losses = []
    for number in range(6):
        optimizer.zero_grad()
        if number < len(batches):
            loss = models.loss_of(model, *batches[number])
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
    optimizer.leave()
    return losses, models.digest(model)


def test_what_it_says_to_do_gives_the_numbers_of_join(hub, tmp_path):
    expected = in_processes(2, train_by_gloo, tmp_path / "store", hub.address)
    seen = in_processes(2, zeros_by_hand, hub.address)
    for (losses, digest), (by_join, _) in zip(seen, expected):
        assert losses == pytest.approx(by_join, rel=1e-4) and digest == seen[0][1]


def train_by_gloo(rank, store, hub):
    return train("gloo", store, hub, rank, True)
