"""`DistributedOptimizer`: steps as torch makes them, refusals, and the waits of modules."""

import functools
import threading
import types

import numpy as np
import pytest
from conftest import end_gloo, in_processes

torch = pytest.importorskip("torch")

import models  # noqa: E402

import phub.torch  # noqa: E402
from phub.torch._coverage import Coverage  # noqa: E402


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first = torch.nn.Linear(6, 8)
        self.second = torch.nn.Linear(8, 4)

    def forward(self, inputs):
        return self.second(torch.relu(self.first(inputs)))


def data(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(16, 6, generator=generator), torch.randint(0, 4, (16,), generator=generator)


def wrap(optimizer, model, hub, **settings):
    settings = {"rank": 0, "world_size": 1, "job": "job", **settings}
    return phub.torch.DistributedOptimizer(optimizer, model.named_parameters(), hub=hub, **settings)


def backward(model, inputs, targets):
    torch.nn.functional.cross_entropy(model(inputs), targets).backward()


def train(model, optimizer, rounds=8, scheduler=None):
    for number in range(rounds):
        optimizer.zero_grad()
        backward(model, *data(number))
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def same(ours, theirs):
    for (name, our), their in zip(ours.state_dict().items(), theirs.state_dict().values()):
        torch.testing.assert_close(our, their, rtol=2e-5, atol=1e-6, msg=lambda words: f"{name}: {words}")


OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1, weight_decay=0.01),
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.01, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.1),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1),
    "dampened": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, dampening=0.5, weight_decay=0.01),
    "amsgrad": lambda groups: torch.optim.Adam(groups, lr=0.01, betas=(0.8, 0.9), weight_decay=0.1, amsgrad=True),
    "amsgradw": lambda groups: torch.optim.AdamW(groups, lr=0.01, betas=(0.8, 0.9), weight_decay=0.1, amsgrad=True),
    "maximize": lambda groups: torch.optim.SGD(groups, lr=0.001, momentum=0.9, weight_decay=0.01, maximize=True),
    "maximize, adam": lambda groups: torch.optim.Adam(groups, lr=0.001, weight_decay=0.1, maximize=True),
    "lamb": lambda groups: phub.torch.Lamb(groups, lr=0.01, weight_decay=0.1),
    "lars": lambda groups: phub.torch.Lars(groups, lr=1.0, weight_decay=0.1, trust=0.02),
    "lion": lambda groups: phub.torch.Lion(groups, lr=0.001, weight_decay=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_torch(hub, name):
    def make(model):
        groups = [{"params": model.first.parameters()}, {"params": model.second.parameters()}]
        groups[1].update(lr=0.02, weight_decay=0.0)
        return OPTIMIZERS[name](groups)

    ours, theirs = Net(), Net()
    optimizers = wrap(make(ours), ours, hub), make(theirs)
    assert isinstance(optimizers[0], type(optimizers[1]))
    for model, optimizer in zip((ours, theirs), optimizers):
        train(model, optimizer, scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.3))
    same(ours, theirs)
    optimizers[0].leave()
    assert torch.equal(ours.first.weight, ours.state_dict()["first.weight"]), "parameters outlive the session"


def test_gradients_of_several_passes_are_summed(hub):
    ours, theirs = Net(), Net()
    optimizer = wrap(torch.optim.SGD(ours.parameters(), lr=0.1), ours, hub)
    local = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for model, each in ((ours, optimizer), (theirs, local)):
        for number in range(3):
            each.zero_grad()
            backward(model, *data(number))
            backward(model, *data(number + 10))
            each.step()
    same(ours, theirs)


def test_another_number_of_passes_in_each_step(hub):
    ours, theirs = Net(), Net()
    optimizer = wrap(torch.optim.SGD(ours.parameters(), lr=0.1), ours, hub)
    for model, each in ((ours, optimizer), (theirs, torch.optim.SGD(theirs.parameters(), lr=0.1))):
        for passes in (1, 3, 2, 0, 1):
            each.zero_grad()
            for number in range(passes):
                backward(model, *data(number))
            each.step()
    same(ours, theirs)


def test_bytes_leave_in_the_last_of_the_passes_that_were_said(hub):
    # One wide layer: the gradients of small keys are not sent before `step()`.
    torch.manual_seed(3)
    model = torch.nn.Linear(64, 512)
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, hub, transport="tcp", backward_passes_per_step=3)
    gradients = optimizer._phub._gradients
    left = []
    for _ in range(4):
        model(torch.ones(2, 64)).sum().backward()
        left.append("weight" in gradients._own.left)
    assert left == [False, False, True, True], "in the third; the fourth makes it another gradient"
    assert "weight" not in gradients._own._sent
    before = model.weight.detach().clone()
    optimizer.step()
    torch.testing.assert_close(model.weight, before - 0.1 * 8.0)


def test_gradients_leave_with_their_neighbours_unless_a_hook_takes_them_meanwhile(hub):
    def make():
        torch.manual_seed(3)
        return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))  # less than a bucket together

    ours, theirs = make(), make()
    optimizer = wrap(torch.optim.SGD(ours.parameters(), lr=0.1), ours, hub, transport="tcp", chunk_bytes=4096)
    gradients = optimizer._phub._gradients
    views = {ours: [], theirs: []}
    for model, each in ((ours, optimizer), (theirs, torch.optim.SGD(theirs.parameters(), lr=0.1))):
        for takes in (False, True, False):
            each.zero_grad(set_to_none=True)
            hook = model[0].weight.register_hook(lambda _: views[model].append(model[1].weight.grad.data)) if takes else None
            model(torch.ones(2, 64)).square().sum().backward()
            if model is ours:
                left = {key for key in gradients._own.left if key.endswith("weight")}
                assert left == ({"0.weight"} if takes else {"0.weight", "1.weight"} if not views[ours] else set())
            if takes:
                hook.remove()
                views[model][0].mul_(2.0)  # torch does not count it
            each.step()
    same(ours, theirs)


def passed_without_sync(rank, model, called, wrapped):
    with wrapped.no_sync():
        backward(called, *data(rank))
        kept = model.first.weight.grad
        backward(called, *data(rank + 4))
        own = kept.clone()
    backward(called, *data(rank + 2))
    return own, kept, model.second.bias.grad


def read_after_no_sync(rank, model, called, wrapped):
    with wrapped.no_sync():
        backward(called, *data(rank))
    own = model.first.weight.grad.clone()
    backward(called, *data(rank + 2))
    return own, model.first.weight.grad, model.second.bias.grad


def steps_within_no_sync(rank, hub):
    model = Net()
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, hub, rank=rank, world_size=2)
    with optimizer.no_sync():
        backward(model, *data(rank))
        with pytest.raises(phub.torch.StateError, match="within no_sync.*Leave the block before step"):
            optimizer.step()
    optimizer.step()
    optimizer.leave()
    return models.digest(model)


def test_a_step_within_no_sync_is_an_error_and_after_it_takes_the_mean(hub):
    ours, theirs = in_processes(2, steps_within_no_sync, hub.address)
    assert ours == theirs


def kept_and_zeroed(rank, model, called, _wrapped):
    backward(called, *data(rank))
    kept = model.first.weight.grad
    kept.zero_()
    backward(called, *data(rank + 2))
    return data(rank)[0], kept, kept


def kept_and_zeroed_by_the_optimizer(rank, model, called, wrapped):
    optimizer = wrapped if wrapped is not called else torch.optim.SGD(model.parameters(), lr=0.1)
    backward(called, *data(rank))
    kept = model.first.weight.grad
    optimizer.zero_grad(set_to_none=False)
    backward(called, *data(rank + 2))
    return data(rank)[0], kept, kept


def given_by_the_script(rank, model, called, _wrapped):
    kept = model.first.weight.grad = torch.ones(8, 6)
    backward(called, *data(rank))
    return data(rank)[0], kept, model.second.bias.grad


def read_gradients(rank, work, hub, file):
    """Returns the gradients that a script reads with the hub and with DDP: each worker's own gradients, and means."""
    torch.distributed.init_process_group("gloo", f"file://{file}", rank=rank, world_size=2)
    ours, theirs = Net(), Net()
    optimizer = wrap(torch.optim.SGD(ours.parameters(), lr=0.1), ours, hub, rank=rank, world_size=2)
    ddp = torch.nn.parallel.DistributedDataParallel(theirs)
    read = [[each.clone().numpy() for each in work(rank, *run)] for run in ((ours, ours, optimizer), (theirs, ddp, ddp))]
    optimizer.leave()
    end_gloo()
    return read


@pytest.mark.parametrize(
    "work",
    [passed_without_sync, read_after_no_sync, kept_and_zeroed, kept_and_zeroed_by_the_optimizer, given_by_the_script],
)
def test_a_script_reads_the_gradients_that_it_reads_with_ddp(hub, tmp_path, work):
    results = in_processes(2, read_gradients, work, hub.address, tmp_path / "store")
    for ours, theirs in results:
        for our, their in zip(ours, theirs):
            np.testing.assert_allclose(our, their, rtol=1e-5, atol=1e-7)
    (own, *means), (other, *same_means) = (ours for ours, _ in results)
    assert np.abs(own - other).max() > 1e-3, "each worker has its own there"
    np.testing.assert_array_equal(means[0], same_means[0])
    np.testing.assert_array_equal(means[1], same_means[1])


class Backwards(torch.nn.Module):
    """A model whose modules are registered against the order of their calls."""

    def __init__(self):
        super().__init__()
        self.third, self.second, self.first = torch.nn.Linear(8, 4), torch.nn.Linear(8, 8), torch.nn.Linear(6, 8)

    def forward(self, inputs):
        return self.third(torch.relu(self.second(torch.relu(self.first(inputs)))))


def test_keys_leave_in_the_order_of_the_forward_pass(hub, monkeypatch):
    model = Backwards()
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, hub)
    pushed, needed = [], []
    for name, into in (("push", pushed), ("need", needed)):
        call = getattr(optimizer.session, name)
        monkeypatch.setattr(optimizer.session, name, lambda *keys, call=call, into=into: (into.append(list(keys)), call(*keys)))
    train(model, optimizer, 3)
    called = [f"{module}.{own}" for module in ("first", "second", "third") for own in ("weight", "bias")]
    assert pushed == [optimizer.session.keys, called, called] and needed == [called]
    assert optimizer.session.keys[0] == "third.weight"


def test_clipping_by_value(hub):
    ours, theirs = Net(), Net()
    optimizer = wrap(torch.optim.SGD(ours.parameters(), lr=0.1), ours, hub, clip_value=0.01)
    train(ours, optimizer, 1)
    local = torch.optim.SGD(theirs.parameters(), lr=0.1)
    backward(theirs, *data())
    torch.nn.utils.clip_grad_value_(theirs.parameters(), 0.01)
    local.step()
    same(ours, theirs)


CLIPPED = [name for name in OPTIMIZERS if name not in ("lamb", "lars")]
"""Optimizers that the hub combines with clipping by a norm."""


@pytest.mark.parametrize("name", CLIPPED)
@pytest.mark.parametrize("most", [0.05, 0.5, 100.0])  # the last one is never reached
def test_clipping_by_norm(hub, name, most):
    ours, theirs = Net(), Net()
    optimizer = wrap(OPTIMIZERS[name](ours.parameters()), ours, hub, clip_norm=most)
    local, norms = OPTIMIZERS[name](theirs.parameters()), []
    for number in range(200):
        for model, each in ((ours, optimizer), (theirs, local)):
            each.zero_grad()
            backward(model, *data(number))
            if model is theirs:
                norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), most))
            each.step()
        assert optimizer.grad_norm == pytest.approx(norms[-1].item(), rel=1e-4)
    assert (max(norms) > most) == (most < 100)
    for (key, our), their in zip(ours.state_dict().items(), theirs.state_dict().values()):
        torch.testing.assert_close(our, their, rtol=1e-4, atol=1e-5, msg=lambda words: f"{key}: {words}")


@pytest.mark.parametrize("name", CLIPPED)
def test_clipping_by_the_norm_of_the_step_before(hub, name):
    ours, theirs = Net(), Net()
    optimizer = wrap(OPTIMIZERS[name](ours.parameters()), ours, hub, clip_norm_last=0.5)
    local, norms = OPTIMIZERS[name](theirs.parameters()), [0.0]
    for number in range(50):
        for model, each in ((ours, optimizer), (theirs, local)):
            each.zero_grad()
            backward(model, *data(number))
            if model is theirs:
                scale = min(1.0, 0.5 / (norms[-1] + 1e-6))
                norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf")).item())
                for parameter in model.parameters():
                    parameter.grad *= scale
            each.step()
    assert max(norms) > 0.5
    assert optimizer.grad_norm is None, "the weights are there before it is known"
    for (key, our), their in zip(ours.state_dict().items(), theirs.state_dict().values()):
        torch.testing.assert_close(our, their, rtol=1e-4, atol=1e-5, msg=lambda words: f"{key}: {words}")


def test_a_step_that_is_not_finite_is_left_out(hub):
    ours, theirs = Net(), Net()
    optimizer = wrap(torch.optim.Adam(ours.parameters()), ours, hub, skip_nonfinite=True)
    local = torch.optim.Adam(theirs.parameters())
    for number in range(6):
        optimizer.zero_grad()
        backward(ours, *data(number))
        if number in (2, 3):
            next(ours.parameters()).grad.fill_(float("inf"))
            optimizer.step()
            assert optimizer.grad_norm == float("inf")
            continue
        optimizer.step()
        local.zero_grad()
        backward(theirs, *data(number))
        local.step()
    assert optimizer._phub.session.skipped == 2
    for (key, our), their in zip(ours.state_dict().items(), theirs.state_dict().values()):
        torch.testing.assert_close(our, their, rtol=1e-4, atol=1e-5, msg=lambda words: f"{key}: {words}")


def test_a_step_whose_norm_is_a_spike_is_left_out(hub):
    ours, theirs = Net(), Net()
    optimizer = wrap(torch.optim.Adam(ours.parameters()), ours, hub, skip_spikes=3.0)
    local = torch.optim.Adam(theirs.parameters())
    for number in range(16):
        inputs, targets = data(number)
        for model, each in ((ours, optimizer), (theirs, local)):
            each.zero_grad()
            factor = 1000 if number in (2, 12, 14) else 1  # the first is too early to be a spike
            (torch.nn.functional.cross_entropy(model(inputs), targets) * factor).backward()
            if model is ours or number not in (12, 14):
                each.step()
        optimizer.synchronize()  # step() waits for nothing
        assert optimizer._phub.session.skipped == (number >= 12) + (number >= 14)
    for (key, our), their in zip(ours.state_dict().items(), theirs.state_dict().values()):
        torch.testing.assert_close(our, their, rtol=1e-4, atol=1e-5, msg=lambda words: f"{key}: {words}")


def test_a_norm_that_is_none_is_refused(hub):
    for most in (0.0, -1.0, float("nan"), float("inf")):
        model = Net()
        with pytest.raises(phub.SettingsError, match="clip_norm.*expected a number above 0"):
            wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, hub, clip_norm=most)
        with pytest.raises(phub.SettingsError, match="clip_norm_last.*expected a number above 0"):
            wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, hub, clip_norm_last=most)


def test_a_bound_that_is_none_and_a_text_for_yes_or_no_are_refused():
    model = Net()
    for settings, words in (
        ({"clip_value": -1.0}, "clip_value is -1.0: expected a number above 0"),  # torch would set all gradients to -1
        ({"clip_value": 0.0}, "clip_value is 0.0: expected"),
        ({"clip_value": float("nan")}, "clip_value is nan: expected"),
        ({"overlap": "false"}, "overlap is 'false': expected True or False"),
        ({"broadcast_buffers": "no"}, "broadcast_buffers is 'no': expected True or False"),
    ):
        with pytest.raises(phub.SettingsError, match=words):
            wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, "127.0.0.1:1", **settings)


def test_a_gradient_that_is_changed_before_the_step_counts(hub):
    ours, theirs = Net(), Net()
    optimizer = wrap(torch.optim.SGD(ours.parameters(), lr=0.1), ours, hub)
    for model, each in ((ours, optimizer), (theirs, torch.optim.SGD(theirs.parameters(), lr=0.1))):
        backward(model, *data())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        each.step()
    same(ours, theirs)


def test_unused_frozen_and_shared_parameters(hub):
    model = Net()
    model.unused = torch.nn.Linear(2, 2)
    model.frozen = torch.nn.Linear(2, 2)
    model.frozen.requires_grad_(False)
    model.again = model.second
    before = {name: each.clone() for name, each in model.state_dict().items()}
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, hub)
    assert optimizer.session.keys == [
        f"{module}.{kind}" for module in ("first", "second", "unused") for kind in ("weight", "bias")
    ]
    train(model, optimizer, 2)
    after = model.state_dict()
    for name in before:
        moved = not torch.equal(before[name], after[name])
        assert moved == (name.split(".")[0] in ("first", "second", "again")), name


def test_a_module_waits_for_its_own_parameters_only(hub):
    model = Net()
    keys = {name: tuple(each.shape) for name, each in model.named_parameters()}
    other = []
    # The other worker, which pushes on request.
    join = threading.Thread(
        target=lambda: other.append(
            phub.Session(hub, 1, 2, keys=keys, optimizer=phub.Sgd(0.1), job="job", schedule="p3")
        )
    )
    join.start()
    broadcast = threading.Thread(target=lambda: (join.join(), other[0].broadcast()))
    broadcast.start()
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, hub, world_size=2)
    broadcast.join()
    old = model.first.weight.clone()
    backward(model, *data())
    optimizer.step()  # learns the parameters of each module; waits for nobody
    other[0].push("first.weight", "first.bias")
    hidden = model.first(data()[0])
    assert not torch.equal(model.first.weight, old)
    assert not optimizer.session.is_ready("second.weight")
    called = threading.Event()
    forward = threading.Thread(target=lambda: (model.second(hidden), called.set()))
    forward.start()
    assert not called.is_set()
    other[0].push("second.weight", "second.bias")
    forward.join()
    assert called.is_set() and optimizer.session.is_ready("second.weight")


def test_parameters_of_a_child_that_is_not_called_are_waited_for():
    model = models.Transformer()
    keys = {id(each): name for name, each in model.named_parameters()}
    coverage = Coverage(keys)
    handle = torch.nn.modules.module.register_module_forward_pre_hook(
        lambda module, _: (coverage.called(module), None)[1]
    )
    model(torch.zeros(1, models.TEXT_LENGTH, dtype=torch.long))
    handle.remove()
    assert coverage.learn() == []
    attention = model.blocks.layers[0].self_attn
    assert "blocks.layers.0.self_attn.out_proj.weight" in coverage.called(attention)
    assert coverage.called(model.out) == coverage.called(model.letters) == ("letters.weight",)
    assert coverage.called(model) == ("places",)
    model.eval()
    assert set(coverage.called(model)) == set(keys.values()), "not in training: everything below"
    assert coverage.called(torch.nn.Linear(2, 2)) == ()


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda p: torch.optim.RMSprop(p, lr=0.1), "RMSprop.*the hub runs.*ddp_hook"),
        (lambda p: torch.optim.Adam(p, differentiable=True), "differentiable=True"),
        (lambda p: torch.optim.SGD([{"params": p[:1]}, {"params": p[1:], "maximize": True}], lr=0.1), "differ in maximize"),
        (lambda p: torch.optim.Adam([{"params": p[:1]}, {"params": p[1:], "amsgrad": True}]), "differ in amsgrad"),
    ],
)
def test_optimizers_that_the_hub_cannot_run(make, words):
    model = Net()
    with pytest.raises(phub.torch.UnsupportedOptimizerError, match=words):
        wrap(make(list(model.parameters())), model, "127.0.0.1:1")


def test_changes_that_the_hub_cannot_follow(hub):
    model = Net()
    groups = [{"params": model.first.parameters()}, {"params": model.second.parameters(), "lr": 0.05}]
    optimizer = wrap(torch.optim.SGD(groups, lr=0.1, momentum=0.9), model, hub)
    train(model, optimizer, 1)
    optimizer.param_groups[0]["momentum"] = 0.0
    backward(model, *data())
    with pytest.raises(phub.torch.UnsupportedOptimizerError, match="group 0: momentum was 0.9 and is 0.0 now"):
        optimizer.step()
    optimizer.param_groups[0]["momentum"] = 0.9
    model.third = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    for parameter, words in ((model.third, "'third' is torch.float64; a hub takes"), (None, "1 of .* have no name in named_parameters")):
        parameter = torch.nn.Parameter(torch.zeros(1)) if parameter is None else parameter
        with pytest.raises(phub.SettingsError, match=words):
            optimizer.add_param_group({"params": [parameter]})
        assert len(optimizer.param_groups) == 2, "as before"
    train(model, optimizer, 1)
    for passes in (0, 1.5, float("inf"), float("nan")):
        with pytest.raises(phub.SettingsError, match=f"backward_passes_per_step is {passes}: expected a whole number, 1 or more"):
            wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, hub, backward_passes_per_step=passes)


def test_each_optimizer_of_a_script_has_a_job_of_its_own(hub):
    first, second = Net(), Net()
    optimizers = [
        phub.torch.DistributedOptimizer(torch.optim.SGD(each.parameters(), lr=0.1), each, hub=hub, rank=0, world_size=1)
        for each in (first, second)
    ]
    jobs = {optimizer.session.job for optimizer in optimizers}
    assert len(jobs) == 2
    with pytest.raises(phub.torch.WrapError, match="is a DistributedOptimizer already: wrap it once"):
        wrap(optimizers[0], first, hub)


def test_what_is_no_model_of_the_hub():
    model = Net()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    named = list(model.named_parameters())
    twice = [("same", each) for _, each in named]
    for names, words in ((twice, "two parameters are called 'same'"), (named[1:], "1 of the optimizer's 4 .*no name")):
        with pytest.raises(phub.SettingsError, match=words):
            phub.torch.DistributedOptimizer(sgd, names, hub="127.0.0.1:1")
    schedule = torch.optim.lr_scheduler.StepLR(sgd, 1)
    for optimizer, names, words in (
        (sgd, [each for _, each in named], r"found \(Parameter\); expected the model"),
        (sgd, sgd, r"found \(SGD\); expected the model"),
        (model, sgd, "optimizer is a Net: expected a torch optimizer as first argument, the model as second"),
        (schedule, model, "optimizer is a StepLR"),
    ):
        with pytest.raises(phub.SettingsError, match=words):
            phub.torch.DistributedOptimizer(optimizer, names, hub="127.0.0.1:1")
    with pytest.raises(phub.UnreachableError):  # a dict is as good
        phub.torch.DistributedOptimizer(sgd, dict(named), hub="127.0.0.1:1", hub_wait=0.0)
    double = torch.nn.Linear(2, 2).double()
    with pytest.raises(phub.SettingsError, match="'weight' is torch.float64; a hub takes"):
        wrap(torch.optim.SGD(double.parameters(), lr=0.1), double, "127.0.0.1:1")


def test_a_step_of_the_scripts_own_from_before_the_wrap_is_not_dropped(hub):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # counts steps by a function of its own
    wrap(optimizer, model, hub, job="counted").leave()
    for make in (
        lambda step: lambda: step(),
        lambda step: functools.wraps(step)(lambda: step()),
        lambda step: types.MethodType(lambda optimizer: step(), optimizer),
    ):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.step = make(optimizer.step)
        with pytest.raises(phub.torch.WrapError, match="replaced optimizer.step before .*: replace optimizer.step after"):
            wrap(optimizer, model, hub, job="replaced")


def test_a_schedule_of_torch_2_4_from_before_the_wrap_counts_steps(hub):
    def count(optimizer, func):
        def wrapper(*arguments):  # without `__wrapped__`
            return func.__get__(optimizer, type(optimizer))(*arguments)

        wrapper._wrapped_by_lr_sched = True
        optimizer.step = wrapper

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    count(optimizer, type(optimizer).step)
    optimizer = wrap(optimizer, model, hub, job="counted")
    train(model, optimizer, 2)
    optimizer.synchronize()
    assert optimizer.session.next_round == 3 and optimizer._opt_called
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    count(other, lambda optimizer: None)
    with pytest.raises(phub.torch.WrapError, match="replaced optimizer.step before"):
        wrap(other, model, hub, job="replaced")


def test_a_step_after_leave_says_that_the_job_is_left(hub):
    model = Net()
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, hub)
    train(model, optimizer, 1)
    optimizer.leave()
    for _ in range(2):
        with pytest.raises(phub.LeftError, match="has left"):
            train(model, optimizer, 1)


def test_state_dict_of_the_optimizer(hub):
    model = Net()
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model, hub)
    train(model, optimizer, 2)
    state = optimizer.state_dict()
    assert state["param_groups"][0]["momentum"] == 0.9 and sorted(state["state"]) == [0, 1, 2, 3]
    kept = optimizer.state[model.first.weight]["momentum_buffer"]
    assert torch.equal(kept, state["state"][0]["momentum_buffer"])
    kept.zero_()
    backward(model, *data())
    with pytest.raises(phub.torch.StateError, match="'momentum_buffer' of optimizer.state was written.*load_state_dict"):
        optimizer.step()
    optimizer.step()
    groups = {**state, "state": {}}
    groups["param_groups"][0]["lr"] = 0.01
    optimizer.load_state_dict(groups)
    train(model, optimizer, 1)
    assert optimizer._phub._settings.optimizer.learning_rate == pytest.approx(0.01)
    assert optimizer.session.job == "job", "the groups alone"


def test_a_learning_rate_that_is_set_before_the_step_holds_for_it(hub):
    ours, theirs = Net(), Net()
    optimizer = wrap(torch.optim.SGD(ours.parameters(), lr=0.1), ours, hub)
    for model, each in ((ours, optimizer), (theirs, torch.optim.SGD(theirs.parameters(), lr=0.1))):
        backward(model, *data())
        each.param_groups[0]["lr"] = 0.2
        each.step()
    same(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(hub, dtype):
    parameter = torch.nn.Parameter(torch.full((5,), 1.0, dtype=dtype))
    optimizer = phub.torch.DistributedOptimizer(
        torch.optim.SGD([parameter], lr=0.5), hub=hub, rank=0, world_size=1, job="job"
    )
    for _ in range(2):
        optimizer.zero_grad()
        (parameter * 0.5).sum().backward()
        optimizer.step()
        optimizer.synchronize()
    assert parameter.dtype == dtype and parameter.tolist() == [0.5] * 5


def test_data_loaders_that_fork(hub):
    model = Net()
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, hub)
    dataset = torch.utils.data.TensorDataset(*data())
    for _epoch in range(2):  # new processes for each
        loader = torch.utils.data.DataLoader(dataset, 8, num_workers=2, multiprocessing_context="fork")
        for inputs, targets in loader:
            optimizer.zero_grad()
            backward(model, inputs, targets)
            optimizer.step()
    optimizer.leave()


def test_state_of_another_optimizer_is_not_loaded(tmp_path):
    ours, theirs = Net(), Net()
    with phub.serve(cores=1, checkpoints=tmp_path) as hub:
        optimizer = wrap(torch.optim.Adam(ours.parameters(), lr=0.1), ours, hub)
        train(ours, optimizer, 2)
        optimizer.session.checkpoint()
        before = theirs.first.weight.detach().clone()
        file = tmp_path / "job.safetensors"
        for local, words in (
            (torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9), "state exp_avg, exp_avg_sq, and this SGD keeps momentum_buffer"),
            (torch.optim.Adam(theirs.parameters(), amsgrad=True), "this Adam keeps exp_avg, exp_avg_sq, max_exp_avg_sq"),
            (optimizer, "the optimizer is a DistributedOptimizer; expected torch's own"),
        ):
            with pytest.raises(phub.SettingsError, match=words):
                phub.torch.load_checkpoint(file, theirs, local)
            assert torch.equal(theirs.first.weight, before)
        assert phub.torch.load_checkpoint(file, theirs) == 2, "the weights alone"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_checkpoint_goes_on_in_torch(tmp_path, name):
    ours, theirs = Net(), Net()
    with phub.serve(cores=1, checkpoints=tmp_path) as hub:
        optimizer = wrap(OPTIMIZERS[name](ours.parameters()), ours, hub)
        train(ours, optimizer, 5)
        optimizer.synchronize()
        optimizer.session.checkpoint()
        local = OPTIMIZERS[name](theirs.parameters())
        file = tmp_path / "job.safetensors"
        assert phub.torch.load_checkpoint(file, theirs.named_parameters(), local) == 5
        assert torch.equal(ours.first.weight, theirs.first.weight)
        for model, each in ((ours, optimizer), (theirs, local)):
            train(model, each, 4)
        same(ours, theirs)
    before = [parameter.detach().clone() for parameter in theirs.parameters()]
    named = list(theirs.named_parameters())
    with pytest.raises(phub.SettingsError, match="has no values .device 'meta'."):
        phub.torch.load_checkpoint(file, [*named[:-1], (named[-1][0], torch.nn.Parameter(named[-1][1].to("meta")))])
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    (tmp_path / "damaged").write_bytes(damaged)
    with pytest.raises(phub.SettingsError, match="not a whole checkpoint of a hub: the file was altered or damaged"):
        phub.torch.load_checkpoint(tmp_path / "damaged", theirs.named_parameters())
    assert all(map(torch.equal, before, theirs.parameters())), "an error changes nothing"
    with pytest.raises(phub.SettingsError, match=r"'weight' is not there; expected shape \(2, 2\)"):
        phub.torch.load_checkpoint(file, torch.nn.Linear(2, 2).named_parameters())
    frozen = Net().requires_grad_(False)  # for an evaluation
    for given in (frozen, dict(frozen.named_parameters())):
        frozen.first.weight.zero_()
        phub.torch.load_checkpoint(file, given)
        torch.testing.assert_close(frozen.first.weight, ours.first.weight.detach())
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(phub.SettingsError, match="not a whole checkpoint"):
        phub.torch.load_checkpoint(file, theirs.named_parameters())
