"""Each object has its own job: in a cell that runs twice, a sweep, a GAN, and with several hooks. An optimizer that a script drops
leaves its job."""

import gc
import importlib
import json
import os
import threading
import urllib.request
import weakref

import numpy as np
import pytest
from conftest import end_gloo, in_processes

torch = pytest.importorskip("torch")

import phub.torch  # noqa: E402


def jobs_at(address):
    """Returns the names of the jobs that have members."""
    shown = {"Authorization": f"Bearer {phub._phub.token('read', '*', None)}"}
    with urllib.request.urlopen(urllib.request.Request(f"http://{address}/v1/hub", headers=shown)) as answer:
        return [job["name"] for job in json.load(answer)["jobs"] if job["members"]]


def cell(world, **settings):
    """Does what a notebook's cell or a run of a sweep does: makes a model and an optimizer, and some steps. Returns model,
    optimizer and parameters."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    optimizer = phub.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, **world, **settings)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(3, 5)).sum().backward()
        optimizer.step()
        scheduler.step()
    return model, optimizer, [each.detach().clone() for each in model.parameters()]


def notebook(rank, hub):
    world = {"hub": hub, "rank": rank, "world_size": 2}
    gc.disable()  # an object that a script drops must be freed without the collector of cycles
    first, optimizer, expected = cell(world)
    names = [optimizer.session.job]
    alive = weakref.ref(optimizer)
    model, optimizer, seen = cell(world)  # the same cell again; Python drops the former optimizer after the new one is made
    assert alive() is None
    assert all(torch.equal(one, other) for one, other in zip(seen, expected))
    assert all(type(each) is torch.nn.Parameter for each in first.parameters()), "ordinary again"
    names.append(optimizer.session.job)
    for compression in (phub.Bf16(), phub.SlimDP(0.5, 0.25, 2)):
        alive = weakref.ref(optimizer)
        model, optimizer, seen = cell(world, compression=compression)
        assert alive() is None
        names.append(optimizer.session.job)
    # Two optimizers at the same time, as in a GAN.
    other, critic, _ = cell(world)
    names.append(critic.session.job)
    with phub.Session(**world, keys={"only": (2,)}, optimizer=phub.Average()) as session:
        names.append(session.job)
    assert phub.torch.allreduce_metrics({"rank": rank}, **world) == {"rank": 0.5}
    assert phub.torch.allreduce_metrics({"rank": rank}, **world) == {"rank": 0.5}
    del optimizer, critic, model, other
    return names


def test_each_object_has_a_job_of_its_own_and_a_dropped_one_leaves_it(hub):
    names, others = in_processes(2, notebook, hub.address)
    assert names == others
    first = names[0]
    assert first.startswith("train-") and names[1:] == [f"{first}-{number}" for number in range(2, 7)]
    assert jobs_at(hub.address) == []


def test_a_drop_waits_for_no_other_worker(hub):
    world = {"hub": hub, "world_size": 2, "job": "slow"}
    keys = {"weight": phub.Key((1, 2))}

    def join_other(sessions):
        sessions.append(phub.Session(rank=1, **world, schedule="p3", answers_ahead=True, keys=keys, optimizer=phub.Sgd(0.5)))
        sessions[0].broadcast()

    sessions = []
    other = threading.Thread(target=join_other, args=(sessions,))
    other.start()
    model = torch.nn.Linear(2, 1, bias=False)
    optimizer = phub.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5), model, rank=0, **world)
    other.join()
    before = model.weight.detach().clone()
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    del optimizer  # the other worker has not pushed, so the new values have not arrived
    sessions[0].push_pull("weight", np.ones((1, 2)))
    assert torch.equal(model.weight.detach(), before - 0.5), "a read waits for them, as ever"
    sessions[0].leave()
    next_one = phub.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5), model, hub=hub, rank=0, world_size=1)
    assert "slow" not in jobs_at(hub.address)
    next_one.leave()


def hooks(rank, store, hub):
    """Trains two models with a hook each, drops them, and trains another pair. Returns the sums of the gradients."""
    torch.distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    os.environ["PHUB_HUB"] = hub  # rank and world size are those of the process group
    sums = []
    for _ in range(2):
        pair = []
        for _ in range(2):
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2, bias=False))
            state = phub.torch.HubState()
            model.register_comm_hook(state, phub.torch.ddp_hook)
            pair.append(model)
        for _ in range(2):
            for model in pair:
                model(torch.full((1, 3), float(rank + 1))).sum().backward()
                sums.append(model.module.weight.grad.sum().item())
                model.zero_grad()
        alive = weakref.ref(state)
        del model, state, pair
        gc.collect()  # DDP's objects refer to each other in cycles
        assert alive() is None
    end_gloo()
    return sums


def test_each_hook_has_jobs_of_its_own(hub, tmp_path):
    assert in_processes(2, hooks, tmp_path / "store", hub.address) == [[9.0] * 8] * 2
    assert jobs_at(hub.address) == []


def test_all_buckets_have_one_job(hub, tmp_path):
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    layers = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(12)])
    model = torch.nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=0.001)
    state = phub.torch.HubState(hub, 0, 1, job="many")
    seen = []

    def hook(state, bucket):
        seen.append(bucket.index())
        return phub.torch.ddp_hook(state, bucket)

    model.register_comm_hook(state, hook)
    for _ in range(5):
        seen.clear()
        model(torch.ones(512)).sum().backward()
    assert len(seen) > 10 and len(jobs_at(hub.address)) == 1, (seen, jobs_at(hub.address))
    state.leave()
    end_gloo()
    assert jobs_at(hub.address) == []


def test_values_that_cannot_be_broadcast_are_named(hub):
    world = {"hub": hub, "rank": 0, "world_size": 1}
    for value, words in [
        (None, "'layer.extra' is None; expected a tensor: leave it out.*broadcast_object_list"),
        (3, "'layer.extra' is 3; expected a tensor"),
        ({"scale": 2.0}, "'layer.extra' is {'scale': 2.0}; expected a tensor"),
        (torch.eye(2).to_sparse(), "'layer.extra' is torch.sparse_coo; expected a dense tensor"),
        (torch.ones(1).expand(3), r"'layer.extra' has elements that share memory \(expand\); .* use its clone"),
    ]:
        with pytest.raises(phub.SettingsError, match=words):
            phub.torch.broadcast_parameters({"weight": torch.ones(2), "layer.extra": value}, **world)


def test_a_tensor_can_be_resized_after_a_broadcast(hub):
    tensors = {str(kind): torch.zeros(1, dtype=kind) for kind in (torch.int32, torch.float64, torch.bool, torch.float32)}
    phub.torch.broadcast_parameters(tensors, hub=hub, rank=0, world_size=1)
    for each in tensors.values():
        each.resize_(1000)  # torch's observers of quantization do it in their first pass


def broadcast_of_two_types(rank, hub):
    """Broadcasts integers at rank 0 and floats of the same size at rank 1. Returns the error, and the tensor."""
    tensor = torch.ones(2, dtype=torch.int64 if rank == 0 else torch.float64)
    with pytest.raises(phub.Error) as error:
        phub.torch.broadcast_parameters({"count": tensor}, hub=hub, rank=rank, world_size=2, join_limit=8.0)
    return str(error.value), tensor.tolist()


def test_tensors_of_other_types_than_rank_0s_are_refused(hub):
    for error, values in in_processes(2, broadcast_of_two_types, hub.address):
        assert "count (torch.int64)" in error and "count (torch.float64)" in error
        assert values == [1, 1]


VALUES = [-0.0, float("nan"), 1e-40, 3.0]


def broadcast_twice(rank, hub):
    values = torch.tensor(VALUES) if rank == 0 else torch.zeros(4)
    tensors = {"f32": values, "f16": values.half(), "i64": torch.tensor([2**40 + 1 - rank]), "none": torch.ones(0)}
    phub.torch.broadcast_parameters(tensors, hub=hub, rank=rank, world_size=2)
    assert tensors["f32"].numpy().view("u4").tolist() == [0x80000000, 0x7FC00000, 71362, 0x40400000]
    return tensors["i64"].item(), tensors["f16"].numpy().view("u2").tolist()


def test_a_broadcast_leaves_nothing_with_a_hub_that_has_checkpoints(tmp_path):
    halves = torch.tensor(VALUES).half().numpy().view("u2").tolist()  # versions of torch give NaN other bits
    with phub.serve(cores=1, idle="sleep", checkpoints=tmp_path, checkpoint_every=100) as hub:
        for _ in range(2):
            assert in_processes(2, broadcast_twice, hub.address) == [(2**40 + 1, halves)] * 2
    assert [file.name for file in tmp_path.rglob("*.safetensors")] == []


def sums(rank, hub):
    world = {"hub": hub, "rank": rank, "world_size": 3}
    means = phub.torch.allreduce_metrics({"correct": [1, 2, 4][rank]}, **world)
    with phub.Session(**world, keys={"only": (1,)}, optimizer=phub.Sum()) as session:
        return means["correct"] * 3, session.average({"only": [[1, 2, 4][rank]]})["only"].tolist()


def test_sums_of_whole_numbers_are_exact(hub):
    assert in_processes(3, sums, hub.address) == [(7.0, [7.0])] * 3


def leftovers(rank, hub):
    """Trains with four passes for a step, and drops the last two passes of an epoch. Returns the bytes that each step sent."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3000, 8)
    optimizer = phub.torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model, hub=hub, rank=rank, world_size=2, transport="tcp"
    )
    ways = [optimizer.zero_grad, lambda: model.zero_grad(set_to_none=True), lambda: optimizer.zero_grad(set_to_none=False)]
    sent = []
    for drop in [*ways, *ways]:
        for number in range(6):
            model(torch.ones(4, 3000)).sum().backward()
            if number == 3:
                optimizer.step()
                optimizer.synchronize()
                optimizer.zero_grad(set_to_none=True)
                sent.append(optimizer.session.traffic.sent)
        drop()
    return [after - before for before, after in zip(sent, sent[1:])]


def test_passes_that_are_dropped_do_not_count_in_the_next_epoch(hub):
    for steps in in_processes(2, leftovers, hub.address):
        assert steps == [4 * (3000 * 8 + 8)] * 5, "no bytes are sent twice"


HAS_BACKEND = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 4)


def by_backend(rank, store, hub):
    importlib.import_module("phub.c10d")
    os.environ["PHUB_HUB"] = hub
    torch.distributed.init_process_group("phub", f"file://{store}", rank=rank, world_size=3)
    counts = [torch.tensor([[1.0, 2.0, 4.0][rank]], dtype=dtype) for dtype in (torch.float32, torch.float16)]
    for each in counts:
        torch.distributed.all_reduce(each)
    mean = torch.tensor([float(rank)])
    torch.distributed.all_reduce(mean, torch.distributed.ReduceOp.AVG)
    torch.distributed.destroy_process_group()
    return [each.item() for each in counts], mean.item()


@pytest.mark.skipif(not HAS_BACKEND, reason="phub.c10d needs torch 2.4")
def test_the_backend_sums_whole_numbers_exactly(hub, tmp_path):
    assert in_processes(3, by_backend, tmp_path / "store", hub.address) == [([7.0, 7.0], 1.0)] * 3


def write_what_differs(rank, hub):
    model = torch.nn.Linear(5, 4)
    settings = {"hub": hub, "rank": rank, "world_size": 2, "job": "written", "compare_every": 1000}
    optimizer = phub.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, **settings)
    try:
        for limit in (0.1, 0.01 * (1 + rank)):
            for _ in range(3):
                model(torch.ones(3, 5)).sum().backward()
                optimizer.step()
                with torch.no_grad():
                    model.weight.clamp_(-limit, limit)
    except phub.JobFailedError as error:
        return str(error)


def test_weights_that_scripts_write_differently_are_an_error_if_they_are_compared(hub):
    for seen in in_processes(2, write_what_differs, hub.address):
        assert "workers [0] and [1] wrote different weights in round" in seen
