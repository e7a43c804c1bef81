"""Callbacks of the backend "phub" that make all-reduces themselves: torch's own hooks, waits, and chains of two callbacks. Needs
torch 2.4."""

import warnings

import pytest
from conftest import in_processes

torch = pytest.importorskip("torch")
if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 4):
    pytest.skip(f"phub.c10d needs torch 2.4 or later, and this is {torch.__version__}", allow_module_level=True)

import models  # noqa: E402
import torch.distributed as dist  # noqa: E402
from test_c10d import begin  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd  # noqa: E402

import phub.c10d  # noqa: E402
from phub.torch._calls import MAX_DEPTHS  # noqa: E402

HOOKS = {"powerSGD": power_sgd.powerSGD_hook, "batched": power_sgd.batched_powerSGD_hook}
_orthogonalize = power_sgd._orthogonalize
# Torch's batched hook passes a matrix, although since torch 1.12 `_orthogonalize` takes a batch of matrices. So a matrix
# becomes a batch of one.
power_sgd._orthogonalize = lambda each, epsilon=0: _orthogonalize(each if each.dim() == 3 else each[None], epsilon)


def one_after_the_other(hook):
    """Returns the hook without overlap, for gloo. Gloo pairs the calls of ranks by their order, also the calls of callbacks,
    which run on gloo's threads."""

    def waits(state, bucket):
        future = hook(state, bucket)
        future.wait()
        return future

    waits.__annotations__ = hook.__annotations__
    return waits


def train(backend, hook, buckets_mb, rank, world_size):
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(models.fresh("cnn"), bucket_cap_mb=buckets_mb)
    state = power_sgd.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=3, min_compression_rate=1)
    model.register_comm_hook(state, HOOKS[hook] if backend == "phub" else one_after_the_other(HOOKS[hook]))
    optimizer = models.optimizer_of("cnn", model)
    losses = []
    for inputs, targets in models.batches("cnn", 8, rank, world_size):
        optimizer.zero_grad()
        loss = models.loss_of(model, inputs, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, models.digest(model)


def hooks(rank, store, world_size, hub):
    warnings.simplefilter("ignore")  # torch's hooks warn of themselves
    seen = {}
    for backend in ("gloo", "phub"):
        begin(f"{store}-{backend}", rank, world_size, hub, backend)
        for hook in HOOKS:
            for buckets_mb in (25, 0.005):
                seen[backend, hook, buckets_mb] = train(backend, hook, buckets_mb, rank, world_size)
        dist.destroy_process_group()
    return seen, phub.c10d.counts()["hub"].get("allreduce", 0)


def test_hooks_that_compress_learn_as_with_gloo(hub, tmp_path):
    both = in_processes(2, hooks, tmp_path / "store", 2, hub.address)
    for seen, calls in both:
        assert calls > 2 * 4 * 8, "callbacks of 4 trainings of 8 steps make calls, too"
        for (backend, *how), (losses, digest) in seen.items():
            assert losses == pytest.approx(seen[("gloo", *how)][0], rel=2e-3), (backend, how)
            assert backend == "gloo" or digest == both[0][0][(backend, *how)][1], "all workers end with the same bits"


def ones(value):
    return torch.full((3,), float(value))


def sum_of(value):
    """Returns the sum over all workers. It can be called in callbacks."""
    tensor = ones(value)
    dist.all_reduce(tensor)
    return tensor[0].item()


def future_of(value):
    return dist.all_reduce(ones(value), async_op=True).get_future()


def nested(rank, store, world_size, hub):
    begin(store, rank, world_size, hub)
    order = []

    def calls(name, value):
        def callback(future):
            order.append(name)
            return future.wait()[0][0].item() + sum_of(value)

        return callback

    # One worker adds a callback early. The other worker adds it late, to a future that is done. Both workers get the same sums.
    for times in range(20):
        futures = [future_of(number) for number in range(4)]
        answers = []
        for number, future in enumerate(futures):
            if (rank + number + times) % 2:
                future.wait()
            answers.append(future.then(calls(number, 10 * number)))
            assert sum_of(100) == 200
        assert [answer.wait() for answer in answers] == [2 * number + 20 * number for number in range(4)]
        assert order == list(range(4))
        order.clear()

    # Chains, and callbacks of callbacks.
    def deeper(future):
        inner = future_of(future.wait()).then(lambda summed: summed.wait()[0][0].item() + sum_of(1))
        work = dist.all_reduce(ones(5), async_op=True)
        work.wait()
        assert work.result()[0][0].item() == 10
        return inner.wait()

    chain = future_of(1).then(calls("first", 2)).then(deeper).then(lambda future: (future.wait(), sum_of(0.5)))
    assert chain.wait() == (2 * (2 + 4) + 2, 1.0)
    seen = []
    done = future_of(3)
    done.add_done_callback(lambda future: seen.append(sum_of(future.wait()[0][0].item())))
    done.then(lambda _: None).wait()
    assert seen == [12.0]

    # Gloo computes means of integers. The callbacks of these means are called in order with all other callbacks.
    mean = dist.all_reduce(torch.tensor([4 * rank]), op=dist.ReduceOp.AVG, async_op=True).get_future()
    assert mean.then(lambda future: future.wait()[0].item() + sum_of(1)).wait() == 4.0

    # The error of a callback is raised by its future, and by futures that depend on it.
    def fails(_future):
        raise KeyError("x")

    broken = future_of(1).then(fails)
    for future in (broken, broken.then(lambda future: future.wait())):
        with pytest.raises(RuntimeError, match="KeyError: 'x'"):
            future.wait()

    def down(depth):
        return future_of(1).then(lambda _: down(depth + 1)).wait()

    with pytest.raises(RuntimeError, match=f"{MAX_DEPTHS} levels deep, the maximum; start them from the script"):
        down(0)
    assert sum_of(7) == 14
    dist.destroy_process_group()


def test_callbacks_make_calls_in_the_same_order_everywhere(hub, tmp_path):
    in_processes(2, nested, tmp_path / "store", 2, hub.address)


def means_at_all_depths(rank, store, hub):
    begin(store, rank, 2, hub)

    def mean_at(depth):
        tensor = torch.tensor([2.0 * rank], dtype=torch.bfloat16)
        future = dist.all_reduce(tensor, op=dist.ReduceOp.AVG, async_op=True).get_future()
        return future.then(lambda given: mean_at(depth - 1) if depth else given.wait()[0].item()).wait()

    assert mean_at(MAX_DEPTHS - 1) == 1.0
    dist.destroy_process_group()


def test_a_job_may_have_a_long_name(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("PHUB_JOB", "j" * 64)  # "torchrun --standalone" gives a job a name of 36 letters
    in_processes(2, means_at_all_depths, tmp_path / "store", hub.address)
