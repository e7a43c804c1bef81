"""Gradients of parameters that no optimizer at the hub has: each worker has its own gradient, and a script that uses such a
gradient gets an error."""

import copy
import pickle

import pytest
from conftest import in_processes

torch = pytest.importorskip("torch")

import phub.torch  # noqa: E402


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.body, self.head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)

    def forward(self, inputs):
        return self.head(torch.tanh(self.body(inputs)))


def wrapped(parameters, model, **place):
    return phub.torch.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1), model, **place)


def clips(model):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)


def logs(model):
    return [each.grad.norm().item() for each in model.parameters()]


def adds(model):
    model.body.bias.grad += 1.0


def steps_by_itself(model):
    torch.optim.RMSprop(model.body.parameters()).step()


USES = (clips, logs, adds, steps_by_itself)


def refused(rank, hub):
    found = []
    for use in USES:
        model = Net()
        optimizer = wrapped(model.head.parameters(), model, hub=hub, rank=rank, world_size=2, job=use.__name__)
        model(torch.full((3, 4), 1.0 + rank)).sum().backward()
        try:
            use(model)
            found.append("")
        except phub.torch.MeanError as error:
            found.append(str(error))
        optimizer.leave()
        assert type(model.body.weight) is torch.nn.Parameter and type(model.body.weight.grad) is torch.Tensor
    return found


def test_a_use_is_an_error_that_names_the_parameter(hub):
    for of_rank in in_processes(2, refused, hub.address):
        for use, text in zip(USES, of_rank):
            name = "'body.bias'" if use is adds else "'body.weight'"
            assert "test_torch_strangers.py" in text and f"the gradient of {name} is used" in text, use


def scripts(rank, hub):
    model = Net()
    place = {"hub": hub, "rank": rank, "world_size": 2}
    optimizer = wrapped(model.head.parameters(), model, job="head", **place)
    seen = []
    model.body.weight.register_hook(lambda gradient: seen.append(gradient.norm().item()))
    inputs = torch.full((3, 4), 1.0 + rank)
    for number in range(3):
        model.zero_grad(set_to_none=number == 2)
        model(inputs).sum().backward()
        optimizer.step()
    assert all(each.grad is not None and each.grad.shape == each.shape for each in model.parameters())
    with optimizer.no_sync():
        seen.append(model.body.weight.grad.norm().item())
    for each in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(each.body.weight) is torch.nn.Parameter
    own = seen[-1]
    for each in model.body.parameters():
        each.grad = None
    other = wrapped(model.body.parameters(), model.body, job="body", **place)
    model(inputs).sum().backward()
    mean = model.body.weight.grad.norm().item()
    other.step()
    optimizer.leave()
    other.leave()
    return own, mean, model.body.weight.tolist()


def test_zeroed_frozen_and_own_gradients_are_no_error_and_another_optimizer_makes_means(hub):
    (own, mean, weights), (other, same, equal) = in_processes(2, scripts, hub.address)
    assert own != other and mean == same and weights == equal
