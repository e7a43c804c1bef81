"""Tests scripts that use gradients before `step()`, for example to clip them. The script sees the same means as with DDP. The
gradients are still sent during the backward pass."""

import concurrent.futures
import contextlib
import re
import warnings

import numpy as np
import pytest
from conftest import end_gloo, in_processes

torch = pytest.importorskip("torch")

import phub.torch  # noqa: E402
from phub.torch._pushes import Mean  # noqa: E402

WIDE = ("first.weight", "second.weight")  # small keys are not sent ahead


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = torch.nn.Linear(64, 512), torch.nn.Linear(512, 64)

    def forward(self, inputs):
        return self.second(torch.relu(self.first(inputs)))


def on_threads(workers, work):
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, range(workers)))


def backward(model, rank, number):
    generator = torch.Generator().manual_seed(10 * number + rank)
    model(torch.randn(4, 64, generator=generator)).square().mean().backward()


def clip(model):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)


def clips(called, model, optimizer, rank):
    for number in range(4):
        optimizer.zero_grad(set_to_none=True)
        backward(called, rank, number)
        yield
        clip(model)
        optimizer.step()


def keeps_its_gradients(called, model, optimizer, rank):
    for number in range(4):
        optimizer.zero_grad(set_to_none=False)
        backward(called, rank, number)
        yield
        clip(model)
        optimizer.step()


def clips_sometimes(called, model, optimizer, rank):
    for number in range(6):
        optimizer.zero_grad(set_to_none=True)
        backward(called, rank, number)
        yield
        if number % 3:
            clip(model)
        optimizer.step()


def has_several_passes(called, model, optimizer, rank):
    number = 0
    for passes in (2, 1, 3, 3, 2):
        optimizer.zero_grad(set_to_none=True)
        for _ in range(passes):
            backward(called, rank, number)
            number += 1
        yield
        clip(model)
        optimizer.step()


def clips_twice(called, model, optimizer, rank):
    for number in range(4):
        optimizer.zero_grad(set_to_none=True)
        backward(called, rank, 2 * number)
        yield
        clip(model)
        backward(called, rank, 2 * number + 1)
        clip(model)
        optimizer.step()


def train(rank, work, hub, transport, file):
    """Returns the weights with the hub, with and without overlap, and with DDP. Also returns how many bytes of the wide keys the
    backward pass of each step sent for the mean."""
    torch.distributed.init_process_group("gloo", f"file://{file}", rank=rank, world_size=2)
    weights, left, sent = [], [], set()
    send_ahead = Mean.send_ahead
    Mean.send_ahead = lambda mean, gradients: (sent.update(gradients), send_ahead(mean, gradients))[1]
    for job, overlap in (("overlap", True), ("none", False), ("ddp", None)):
        model = called = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if overlap is None:
            called = torch.nn.parallel.DistributedDataParallel(model)
        else:
            place = {"hub": hub, "rank": rank, "world_size": 2, "job": job, "transport": transport}
            optimizer = phub.torch.DistributedOptimizer(optimizer, model, overlap=overlap, **place)
        sent.clear()
        for _ in work(called, model, optimizer, rank):
            left.append(len(sent.intersection(WIDE)))
            sent.clear()
        weights.append([each.detach().clone().numpy() for each in model.parameters()])
        if overlap is not None:
            optimizer.leave()
    end_gloo()
    return weights, left


@pytest.mark.parametrize(
    "work, ahead",
    [
        (clips, [0, 2, 2, 2]),
        (keeps_its_gradients, [0, 2, 2, 2]),
        (clips_sometimes, [0, 0, 2, 2, 0, 2]),
        (has_several_passes, [0, 0, 2, 2, 0]),
        (clips_twice, [0, 0, 2, 2]),
    ],
)
def test_means_are_those_of_ddp_and_leave_in_the_backward_pass(hub, tmp_path, work, ahead):
    results = in_processes(2, train, work, hub.address, "tcp", tmp_path / "store")
    for (overlapped, apart, ddp), left in results:
        for ours, same, theirs in zip(overlapped, apart, ddp):
            np.testing.assert_array_equal(ours, same)
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)
        assert left == ahead + [0] * (2 * len(ahead))
    np.testing.assert_array_equal(results[0][0][0][0], results[1][0][0][0])


# The largest difference of the weights from torch's weights after 200 steps, divided by the norm of the weights. The last bits of
# sums differ. If a gradient of Adam is near 0, the last bits decide the sign of a step.
OF_TORCH = 1e-3
OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.001),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.001, weight_decay=0.1),
}


def clipped_by_the_hub(rank, hub, file):
    """Returns the weights and norms with each optimizer: with the hub's clipping, and with DDP's."""
    torch.distributed.init_process_group("gloo", f"file://{file}", rank=rank, world_size=4)
    found = []
    for name, make in OPTIMIZERS.items():
        ours, theirs = Net(), Net()
        place = {"hub": hub, "rank": rank, "world_size": 4, "job": name}
        optimizer = phub.torch.DistributedOptimizer(make(ours.parameters()), ours, clip_norm=0.02, **place)
        ddp, its_optimizer = torch.nn.parallel.DistributedDataParallel(theirs), make(theirs.parameters())
        norms = []
        for number in range(200):
            for each in (optimizer, its_optimizer):
                each.zero_grad()
            backward(ours, rank, number)
            optimizer.step()
            backward(ddp, rank, number)
            norms.append((optimizer.grad_norm, torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.02).item()))
            its_optimizer.step()
        weights = [[each.detach().numpy().copy() for each in model.parameters()] for model in (ours, theirs)]
        found.append((norms, *weights))
        optimizer.leave()
    end_gloo()
    return found


def test_200_steps_that_the_hub_clips_are_those_of_ddp_on_four_ranks(hub, tmp_path):
    for of_rank in in_processes(4, clipped_by_the_hub, hub.address, tmp_path / "store"):
        for norms, ours, theirs in of_rank:
            np.testing.assert_allclose(*zip(*norms), rtol=1e-3)
            assert 20 < sum(norm > 0.02 for norm, _ in norms), "the bound changes steps"
            for our, their in zip(ours, theirs):
                assert np.linalg.norm(our - their) <= OF_TORCH * np.linalg.norm(their)


def warned(rank, hub):
    """Returns the warnings of a script that clips, and of a script that reads gradients."""
    found = []
    for job, use in (("clips", clip), ("reads", lambda model: model.first.bias.grad.sum())):
        model = Net()
        place = {"hub": hub, "rank": rank, "world_size": 2, "job": job}
        optimizer = phub.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, **place)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for number in range(2):
                backward(model, rank, number)
                use(model)
                optimizer.step()
        found.append([str(each.message) for each in caught if "phub" in each.filename])
        optimizer.leave()
    return found


def test_rank_0_says_once_how_to_clip_without_the_exchange(hub):
    (clipping, reading), others = in_processes(2, warned, hub.address)
    (words,) = clipping
    assert words.startswith("test_torch_means.py:") and "clip_norm=" in words
    assert reading == [] and others == [[], []]


def written_by_a_view(called, model, optimizer, rank):
    views = []
    # The hook runs when the bytes of the second layer are sent.
    hook = model.first.bias.register_hook(lambda _: [each.mul_(2.0) for each in views].clear())
    for number in range(4):
        optimizer.zero_grad(set_to_none=False)
        backward(called, rank, number)
        yield
        clip(model)
        views = views or [model.second.weight.grad.data]
        optimizer.step()
    hook.remove()


def test_a_write_by_a_view_after_the_bytes_have_left_counts(hub, tmp_path):
    results = in_processes(2, train_alone, hub.address)
    ours, same, once = results[0]
    np.testing.assert_array_equal(ours, same)
    assert not np.array_equal(ours, once), "the view was written"


def train_alone(rank, hub):
    found = []
    for job, overlap, work in (("overlap", True, written_by_a_view), ("none", False, written_by_a_view), ("once", False, clips)):
        model = Net()
        place = {"hub": hub, "rank": rank, "world_size": 2, "job": job, "transport": "tcp"}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = phub.torch.DistributedOptimizer(optimizer, model, overlap=overlap, **place)
        for _ in work(model, model, optimizer, rank):
            pass
        found.append(model.second.weight.detach().clone().numpy())
        optimizer.leave()
    return found


@pytest.mark.parametrize("passes", [(1, 1, 1), (1, 2, 3, 1)])
def test_each_sum_of_passes_is_clipped_by_value_once(hub, passes):
    models = {overlap: Net() for overlap in (True, False, None)}
    for overlap, model in models.items():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if overlap is not None:
            place = {"hub": hub, "rank": 0, "world_size": 1, "job": str(overlap), "transport": "tcp"}
            optimizer = phub.torch.DistributedOptimizer(optimizer, model, clip_value=1e-4, overlap=overlap, **place)
        for step, count in enumerate(passes):
            optimizer.zero_grad(set_to_none=True)
            for number in range(count):
                backward(model, 0, 10 * step + number)
            if overlap is None:
                torch.nn.utils.clip_grad_value_(model.parameters(), 1e-4)
            optimizer.step()
    for ours, same, theirs in zip(*(model.parameters() for model in models.values())):
        torch.testing.assert_close(ours, same, rtol=0, atol=0)
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_gradients_that_were_read_after_a_step_do_not_end_the_clipping_by_value(hub, transport):
    def work(rank):
        net = torch.nn.Linear(64, 512, bias=False)
        place = {"hub": hub.address, "rank": rank, "world_size": 2, "job": transport, "transport": transport}
        optimizer = phub.torch.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1.0), net, clip_value=0.1, **place)
        moved = []
        for _ in range(3):
            before = net.weight.detach().clone()
            optimizer.zero_grad(set_to_none=True)
            net(torch.ones(1, 64)).sum().backward()
            optimizer.step()
            net.weight.grad.norm()
            moved.append((net.weight.detach() - before).mean().item())
        optimizer.leave()
        return moved

    for moved in on_threads(2, work):
        np.testing.assert_allclose(moved, [-0.1] * 3, rtol=1e-4)


def kept_over_zero_grad(model, optimizer, rank):
    backward(model, rank, 0)
    kept = model.first.weight.grad
    optimizer.zero_grad(set_to_none=True)
    backward(model, rank, 1)
    kept.norm()


def seen_as_none(model, optimizer, rank):
    # Each rank uses one layer only.
    (model.first.weight if rank == 0 else model.second.weight).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def at_another_line(model, optimizer, rank):
    backward(model, rank, 0)
    model.first.weight.grad.norm()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    backward(model, rank, 1)
    if rank == 0:
        model.first.weight.grad.norm()


@pytest.mark.parametrize(
    "work, words",
    [
        (kept_over_zero_grad, r"^test_torch_means.py:\d+: a gradient is used here that was kept .* p.grad.clone\(\)"),
        (seen_as_none, r"^test_torch_means.py:\d+: .* parameter '(first|second).weight' has a gradient on another worker only"),
        (at_another_line, r"^test_torch_means.py:\d+: gradients are used here, where DDP would have the mean of all workers"),
    ],
)
def test_gradients_that_are_no_means_are_an_error_at_their_line(hub, work, words):
    def run(rank):
        model = Net()
        place = {"hub": hub.address, "rank": rank, "world_size": 2, "job": "job"}
        optimizer = phub.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, **place)
        try:
            work(model, optimizer, rank)
        except phub.torch.MeanError as error:
            return str(error)
        finally:
            with contextlib.suppress(phub.Error):  # the jobs have failed
                optimizer.leave()
        return ""

    found = [error for error in on_threads(2, run) if error]
    assert found and all(re.search(words, error) for error in found), found


def test_gradients_may_be_read_first_without_autograd(hub):
    def work(rank):
        model = Net()
        place = {"hub": hub.address, "rank": rank, "world_size": 2, "job": "job", "transport": "tcp"}
        optimizer = phub.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, **place)
        norms = []
        for number in range(3):
            optimizer.zero_grad(set_to_none=True)
            backward(model, rank, number)
            with torch.inference_mode():
                norms.append(model.first.weight.grad.norm().item())
            optimizer.step()
        optimizer.leave()
        return norms

    first, second = on_threads(2, work)
    assert first == second


def test_parameters_with_one_memory_are_refused(hub):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model[1].weight.data = model[0].weight.data
    with pytest.raises(phub.SettingsError, match="'0.weight' and '1.weight' have the same memory"):
        place = {"hub": hub.address, "rank": 0, "world_size": 1}
        phub.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, **place)


def test_parameters_with_common_elements_are_refused_and_not_columns_of_one_matrix(hub):
    both, place = torch.randn(6, 9), {"hub": hub.address, "rank": 0, "world_size": 1}
    for parts, are_apart in (((both[:, :4], both[:, 4:]), True), ((both[:4], both[3:]), False), ((both[:, ::2], both[2:, 4:]), False)):
        one, other = map(torch.nn.Parameter, parts)
        optimizer, named = torch.optim.SGD([one, other], lr=0.1), [("one", one), ("other", other)]
        if not are_apart:
            with pytest.raises(phub.SettingsError, match="'one' and 'other' have the same memory, or parts of it"):
                phub.torch.DistributedOptimizer(optimizer, named, **place)
            continue
        optimizer = phub.torch.DistributedOptimizer(optimizer, named, **place)
        expected = both - 0.1
        (one.sum() + other.sum()).backward()
        optimizer.step()
        optimizer.leave()
        torch.testing.assert_close(both, expected)


def test_parameters_that_get_one_memory_later_are_refused_at_the_step(hub):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = phub.torch.DistributedOptimizer(optimizer, model, hub=hub.address, rank=0, world_size=1)
    for of_both in (True, True, False):
        model(torch.ones(1, 4)).sum().backward()
        model[1].weight.data = model[0].weight.data if of_both else torch.ones(4, 4)
        if of_both:
            with pytest.raises(phub.SettingsError, match="'0.weight' and '1.weight' have the same memory"):
                optimizer.step()
    optimizer.step()
    assert torch.equal(model[1].weight, 1.0 - 0.1 * model[1].weight.grad)
    optimizer.leave()


def has_no_more_inputs(rank, hub):
    """Trains with an input on rank 0 alone from step 2 on, after a step in which gradients were read. Returns the weights,
    and the weights of a training with the means."""
    model, alone = Net(), Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = phub.torch.DistributedOptimizer(optimizer, model, hub=hub, rank=rank, world_size=2, job="uneven")
    steps = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    for number in range(4):
        optimizer.zero_grad(set_to_none=False)
        steps.zero_grad(set_to_none=False)
        with torch.no_grad():
            for each in (*model.parameters(), *alone.parameters()):
                each.clamp_(-0.1, 0.1)  # the hub takes these values in a round before the step
        for each in range(2 if number < 2 else 1):
            backward(alone, each, number)
            if each == rank:
                backward(model, rank, number)
        for each in alone.parameters():
            each.grad.div_(2)
        if number == 1:
            assert model.first.weight.grad.norm().item() == pytest.approx(alone.first.weight.grad.norm().item(), rel=1e-4)
        optimizer.step()
        steps.step()
    optimizer.leave()
    return [[each.detach().numpy() for each in kind.parameters()] for kind in (model, alone)]


def test_a_worker_without_inputs_makes_the_means_of_those_with_inputs(hub):
    for of_hub, alone in in_processes(2, has_no_more_inputs, hub.address):
        for one, other in zip(of_hub, alone):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
