"""`phub.torch.observe` names the rank that slows down a job of DDP over gloo, and in which part of the step the rank is slow."""

import copy
import dataclasses
import json
import logging
import pickle
import subprocess
import sys
import threading
import time
import urllib.request

import numpy as np
import pytest
from conftest import end_gloo, in_processes

torch = pytest.importorskip("torch")

from test_torch_optimizer import Net, backward, data  # noqa: E402

import phub.torch  # noqa: E402
from phub.torch._observe import _hook, late  # noqa: E402

RANKS = 3
SLOW = 2
SLEEP_S = 0.15  # longer than the delays of a busy machine


class Sleeps(torch.autograd.Function):
    """The identity, whose backward pass sleeps."""

    @staticmethod
    def forward(ctx, values, seconds):
        ctx.seconds = seconds
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None


class Slow(Net):
    """A net that is slow in one part of a step. One rank uses it."""

    def __init__(self, part, seconds):
        super().__init__()
        self.part, self.seconds = part, seconds

    def forward(self, inputs):
        if self.part == "forward":
            time.sleep(self.seconds)
        hidden = torch.relu(self.first(inputs))
        return self.second(Sleeps.apply(hidden, self.seconds) if self.part == "backward" else hidden)


def group(rank, file, ranks):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{file}", rank=rank, world_size=ranks)


def observed(rank, hub, file):
    """Trains once for each of `RUNS`. Returns for each run the late rank, the text, the times, and the hub's last verdict."""
    group(rank, file, RANKS)
    return {name: run_of(rank, hub, *settings) for name, settings in RUNS.items()}


def run_of(rank, hub, part, steps, passes, wrapped=torch.nn.parallel.DistributedDataParallel):
    model = wrapped(Slow(part, SLEEP_S if rank == SLOW else 0.0))
    observer = phub.torch.observe(model, hub=hub, rank=rank, world_size=RANKS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        if step == 20:
            verdict_of(hub, observer.session.job)  # the hub knows the speed of rounds only from the second request on
        if part == "data" and rank == SLOW:
            time.sleep(SLEEP_S)
        for number in range(passes - 1):
            with model.no_sync():
                backward(model, *data(number))
        backward(model, *data(step))
        optimizer.step()
        optimizer.zero_grad()
    torch.distributed.barrier()
    observer._rows.finish()  # returns when all answers have arrived
    found, words, seen = observer.late, str(observer), observer.times
    # The hub measures the speed of rounds between two requests. A shorter run ends before the first request.
    verdict = seen_again(hub, observer.session.job) if steps > 20 else None
    torch.distributed.barrier()
    observer.leave()
    return (None if found is None else tuple(found)), words, [each.tolist() for each in seen], verdict


def seen_again(hub, job):
    """Returns the verdict after the hub has seen the job's last rounds. The hub looks every few seconds."""
    until = time.monotonic() + 60
    while "look again" in (verdict := verdict_of(hub, job)) and time.monotonic() < until:
        time.sleep(0.1)
    return verdict


def verdict_of(hub, job):
    shown = {"Authorization": f"Bearer {phub._phub.token('read', '*', None)}"}
    with urllib.request.urlopen(urllib.request.Request(f"http://{hub}/v1/hub", headers=shown)) as answer:
        return next(each for each in json.load(answer)["jobs"] if each["name"] == job)["verdict"]


WORDS = {"data": "before its forward pass", "forward": "in its forward pass", "backward": "in its backward pass"}

RUNS = {
    # The slow part, the number of steps, and the number of passes in a step.
    "data": ("data", 10, 1),
    "forward": ("forward", 10, 1),
    "backward": ("backward", 10, 1),
    "without sync": ("backward", 10, 3),
    "long": ("backward", 40, 1),
}


def test_a_slow_rank_is_named_with_its_part_within_ten_steps(hub, tmp_path):
    results = in_processes(RANKS, observed, hub.address, tmp_path / "store")
    for part in WORDS:
        check_part(results, part)
    *_, verdict = results[0]["long"]
    assert f"waiting for rank {SLOW}: last in " in verdict, "the hub's page names it, too"
    found, _, seen, _ = results[0]["without sync"]
    assert len(seen) == 9, "passes without sync count to the step behind them"
    assert found[0] == SLOW and found[5] > 3 * SLEEP_S


def check_part(results, part):
    assert len({str(each[part][:3]) for each in results}) == 1, "all ranks know the same"
    found, words, seen, _ = results[0][part]
    found = phub.torch.Late(*found)
    assert (found.rank, found.of, found.part) == (SLOW, 9, WORDS[part])
    assert found.steps >= 8 and found.by > SLEEP_S / 2 and found.own > SLEEP_S
    assert words.startswith(f"rank {SLOW} is late: last in {found.steps} of 9 steps, by ") and f"most of it {WORDS[part]} (" in words
    seen = np.array(seen)
    assert seen.shape == (9, RANKS, 4) and (seen >= 0).all()
    waiting = np.median(seen[1:, :, 3], axis=0)
    assert waiting[SLOW] < waiting[0] / 2, "the others wait for it, and it does not wait for them"


def sharded(model):
    from torch.distributed.fsdp import fully_shard

    mesh = torch.distributed.init_device_mesh("cpu", (RANKS,))
    fully_shard(model.first, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def observed_shards(rank, hub, file):
    """Trains a model of FSDP with slow data, and with a slow backward pass. Returns the late rank and the times of both."""
    group(rank, file, RANKS)
    return [run_of(rank, hub, part, 10, 1, sharded) for part in ("data", "backward")]


def test_in_a_model_of_fsdp_the_rank_with_slow_data_is_named(hub, tmp_path):
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 7):
        pytest.skip(f"fully_shard in host memory needs torch 2.7 or later, and this is {torch.__version__}")
    results = in_processes(RANKS, observed_shards, hub.address, tmp_path / "store")
    for (of_data, _, _, _), (of_backward, _, seen, _) in results:
        found = phub.torch.Late(*of_data)
        assert (found.rank, found.part) == (SLOW, WORDS["data"]) and found.by > SLEEP_S / 2
        # All ranks wait for the slow pass, so its rank is not known.
        assert of_backward is None and np.median(np.array(seen)[:, :, 3]) > SLEEP_S / 2


def test_nobody_is_late_where_all_are_as_fast():
    times = np.full((20, 4, 4), 0.01, np.float32)
    times[:, :, 2] += np.arange(4) * 1e-4
    assert late(times) is None


def test_of_two_ranks_the_slower_one_is_late():
    times = np.full((20, 2, 4), 0.01, np.float32)
    times[:, :, 2] = 0.05  # equally long on both ranks
    times[:, 1, 0] += 0.02
    found = late(times)
    assert (found.rank, found.part) == (1, "before its forward pass")
    assert found.by == pytest.approx(0.02) and found.own == pytest.approx(0.03) and found.median == pytest.approx(0.01)


def test_a_rank_that_is_slow_in_some_steps_is_named_if_they_cost_enough():
    times = np.full((50, 4, 4), 0.01, np.float32)
    times[::10, 3, 1] += 1.0
    found = late(times)
    assert (found.rank, found.steps, found.of) == (3, 5, 50)
    times[::10, 3, 1] -= 0.99
    assert late(times) is None, "two per cent of the time"


def survives(rank, hub, file):
    """Trains, also after the hub has stopped. Returns the observer's text, the log, and the weights."""
    group(rank, file, 2)
    model = torch.nn.parallel.DistributedDataParallel(Net())
    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logging.getLogger("phub").addHandler(handler)
    if rank == 0:
        hub = phub.serve(cores=1)
    address = [hub.address if rank == 0 else None]
    torch.distributed.broadcast_object_list(address)
    observer = phub.torch.observe(model, hub=address[0], rank=rank, world_size=2, hub_wait=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(8):
        if step == 3:
            torch.distributed.barrier()
            if rank == 0:
                hub.stop()
            torch.distributed.barrier()
        optimizer.zero_grad()
        backward(model, *data(step))
        optimizer.step()
    observer.leave()
    words = str(observer)
    end_gloo()
    return words, records, [each.tolist() for each in model.parameters()]


def test_training_goes_on_without_the_hub(tmp_path):
    first, second = in_processes(2, survives, None, tmp_path / "store")
    for words, records, _ in (first, second):
        assert words.startswith("the observation has ended: ")
        assert sum("the observation has ended, and training continues" in each for each in records) == 1
    assert first[-1] == second[-1]


def test_a_hub_that_does_not_answer_ends_observing_and_not_training(hub):
    models, observers = [torch.nn.Linear(2, 1) for _ in range(2)], [None, None]

    def join(rank):
        observers[rank] = phub.torch.observe(models[rank], hub=hub, rank=rank, world_size=2)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(1005):  # the first five rows are sent, and are not answered, because rank 1 makes no step
        models[0](torch.ones(1, 2)).backward()
    assert str(observers[0]) == "no verdict yet: 0 of 5 steps"
    models[0](torch.ones(1, 2)).backward()
    assert str(observers[0]).startswith("the observation has ended: the hub has not answered for 1000 steps")
    models[0](torch.ones(1, 2)).backward()
    observers[0].leave()
    observers[1].leave()  # it may not know yet that rank 0 has left


class Fails(torch.autograd.Function):
    """The identity, whose backward pass fails."""

    @staticmethod
    def forward(ctx, values):
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("it fails")


def test_a_step_that_fails_and_one_without_gradients_are_no_steps(hub, caplog):
    model = torch.nn.Linear(2, 1)
    observer = phub.torch.observe(model, hub=hub, rank=0, world_size=1)
    inputs, seen = torch.ones(1, 2), []
    for _ in range(5):
        with pytest.raises(RuntimeError, match="it fails"):
            model(Fails.apply(inputs.clone().requires_grad_())).backward()
        with torch.no_grad():
            model(inputs)
        for _ in range(2):
            output = model(inputs)
            output.register_hook(seen.append)
            (output + model(inputs)).backward()
    observer._rows.finish()
    assert len(seen) == 10, "the script's own hook is called once in its step"
    assert len(observer.times) == 9, "ten steps of two forward passes, without the first step"
    assert all((each >= 0).all() for each in observer.times)
    observer.leave()
    assert not model._forward_hooks and not model._forward_pre_hooks
    del observer
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING], "it has left only once"


LOADED_WITHOUT_PHUB = """
import sys, torch
sys.modules["phub"] = None
model = torch.load(sys.argv[1], weights_only=False)
model(torch.zeros(1, 6)).sum().backward()
"""


def test_a_copy_of_an_observed_model_is_a_model_that_nobody_observes(hub, tmp_path):
    model, path = Net(), tmp_path / "model.pt"
    observer = phub.torch.observe(model, hub=hub, rank=0, world_size=1)
    backward(model, *data(0))
    torch.save(model, path)
    for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(path, weights_only=False)):
        made.zero_grad()
        backward(made, *data(0))
        assert len(observer._rows.passes) == 1
        for own, copied in zip(model.parameters(), made.parameters()):
            assert torch.equal(own.grad, copied.grad)
    backward(model, *data(1))
    assert len(observer._rows.passes) == 2, "the model itself is observed"
    observer.leave()
    made = torch.nn.Sequential(torch.nn.Linear(6, 4))
    observer = phub.torch.observe(made, hub=hub, rank=0, world_size=1)
    torch.save(made, path)
    observer.leave()
    script = [sys.executable, "-c", LOADED_WITHOUT_PHUB, path]
    subprocess.run(script, check=True, timeout=60)


@dataclasses.dataclass
class Outputs:
    loss: object


@pytest.mark.parametrize("form", [Outputs, lambda tensor: tensor, lambda tensor: [None, (tensor,)], lambda tensor: {"loss": tensor}])
@pytest.mark.parametrize("kind", [torch.Tensor, torch.nn.Parameter])
def test_a_tensor_in_outputs_of_any_form_is_hooked(form, kind):
    leaf, calls = torch.nn.Parameter(torch.ones(2)), []
    tensor = leaf if kind is torch.nn.Parameter else leaf * 2
    for _ in range(2):  # the second hook is of a tensor that has a hook
        _hook(form(tensor), calls.append)
    _hook(form(torch.ones(2)), calls.append)  # has no gradient
    tensor.sum().backward()
    assert len(calls) == 2
