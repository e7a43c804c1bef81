"""Slim-DP with PyTorch: optimizers that make their own steps, and exchange the changes."""

import copy
import pickle

import pytest
from conftest import in_processes

import phub

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

import models  # noqa: E402

import phub.torch  # noqa: E402

ROUNDS = 14


def train(rank, hub, world_size, job, slim):
    """Trains a worker. Returns the losses, the parameters, the bytes of the model, and the traffic in bytes until each step."""
    model = models.fresh("cnn")
    if rank > 0:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()  # all workers begin with rank 0's parameters, so these do not count
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = phub.torch.DistributedOptimizer(
        optimizer, model.named_parameters(), hub=hub, rank=rank, world_size=world_size, job=job, compression=slim
    )
    losses, crossed = [], [0]
    for inputs, targets in models.batches("cnn", ROUNDS, rank, world_size):
        optimizer.zero_grad()
        loss = models.loss_of(model, inputs, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        crossed.append(optimizer.session.traffic.sent)
    optimizer.leave()
    parameters = [each.detach().numpy() for each in model.parameters()]
    return losses, models.digest(model), sum(each.nbytes for each in parameters), crossed


def alone():
    model = models.fresh("cnn")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for inputs, targets in models.batches("cnn", ROUNDS):
        optimizer.zero_grad()
        loss = models.loss_of(model, inputs, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_who_sends_everything_walks_the_way_of_one_process(hub):
    # Each worker steps with its own momentum. The mean of these steps equals one step with the momentum of the mean gradient.
    results = in_processes(2, train, hub.address, 2, "all", phub.SlimDP(1.0, 0.5, q=4))
    means = [sum(losses) / 2 for losses in zip(*(result[0] for result in results))]
    assert means == pytest.approx(alone(), rel=1e-3)
    assert results[0][1] == results[1][1]


@pytest.mark.parametrize("explorer", ["seeded", "keys"])
def test_a_part_is_sent_and_the_rest_is_the_workers_own(hub, explorer):
    slim = phub.SlimDP(0.3, 0.15, q=10, explorer=explorer)
    results = in_processes(2, train, hub.address, 2, f"part-{explorer}", slim)
    for losses, _, model_bytes, crossed in results:
        assert losses[-1] < 0.9 * losses[0]
        parts = [(after - before) / model_bytes for before, after in zip(crossed[1:], crossed[2:])]
        # Rounds 1, 2 and 10 send everything. parts[1] is the first of the rounds that send a part.
        expected = 0.3 if explorer == "seeded" else 0.375
        assert parts[0] == pytest.approx(1, abs=0.1)
        assert parts[1] == pytest.approx(expected, abs=0.1)
    assert results[0][1] != results[1][1]
    again = in_processes(2, train, hub.address, 2, f"again-{explorer}", slim)
    assert [result[1] for result in again] == [result[1] for result in results], "two runs have equal bits"


def test_what_its_own_steps_do_is_not_the_hubs(hub):
    optimizer = torch.optim.SGD(models.fresh("cnn").parameters(), lr=0.1)
    with pytest.raises(phub.SettingsError, match="makes its own steps"):
        phub.torch.DistributedOptimizer(optimizer, hub=hub.address, compression=phub.SlimDP(0.3, 0.1), clip_value=1.0)
    with pytest.raises(phub.SettingsError, match="beta is 0.4 with alpha 0.3"):
        phub.torch.DistributedOptimizer(
            optimizer, hub=hub.address, rank=0, world_size=1, job="beta", compression=phub.SlimDP(0.3, 0.4)
        )


def of_one_worker(hub, job, model, **settings):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = phub.torch.DistributedOptimizer(
        optimizer, model, hub=hub.address, rank=0, world_size=1, job=job, compression=phub.SlimDP(1.0, 0.5), **settings
    )
    return wrapped, lambda: (wrapped.zero_grad(), model(torch.ones(2, 3)).sum().backward(), wrapped.step())


def clamp(model):
    with torch.no_grad():
        model.bias.clamp_(-0.01, 0.01)


def load(model):
    model.load_state_dict({"weight": model.weight.detach().clone(), "bias": torch.zeros(4)})


@pytest.mark.parametrize("write", [clamp, load, lambda model: model.bias.data.zero_()])
def test_a_parameter_that_the_script_has_written_is_an_error_at_the_step(hub, write):
    model = torch.nn.Linear(3, 4)
    wrapped, step = of_one_worker(hub, "written", model)
    for _ in range(2):
        step()
    kept = model.bias.detach().clone()
    write(model)
    with pytest.raises(phub.torch.StateError, match="parameter 'bias' was written since the last step"):
        step()
    with torch.no_grad():
        model.bias.copy_(kept)
    step()  # values that are put back, as after an evaluation with averages, are no write
    model.double()
    with pytest.raises(phub.torch.StateError, match="parameter 'weight' was written"):
        wrapped.step()
    wrapped.leave()


def test_an_unfrozen_parameter_is_an_error_at_the_step(hub):
    model = torch.nn.Linear(3, 4)
    model.bias.requires_grad_(False)
    wrapped, step = of_one_worker(hub, "unfrozen", model)
    step()
    model.bias.requires_grad_(True)
    with pytest.raises(phub.torch.WrapError, match="parameter 'bias' was unfrozen"):
        step()
    model.bias.requires_grad_(False)
    model.bias.grad = torch.ones(4)  # torch would step it
    with pytest.raises(phub.torch.WrapError, match="parameter 'bias' was unfrozen, or got a gradient"):
        wrapped.step()
    model.bias.grad = None
    wrapped.param_groups[0]["params"] = [model.weight]
    with pytest.raises(phub.torch.WrapError, match="got other parameters"):
        step()
    wrapped.leave()


def test_a_copy_is_an_optimizer_of_torchs_own_with_the_state(hub):
    model = torch.nn.Linear(3, 4)
    wrapped, step = of_one_worker(hub, "copies", model)
    wrapped.param_groups[0]["momentum"] = 0.9
    with wrapped.no_sync():  # gradients are this worker's own anyhow
        step()
    for copied in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        assert type(copied) is torch.optim.SGD
        kept = [each["momentum_buffer"] for each in wrapped.state.values()]
        assert all(map(torch.equal, kept, (each["momentum_buffer"] for each in copied.state.values())))
        former = copied.param_groups[0]["params"][0].detach().clone()
        copied.param_groups[0]["params"][0].grad = torch.ones(4, 3)
        copied.step()
        assert not torch.equal(copied.param_groups[0]["params"][0], former)
    step()
    wrapped.leave()


def test_a_step_is_one_step_for_profiles_and_hooks(hub):
    wrapped, step = of_one_worker(hub, "hooks", torch.nn.Linear(3, 4))
    calls = []
    if hasattr(wrapped, "register_step_post_hook"):  # torch 2
        wrapped.register_step_post_hook(lambda *_: calls.append("step"))
    with torch.autograd.profiler.profile() as profile:
        for _ in range(3):
            step()
    steps = [each.name for each in profile.function_events if each.name.startswith("Optimizer.step#")]
    assert steps == ["Optimizer.step#SGD.step"] * 3
    assert len(calls) in (0, 3)
    wrapped.leave()


def test_a_step_without_torchs_hooks(hub, monkeypatch):
    """torch.compile of torch 2.1 and 2.2 takes the function that runs hooks away from the optimizers' steps, and leaves its mark."""
    wrapped, step = of_one_worker(hub, "without-hooks", torch.nn.Linear(3, 4))
    bare = torch.optim.SGD.step.__wrapped__
    monkeypatch.setattr(torch.optim.SGD, "step", bare)
    monkeypatch.setattr(bare, "hooked", True, raising=False)
    step()
    wrapped.leave()


def test_buffers_are_not_given_after_steps(hub):
    with pytest.raises(phub.SettingsError, match="broadcast_buffers=True with SlimDP"):
        of_one_worker(hub, "buffers", torch.nn.Linear(3, 4), broadcast_buffers=True)
