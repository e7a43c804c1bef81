"""`DistributedOptimizer` pulls parameters in batches of modules, in the order of the forward pass, with the same numbers."""

import pytest

torch = pytest.importorskip("torch")

import phub.torch  # noqa: E402

SGD = {"lr": 0.1, "momentum": 0.9}


class Net(torch.nn.Module):
    """A model whose modules are not registered in the order of their calls. One module is never called."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.out = torch.nn.Linear(8, 4)
        self.first = torch.nn.Linear(6, 8)
        self.unused = torch.nn.Linear(2, 2)
        self.scale = torch.nn.Parameter(torch.ones(4))

    def forward(self, inputs):
        return self.out(torch.relu(self.first(inputs))) * self.scale


def wrap(model, hub, more=(), **settings):
    settings = {"rank": 0, "world_size": 1, "job": "job", "schedule": "kvstore", **settings}
    named = [*model.named_parameters(), *more]
    optimizer = torch.optim.SGD([each for _, each in named], **SGD)
    return phub.torch.DistributedOptimizer(optimizer, named, hub=hub, **settings)


def train(model, optimizer, rounds):
    generator = torch.Generator().manual_seed(1)
    for _ in range(rounds):
        inputs, targets = torch.randn(16, 6, generator=generator), torch.randint(0, 4, (16,), generator=generator)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()


def layers(optimizer):
    return [sorted(batch) for batch in optimizer.session.pull_plan.batches]


def of(module):
    return [f"{module}.bias", f"{module}.weight"]


def test_layers_are_modules_in_the_order_in_which_they_are_called(hub):
    model, outside = Net(), torch.nn.Linear(2, 2)
    optimizer = wrap(model, hub, outside.named_parameters("outside"), pull="layer")
    registered = [["scale"], of("out"), of("first"), of("unused"), of("outside")]
    assert layers(optimizer) == registered, "all that is known yet"
    train(model, optimizer, 1)
    assert layers(optimizer) == registered, "something is under way"
    train(model, optimizer, 1)
    # `step()` waits for the parameters for which no module waits. The model waits for its own parameters, and for the parameters
    # of its child that is never called.
    assert layers(optimizer) == [of("outside"), ["scale", *of("unused")], of("first"), of("out")]
    optimizer.leave()


def test_a_module_has_its_own_batch_before_the_next_is_there(hub):
    model = Net()
    optimizer = wrap(model, hub, pull="layer")
    train(model, optimizer, 2)
    waited = []
    windows = optimizer._phub._windows
    wait = windows.wait
    windows.wait = lambda key: (waited.append(key), wait(key))
    train(model, optimizer, 1)
    expected = ["scale", *(key for module in ("unused", "first", "out") for key in reversed(of(module)))]
    assert waited == expected, "each module waits for what it has, when it is called"
    optimizer.leave()


@pytest.mark.parametrize("pull", ["ibatch", "greedy", "layer", "all"])
def test_training_is_the_same_however_parameters_are_pulled(hub, pull):
    ours, theirs = Net(), Net()
    optimizers = wrap(ours, hub, pull=pull, job="ours"), wrap(theirs, hub, job="theirs")
    for model, optimizer in zip((ours, theirs), optimizers):
        train(model, optimizer, 12)
        optimizer.synchronize()
    for (name, our), their in zip(ours.named_parameters(), theirs.parameters()):
        assert torch.equal(our, their), name
    plan = optimizers[0].session.pull_plan
    assert plan.batching == pull and plan.rounds > 0
    assert sorted(key for batch in plan.batches for key in batch) == sorted(name for name, _ in ours.named_parameters())
    assert plan.profiles == (1 if pull in ("ibatch", "greedy") else 0)
    assert optimizers[1].session.pull_plan is None
    for optimizer in optimizers:
        optimizer.leave()


def test_parameters_without_names_are_each_a_layer(hub):
    model = Net()
    optimizer = phub.torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), **SGD), hub=hub, rank=0, world_size=1, schedule="kvstore", pull="layer"
    )
    assert layers(optimizer) == [[f"parameter.{number}"] for number in range(7)]
    train(model, optimizer, 2)
    by_module = [[0, 5, 6], [3, 4], [1, 2]]
    assert layers(optimizer) == [[f"parameter.{number}" for number in layer] for layer in by_module], "once it is seen"
    optimizer.leave()


def test_settings_that_cannot_be(hub):
    for settings, words in [
        ({"pull": "ibatch", "schedule": "p3"}, "only kvstore"),
        ({"pull": "ibatch", "overlap": False}, "overlap=False, which waits for all parameters in step"),
        ({"pull": "layer", "compression": phub.SlimDP(0.3, 0.15)}, "SlimDP, which waits for all"),
        ({"pull": "layer", "pull_layers": [["scale"]]}, "takes layers from the modules"),
        ({"keys": {"scale": (1,)}}, "takes keys from the parameters"),
        ({"state": None}, "load it by optimizer.load_state_dict"),
    ]:
        with pytest.raises(phub.SettingsError, match=words):
            wrap(Net(), hub, **settings)
