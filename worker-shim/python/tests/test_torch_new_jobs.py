"""Optimizer state over new jobs: a script that unfreezes, adds groups, loads or resets gets the same numbers as with torch's
optimizer."""

import copy
import gc

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

import phub  # noqa: E402
from conftest import in_processes  # noqa: E402
from test_torch_optimizer import OPTIMIZERS, Net, data, same, wrap  # noqa: E402
from test_torch_state import KEEPING, train  # noqa: E402


def freeze(module, is_frozen=True):
    for parameter in module.parameters():
        parameter.requires_grad_(not is_frozen)
        parameter.grad = None  # torch steps a frozen parameter that has a gradient


def read_before_the_first_step(model, optimizer, wrapped):
    train(model, optimizer, 0, 5)
    optimizer = wrapped(optimizer)
    state = copy.deepcopy(optimizer.state_dict())
    assert len(state["state"]) == 4
    optimizer.load_state_dict(state)
    train(model, optimizer, 5, 8)
    return optimizer


def unfrozen_before_the_first_step(model, optimizer, wrapped):
    train(model, optimizer, 0, 5)
    freeze(model.first)
    optimizer = wrapped(optimizer)
    freeze(model.first, False)
    train(model, optimizer, 5, 8)
    return optimizer


def two_groups_added(model, optimizer, wrapped):
    optimizer.param_groups[0]["params"] = [model.first.weight, model.first.bias]
    optimizer = wrapped(optimizer)
    train(model, optimizer, 0, 3)
    optimizer.add_param_group({"params": [model.second.weight]})
    optimizer.add_param_group({"params": [model.second.bias]})
    train(model, optimizer, 3, 6)
    return optimizer


def head_then_body_then_both(model, optimizer, wrapped):
    freeze(model.first)
    optimizer = wrapped(optimizer)
    train(model, optimizer, 0, 3)
    freeze(model.second)
    freeze(model.first, False)
    train(model, optimizer, 3, 6)
    assert len(optimizer.state_dict()["state"]) == 4
    freeze(model.second, False)
    train(model, optimizer, 6, 8)
    return optimizer


def taken_out_and_put_back(model, optimizer, wrapped):
    optimizer = wrapped(optimizer)
    train(model, optimizer, 0, 3)
    bias = optimizer.param_groups[0]["params"].pop()
    optimizer.zero_grad()
    train(model, optimizer, 3, 5)
    bias.grad = None
    optimizer.param_groups[0]["params"].append(bias)
    train(model, optimizer, 5, 8)
    return optimizer


def cleared_and_unfrozen(model, optimizer, wrapped):
    freeze(model.second)
    optimizer = wrapped(optimizer)
    train(model, optimizer, 0, 3)
    optimizer.state.clear()
    assert not optimizer.state
    freeze(model.second, False)
    train(model, optimizer, 3, 6)
    return optimizer


def one_entry_deleted_and_unfrozen(model, optimizer, wrapped):
    freeze(model.second)
    optimizer = wrapped(optimizer)
    train(model, optimizer, 0, 3)
    del optimizer.state[model.first.weight]
    freeze(model.second, False)
    train(model, optimizer, 3, 6)
    return optimizer


def the_state_of_a_frozen_parameter_is_deleted(model, optimizer, wrapped):
    train(model, optimizer, 0, 3)
    freeze(model.second)
    optimizer = wrapped(optimizer)
    train(model, optimizer, 3, 5)
    del optimizer.state[model.second.weight]
    train(model, optimizer, 5, 6)
    freeze(model.second, False)
    train(model, optimizer, 6, 8)
    return optimizer


def a_fresh_state_is_loaded(model, optimizer, wrapped):
    fresh = copy.deepcopy(optimizer.state_dict())
    optimizer = wrapped(optimizer)
    train(model, optimizer, 0, 3)
    optimizer.load_state_dict(fresh)
    assert not optimizer.state_dict()["state"]
    train(model, optimizer, 3, 6)
    return optimizer


SCRIPTS = [
    read_before_the_first_step,
    unfrozen_before_the_first_step,
    two_groups_added,
    head_then_body_then_both,
    taken_out_and_put_back,
    cleared_and_unfrozen,
    one_entry_deleted_and_unfrozen,
    the_state_of_a_frozen_parameter_is_deleted,
    a_fresh_state_is_loaded,
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
@pytest.mark.parametrize("name", KEEPING)
def test_a_script_has_torchs_numbers(hub, name, script):
    models = [Net(), Net()]
    for model, wrapped in zip(models, [lambda optimizer: optimizer, lambda optimizer: wrap(optimizer, models[1], hub)]):
        optimizer = script(model, OPTIMIZERS[name](model.parameters()), wrapped)
    optimizer.leave()
    same(models[1], models[0])


def test_a_skipped_first_step_and_a_new_job(hub):
    model = Net()
    freeze(model.first)
    optimizer = wrap(OPTIMIZERS["adamw"](model.parameters()), model, hub, skip_nonfinite=True)
    optimizer.zero_grad()
    (torch.nn.functional.cross_entropy(model(data()[0]), data()[1]) * float("inf")).backward()
    optimizer.step()
    freeze(model.first, False)
    train(model, optimizer, 0, 3)
    theirs = Net()
    train(theirs, OPTIMIZERS["adamw"](theirs.parameters()), 0, 3)
    optimizer.leave()
    same(model, theirs)


def test_averages_continue_after_a_load(hub):
    model = Net()
    optimizer = wrap(OPTIMIZERS["adamw"](model.parameters()), model, hub, ema=0.9)
    train(model, optimizer, 0, 4)
    with optimizer.averaged():
        before = copy.deepcopy(model.state_dict())
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    with optimizer.averaged():
        after = copy.deepcopy(model.state_dict())
    optimizer.leave()
    assert all(torch.equal(each, after[name]) for name, each in before.items())
    assert not torch.equal(before["first.weight"], model.first.weight)


def test_a_group_within_averages_is_refused_and_not_added(hub):
    model = Net()
    freeze(model.first)
    rest = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = wrap(OPTIMIZERS["adamw"](rest), model, hub, ema=0.9)
    train(model, optimizer, 0, 1)
    freeze(model.first, False)
    group = {"params": list(model.first.parameters())}
    with optimizer.averaged(), pytest.raises(phub.torch.StateError, match="another group of parameters"):
        optimizer.add_param_group(group)
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group(group)
    train(model, optimizer, 1, 2)
    optimizer.leave()
    assert len(optimizer.param_groups) == 2


def test_state_of_16_bits_is_not_rounded_for_a_new_job(hub):
    """The square of a small gradient is 0 in f16, and Adam would make a step of many times the learning rate."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)).half()
    freeze(model[0])
    optimizer = wrap(torch.optim.Adam(model.parameters(), lr=2.0**-6), model, hub)
    steps = []
    for number in range(8):
        if number == 4:
            freeze(model[0], False)
        before = model[1].bias.detach().clone()
        optimizer.zero_grad()
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.full_like(parameter, 1e-4)
        optimizer.step()
        optimizer.synchronize()
        steps.append((model[1].bias - before).abs().max().item())
    optimizer.leave()
    assert max(steps) < 1.5 * 2.0**-6


def unfrozen_in_the_run(model, optimizer):
    freeze(model.first, False)
    train(model, optimizer, 3, 6)


def loaded_in_the_run(model, optimizer):
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


@pytest.mark.parametrize("name, change", [("sgd", unfrozen_in_the_run), ("adamw", unfrozen_in_the_run), ("adamw", loaded_in_the_run)])
def test_a_checkpoint_of_a_new_job_does_not_replace_the_runs_own_values(tmp_path, name, change):
    """A run that starts again continues its first job, and then finds the checkpoint of the former run's second job."""
    for start in range(2):
        with phub.serve(cores=1, checkpoints=tmp_path) as hub:
            model = Net()
            freeze(model.first)
            optimizer = wrap(OPTIMIZERS[name](model.parameters()), model, hub)
            train(model, optimizer, 0, 3)
            if start == 0:
                change(model, optimizer)
                train(model, optimizer, 6, 8)
                assert optimizer.session.job == "job.1"
                optimizer.leave()
            else:
                with pytest.raises(phub.SettingsError, match="'job.1' has a checkpoint.*continues job 'job'"):
                    change(model, optimizer)


@pytest.mark.filterwarnings("ignore:optimizer contains")
def test_a_parameter_that_is_twice_in_the_groups_is_an_error(hub):
    """If the groups have a parameter twice, such as a weight that two modules share, torch steps it twice."""
    model = Net()
    tied = torch.optim.SGD([*model.parameters(), model.second.bias], lr=0.1)
    with pytest.raises(phub.SettingsError, match="'second.bias' is 2 times in the optimizer's groups"):
        wrap(tied, model, hub)
    optimizer = wrap(OPTIMIZERS["adamw"](model.parameters()), model, hub)
    train(model, optimizer, 0, 2)
    optimizer.param_groups[0]["params"].append(model.first.weight)
    for call in (optimizer.zero_grad, optimizer.step):
        with pytest.raises(phub.SettingsError, match="'first.weight' is 2 times"):
            call()
    optimizer.param_groups[0]["params"].pop()
    train(model, optimizer, 2, 4)
    assert optimizer.session.job == "job"
    theirs = Net()
    train(theirs, OPTIMIZERS["adamw"](theirs.parameters()), 0, 4)
    optimizer.leave()
    same(model, theirs)


def loads_at_rank_0_alone(rank, hub):
    """The example of Horovod for ImageNet resumes so: rank 0 loads a checkpoint after the wrap, and then broadcasts it."""
    model = Net()
    optimizer = wrap(OPTIMIZERS["adamw"](model.parameters()), model, hub, rank=rank, world_size=2)
    train(model, optimizer, 0, 2)
    state = optimizer.state_dict()
    optimizer._phub_join._session["join_limit"] = 0.2
    with pytest.raises(phub.MissingWorkersError if rank == 0 else phub.PeerLeftError) as error:
        if rank == 0:
            optimizer.load_state_dict(state)
        train(model, optimizer, 2, 4)
        optimizer.synchronize()
    return str(error.value)


def test_a_state_that_rank_0_alone_loads_is_an_error_that_says_so(hub):
    told, _ = in_processes(2, loads_at_rank_0_alone, hub.address)
    assert "left job 'job' for a new job, and other workers have not" in told and "[1] of 2" in told
    assert "test_torch_new_jobs.py" in told and "only before DistributedOptimizer" in told


def loads_and_counts_mappings(rank, hub):
    model = Net()
    optimizer = wrap(OPTIMIZERS["adamw"](model.parameters()), model, hub, rank=rank, world_size=2)
    counts = []
    gc.disable()
    for times in range(4):
        train(model, optimizer, 2 * times, 2 * times + 2)
        optimizer.load_state_dict(optimizer.state_dict())
        with open("/proc/self/maps") as maps:
            counts.append(sum("/memfd:" in line for line in maps))
    optimizer.leave()
    return counts


def test_the_windows_of_former_jobs_are_freed_without_a_garbage_collection(hub):
    for counts in in_processes(2, loads_and_counts_mappings, hub.address):
        assert counts[0] > 0 and len({*counts}) == 1, counts
