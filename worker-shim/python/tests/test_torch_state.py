"""The hub's optimizer state in the form of torch's optimizers: a training that was stopped continues with the bits of a training
that was not stopped. Scripts save and load the state as with torch's own optimizer."""

import io
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import in_processes, mesh

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

import models  # noqa: E402
from test_torch_optimizer import OPTIMIZERS, Net, data, wrap  # noqa: E402

import phub.torch  # noqa: E402
from phub.torch._windows import pinnable  # noqa: E402

KEEPING = ("momentum", "nesterov", "adam", "adamw", "dampened", "amsgrad", "maximize, adam", "lion")


def train(model, optimizer, first, last):
    for number in range(first, last):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(data(number)[0]), data(number)[1]).backward()
        optimizer.step()


def file_of(what):
    file = io.BytesIO()
    torch.save(what, file)
    return file.getvalue()


def through_a_file(what):
    return torch.load(io.BytesIO(file_of(what)))


@pytest.fixture(scope="module")
def saved():
    """The results with a hub that has ended, by optimizer: model and state after five steps, and the model after ten steps."""
    results = {}
    for name in KEEPING:
        with phub.serve(cores=1) as hub:
            model = Net()
            optimizer = wrap(OPTIMIZERS[name](model.parameters()), model, hub)
            train(model, optimizer, 0, 5)
            halfway = through_a_file((model.state_dict(), optimizer.state_dict()))
            train(model, optimizer, 5, 10)
            optimizer.leave()
            results[name] = (*halfway, models.digest(model))
    return results


@pytest.mark.parametrize("name", KEEPING)
def test_a_training_goes_on_with_a_hub_that_is_started_again(saved, tmp_path, name):
    hub = phub.serve(cores=1, checkpoints=tmp_path)
    address = hub.address
    model = Net()
    optimizer = wrap(OPTIMIZERS[name](model.parameters()), model, address)
    train(model, optimizer, 0, 5)
    places = [parameter.data_ptr() for parameter in model.parameters()]
    hub.stop("for the test")
    with phub.serve(address, cores=1, checkpoints=tmp_path):
        train(model, optimizer, 5, 10)
        optimizer.synchronize()
        assert models.digest(model) == saved[name][2]
        assert [parameter.data_ptr() for parameter in model.parameters()] == places
        assert optimizer.session.returns == phub.Returns(times=1, lost_rounds=0)
        assert optimizer.session.relinks == 0
        optimizer.leave()


def test_a_state_is_fetched_from_a_hub_that_returns(monkeypatch, tmp_path):
    hub = phub.serve(cores=1, checkpoints=tmp_path)
    model = Net()
    optimizer = wrap(OPTIMIZERS["adam"](model.parameters()), model, hub.address)
    train(model, optimizer, 0, 3)
    optimizer.synchronize()
    before = optimizer.session.state()
    hub.stop("for the test")
    tried, fetch = threading.Event(), phub._session._state.fetch

    def try_to_fetch(*arguments):
        try:
            return fetch(*arguments)
        finally:
            tried.set()

    monkeypatch.setattr(phub._session._state, "fetch", try_to_fetch)
    with ThreadPoolExecutor() as pool:
        fetched = pool.submit(optimizer.session.state)
        assert tried.wait(60)
        with phub.serve(hub.address, cores=1, checkpoints=tmp_path):
            after = fetched.result(60)
            assert (after.round, after.steps) == (before.round, before.steps)
            assert all((after.tensors[name] == values).all() for name, values in before.tensors.items())
            optimizer.leave()


def test_a_state_of_a_hub_that_does_not_return_is_an_error():
    hub = phub.serve(cores=1)
    model = Net()
    optimizer = wrap(OPTIMIZERS["sgd"](model.parameters()), model, hub.address, hub_wait=1)
    train(model, optimizer, 0, 1)
    optimizer.synchronize()
    hub.stop("for the test")
    with pytest.raises(phub.JobFailedError, match=r"for the test.* did not come back within 1\.\d s"):
        optimizer.session.state()


def file_at(address):
    """Returns device and inode of the file that is mapped at this address."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, _rights, _offset, device, inode, *_name = line.split()
            first, end = (int(each, 16) for each in span.split("-"))
            if first <= address < end:
                return device, inode
    raise AssertionError(f"nothing is mapped at {address:#x}")


@pytest.mark.parametrize("weights", ["private", "shared"])
def test_what_a_gpu_may_pin_stays_when_a_hub_comes_back(tmp_path, weights):
    hub = phub.serve(cores=1, checkpoints=tmp_path)
    address = hub.address
    model = Net()
    optimizer = wrap(OPTIMIZERS["momentum"](model.parameters()), model, address, weights=weights, transport="shm")
    train(model, optimizer, 0, 2)
    session = optimizer.session
    pinned = [window.data_ptr() for key in session.keys for window in pinnable(session, key)]
    assert len(pinned) == len(session.keys) * (2 if weights == "private" else 1)
    shown = session.weights("first.weight").ctypes.data
    before, hubs_before = [file_at(each) for each in pinned], file_at(shown)
    hub.stop("for the test")
    with phub.serve(address, cores=1, checkpoints=tmp_path):
        train(model, optimizer, 2, 4)
        optimizer.synchronize()
        assert session.returns.times == 1
        assert [file_at(each) for each in pinned] == before
        if weights == "shared":
            assert file_at(shown) != hubs_before, "the test sees another hub's pages"
        optimizer.leave()


def fresh(name, weights):
    """Returns the model and the optimizer of a script that is started again: with these weights, and without optimizer state."""
    model = Net()
    model.first.weight.data.zero_()  # so that the weights differ before they are loaded
    model.load_state_dict(weights)
    return model, OPTIMIZERS[name](model.parameters())


@pytest.mark.parametrize("name", KEEPING)
def test_a_state_that_is_loaded_before_the_wrap_goes_on_bit_for_bit(hub, saved, name):
    weights, state, expected = saved[name]
    model, optimizer = fresh(name, weights)
    optimizer.load_state_dict(state)
    optimizer = wrap(optimizer, model, hub)
    train(model, optimizer, 5, 10)
    optimizer.leave()
    assert models.digest(model) == expected


@pytest.mark.parametrize("name", KEEPING)
def test_a_state_that_is_loaded_after_the_wrap_goes_on_bit_for_bit(hub, saved, name):
    weights, state, expected = saved[name]
    model = Net()
    optimizer = wrap(OPTIMIZERS[name](model.parameters()), model, hub)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    train(model, optimizer, 0, 2)  # the loads below undo these steps
    optimizer.synchronize()
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)
    assert optimizer.session.job == "job.1"
    train(model, optimizer, 5, 10)
    scheduler.step()
    optimizer.leave()
    assert models.digest(model) == expected


@pytest.mark.parametrize("name", KEEPING)
def test_the_state_is_torchs_own(saved, name):
    weights, state, expected = saved[name]
    model, optimizer = fresh(name, weights)
    local = OPTIMIZERS[name](model.parameters())
    train(model, local, 0, 1)
    assert {*state["state"][0]} == {*local.state_dict()["state"][0]}
    model, optimizer = fresh(name, weights)
    optimizer.load_state_dict(through_a_file(state))  # a copy, because torch writes its counts into the tensors that it loads
    train(model, optimizer, 5, 10)
    theirs = torch.frombuffer(bytearray(expected), dtype=torch.float32)
    ours = torch.frombuffer(bytearray(models.digest(model)), dtype=torch.float32)
    torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=1e-6)


HALFWAY = 3


def part(rank, settings, job, first, loaded):
    """Trains a worker from batch `first` on. Rank 0 first loads `loaded`, if it is given. Returns the results, and the state
    that the first worker saves halfway."""
    model = models.fresh("cnn")
    optimizer = models.optimizer_of("cnn", model)
    if loaded is not None and settings[rank]["rank"] == 0:
        weights, state = torch.load(io.BytesIO(loaded))
        model.load_state_dict(weights)
        optimizer.load_state_dict(state)
    optimizer = phub.torch.DistributedOptimizer(optimizer, model.named_parameters(), job=job, **settings[rank])
    saved = None
    for number, (inputs, targets) in enumerate(models.batches("cnn", 2 * HALFWAY, rank, 2)):
        if number < first:
            continue
        if number == HALFWAY and first == 0 and rank == 0:
            # The other worker does not ask for the state, and may be in the next round.
            saved = file_of((model.state_dict(), optimizer.state_dict()))
        optimizer.zero_grad()
        models.loss_of(model, inputs, targets).backward()
        optimizer.step()
    optimizer.leave()
    return saved, models.digest(model)


def flat(hub):
    return [{"hub": hub.address, "rank": rank, "world_size": 2} for rank in range(2)]


def test_workers_go_on_with_the_state_of_rank_0():
    with phub.serve(cores=1) as hub:
        (halfway, whole), (_, other) = in_processes(2, part, flat(hub), "whole", 0, None)
    with phub.serve(cores=1) as hub:
        rest = in_processes(2, part, flat(hub), "rest", HALFWAY, halfway)
    assert [digest for _, digest in rest] == [whole, other]


def test_machines_go_on_with_the_state_of_the_first_machine(hub, hubs):
    below = [{"hub": at.address, "rank": 0, "world_size": 1, "mesh": mesh(hubs, i)} for i, at in enumerate(hubs)]
    (halfway, whole), (_, other) = in_processes(2, part, below, "whole", 0, None)
    rest = in_processes(2, part, below, "rest", HALFWAY, halfway)
    assert [digest for _, digest in rest] == [whole, other]
    in_one_go = in_processes(2, part, flat(hub), "flat", HALFWAY, halfway)
    assert [digest for _, digest in in_one_go] == [whole, other]


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_parameters_that_have_made_different_numbers_of_steps_go_on_as_in_torch(saved, tmp_path, name):
    """Training continues as in torch, also from a checkpoint, if one bias is two steps behind and another bias had no gradient
    yet."""

    def apart(state):
        state = through_a_file(state)
        state["state"][1]["step"] = torch.tensor(3.0)
        del state["state"][3]
        return state

    weights, state, _ = saved[name]
    model, theirs = Net(), Net()
    for each in (model, theirs):
        each.load_state_dict(weights)
    optimizer, local = (OPTIMIZERS[name](each.parameters()) for each in (model, theirs))
    for each in (optimizer, local):
        each.load_state_dict(apart(state))

    def steps_of(of):
        return [float(each["step"]) for each in of.state_dict()["state"].values()]

    hub = phub.serve(cores=1, checkpoints=tmp_path)
    address = hub.address
    optimizer = wrap(optimizer, model, address)
    for first in (0, 2):
        for of, each in ((model, optimizer), (theirs, local)):
            train(of, each, first, first + 2)
        assert steps_of(optimizer) == steps_of(local) == [7.0 + first, 5.0 + first, 7.0 + first, 2.0 + first]
        for (key, our), their in zip(model.named_parameters(), theirs.parameters()):
            assert float((our - their).abs().max() / their.abs().max()) <= 1e-6, key
        if first == 0:
            hub.stop("for the test")
            hub = phub.serve(address, cores=1, checkpoints=tmp_path)
    optimizer.leave()
    hub.stop("for the test")
    loaded = OPTIMIZERS[name](model.parameters())
    assert phub.torch.load_checkpoint(tmp_path / "job.safetensors", model.named_parameters(), loaded) == 9
    assert steps_of(loaded) == [9.0, 7.0, 9.0, 4.0]


def changed(state, change):
    state = through_a_file(state)
    change(state["state"])
    return state


@pytest.mark.parametrize(
    "name, change, words",
    [
        ("nesterov", lambda state: state[0].update(momentum_buffer=torch.zeros(3)), r"'first.weight': its momentum_buffer is of shape \(3,\)"),
        ("nesterov", lambda state: state[0].update(exp_avg=torch.zeros(8, 6)), "has the state exp_avg, momentum_buffer, and the hub's Nesterov"),
        ("adam", lambda state: state[0].pop("exp_avg"), "has the state exp_avg_sq, and the hub's Adam keeps exp_avg, exp_avg_sq"),
        ("adam", lambda state: state[1].update(step=torch.tensor(float("inf"))), "inf steps were made; expected a whole number"),
        ("adam", lambda state: state[1].update(step=torch.tensor(2.5)), "2.5 steps were made"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(hub, saved, name, change, words):
    weights, state, _ = saved[name]
    model, optimizer = fresh(name, weights)
    optimizer.load_state_dict(changed(state, change))
    with pytest.raises(phub.SettingsError, match=words):
        wrap(optimizer, model, hub)
    model, optimizer = fresh(name, weights)
    optimizer = wrap(optimizer, model, hub)
    with pytest.raises(phub.SettingsError, match=words):
        optimizer.load_state_dict(changed(state, change))
    train(model, optimizer, 0, 1)  # the former job still runs
    assert optimizer.session.job == "job"


def test_a_job_that_goes_on_has_the_numbers_of_its_script(tmp_path):
    def steps(hub, *rates):
        model = torch.nn.Linear(3, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.5), model, hub)
        for rate in rates:
            optimizer.param_groups[0]["lr"] = rate
            model.weight.grad = torch.ones(1, 3)
            optimizer.step()
        found = model.weight[0].tolist()
        optimizer.leave()
        return found

    with phub.serve(cores=1, checkpoints=tmp_path) as hub:
        assert steps(hub, 0.5, 0.25) == [-0.75] * 3
        assert steps(hub, 0.5) == [-1.25] * 3, "and not the rate of the checkpoint"


def test_a_job_that_has_a_checkpoint_says_that_it_goes_on_with_that(tmp_path, saved):
    weights, state, expected = saved["adam"]
    with phub.serve(cores=1, checkpoints=tmp_path) as hub:
        model, optimizer = fresh("adam", weights)
        optimizer.load_state_dict(state)
        optimizer = wrap(optimizer, model, hub)
        train(model, optimizer, 5, 10)
        optimizer.leave()
        model, optimizer = fresh("adam", weights)
        optimizer.load_state_dict(state)
        with pytest.warns(UserWarning, match="'job' has a state at its hub already, before round 11"):
            optimizer = wrap(optimizer, model, hub)
        assert models.digest(model) == expected


def test_a_state_by_hand(hub):
    settings = {"rank": 0, "world_size": 1, "keys": {"a": (2, 3), "b": (1,)}}
    nesterov = phub.Nesterov(0.5, 0.5)
    with phub.Session(hub, optimizer=nesterov, job="first", **settings) as session:
        session.broadcast({"a": np.ones((2, 3)), "b": np.ones(1)})
        session.push_pull("a", np.full((2, 3), 2.0))
        session.push_pull("b", [4.0])
        state = session.state()
    assert state.round == 2 and state.names == ["momentum_buffer"]
    np.testing.assert_array_equal(state.of("momentum_buffer", "a"), np.full((2, 3), 2.0))
    np.testing.assert_array_equal(state.tensors["b"], [-2.0])
    with phub.Session(hub, optimizer=nesterov, job="second", state=state, **settings) as session:
        assert session.next_round == 2
        np.testing.assert_array_equal(session.weights("b"), [-2.0])
        session.push_pull("a", np.zeros((2, 3)))  # the momentum continues: m = 1, w = -0.5 - 0.5 * 0.5 * 1
        np.testing.assert_array_equal(session.weights("a"), np.full((2, 3), -0.75))
        session.push_pull("b", [0.0])
    adam = phub.Adam(0.1)
    with pytest.raises(phub.SettingsError, match="'optimizer/exp_avg/a' is not there"):
        phub.Session(hub, optimizer=adam, job="third", state=state, **settings)
    with pytest.raises(phub.SettingsError, match="round 0: expected 1"):
        phub.Session(hub, optimizer=nesterov, job="third", state=phub.State(0, state.tensors), **settings)
    with pytest.raises(phub.SettingsError, match="this job, with Sgd.*has no tensor or key 'optimizer/momentum_buffer/a'"):
        phub.Session(hub, optimizer=phub.Sgd(0.1), job="third", state=state, **settings)
    with phub.Session(hub, optimizer=adam, job="fourth", **settings) as session:
        with pytest.raises(phub.RefusedError, match="no weights yet"):
            session.state()
