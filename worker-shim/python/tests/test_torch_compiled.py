"""Gradients that compiled code reads, or that a compiled backward pass makes. The gradients equal DDP's, or an error names the
reason."""

import contextlib
import re

import pytest
from conftest import end_gloo, in_processes

torch = pytest.importorskip("torch")
if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
    pytest.skip("torch 2.6 is the first with which this is tested", allow_module_level=True)

from test_torch_means import Net  # noqa: E402

import phub.torch  # noqa: E402

STEPS = 3


def compiled(function):
    return torch.compile(function, backend="eager")


def backward(called, rank, number):
    generator = torch.Generator().manual_seed(10 * number + rank)
    called(torch.randn(4, 64, generator=generator)).square().mean().backward()


def compiled_backward(called, rank, number):
    with torch._dynamo.compiled_autograd._enable(compiled):
        backward(called, rank, number)


def clip(net):
    return torch.nn.utils.clip_grad_norm_(net.parameters(), 0.01)


def one_pass(back, called, rank, number, net, optimizer):
    optimizer.zero_grad(set_to_none=True)
    back(called, rank, number)
    return clip(net)


def two_passes(back, called, rank, number, net, optimizer):
    optimizer.zero_grad(set_to_none=True)
    back(called, rank, 2 * number)
    back(called, rank, 2 * number + 1)
    return clip(net)


def kept(back, called, rank, number, net, optimizer):
    optimizer.zero_grad(set_to_none=False)
    back(called, rank, number)
    return clip(net)


def clipped_between(back, called, rank, number, net, optimizer):
    optimizer.zero_grad(set_to_none=True)
    back(called, rank, 2 * number)
    clip(net)
    back(called, rank, 2 * number + 1)
    return clip(net)


def clipped_by_compiled_code(_back, called, rank, number, net, optimizer):
    optimizer.zero_grad(set_to_none=True)
    backward(called, rank, number)
    return compiled(lambda: clip(net))()


def read_by_compiled_code(_back, called, rank, number, net, optimizer):
    optimizer.zero_grad(set_to_none=True)
    backward(called, rank, number)
    return compiled(lambda gradient: gradient.norm())(net.first.weight.grad)


def train(rank, work, hub, file):
    """Trains with DDP, whose backward passes are not compiled, and with the hub. Returns for each the norms of each step and the
    sum of a weight, or the error."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{file}", rank=rank, world_size=2)
    found = []
    for way in ("ddp", "shm", "tcp"):
        torch._dynamo.reset()
        net = called = Net()
        optimizer, back = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), compiled_backward
        if way == "ddp":
            called, back = torch.nn.parallel.DistributedDataParallel(net), backward
        else:
            place = {"hub": hub, "rank": rank, "world_size": 2, "job": way, "transport": way}
            optimizer = phub.torch.DistributedOptimizer(optimizer, net, **place)
        numbers = []
        try:
            for number in range(STEPS):
                numbers.append(work(back, called, rank, number, net, optimizer).item())
                optimizer.step()
            numbers.append(net.first.weight.sum().item())
        except phub.torch.MeanError as error:
            numbers = str(error)
        found.append(numbers)
        if way != "ddp":
            with contextlib.suppress(phub.Error):  # the job has failed, if there was an error
                optimizer.leave()
    end_gloo()
    return found


@pytest.mark.parametrize("work", [one_pass, clipped_by_compiled_code, read_by_compiled_code])
def test_gradients_of_compiled_code_are_those_of_ddp(hub, tmp_path, work):
    for ddp, *ours in in_processes(2, train, work, hub.address, tmp_path / "store"):
        for each in ours:
            assert each == pytest.approx(ddp, rel=1e-5)


@pytest.mark.parametrize("work", [two_passes, kept, clipped_between])
def test_a_compiled_pass_over_gradients_that_were_used_is_right_or_an_error_at_its_line(hub, tmp_path, work):
    words = r"^test_torch_compiled.py:\d+: a compiled backward pass adds to the gradient of '\w+.\w+', which the script may have used"
    for ddp, *ours in in_processes(2, train, work, hub.address, tmp_path / "store"):
        for each in ours:
            assert each == pytest.approx(ddp, rel=1e-5) if isinstance(each, list) else re.search(words, each), each
