"""Averages of weights that the hub keeps: by a session, in a state, and for an evaluation in PyTorch."""

import numpy as np
import pytest
from conftest import in_processes

import phub

DECAY = 0.9
KEEP, GAIN = np.float32(DECAY), np.float32(1 - DECAY)


def step(session, value):
    for key in session.keys:
        session.gradient(key)[...] = value
        session.push(key)
    for key in session.keys:
        session.wait(key)


def test_an_average_follows_the_weights(hub):
    first = {"a": np.linspace(-1, 1, 50, dtype=np.float32), "b": np.float32([[2, 3]])}
    settings = {"keys": first, "optimizer": phub.Momentum(0.1, 0.9), "ema": DECAY}
    with phub.Session(hub, 0, 1, job="job", **settings) as session:
        session.broadcast(first)
        expected = {key: values.copy() for key, values in first.items()}
        for value in (1, -3, 0.5):
            step(session, value)
            for key, average in expected.items():
                average[...] = KEEP * average + GAIN * session.weights(key)
            for key, average in session.ema().items():
                np.testing.assert_array_equal(average, expected[key])
        state = session.state()
        assert state.names == ["momentum_buffer"] and sorted(state.ema) == ["a", "b"]
    with phub.Session(hub, 0, 1, job="brought", state=state, **settings) as session:
        step(session, 2)
        for key, average in session.ema().items():
            np.testing.assert_array_equal(average, KEEP * expected[key] + GAIN * session.weights(key))
    # In a state without averages, the averages begin with the weights.
    bare = phub.State(state.round, {name: each for name, each in state.tensors.items() if "/ema/" not in name})
    with phub.Session(hub, 0, 1, job="bare", state=bare, **settings) as session:
        for key, average in session.ema().items():
            np.testing.assert_array_equal(average, bare.tensors[key])


def test_averages_that_there_are_not_are_refused(hub):
    keys, optimizer = {"a": (3,)}, phub.Sgd(0.1)
    for decay in (0.0, 1.0, -0.5, float("nan"), 1 - 1e-12):
        with pytest.raises(phub.SettingsError, match="ema.*expected a decay above 0 and below 1"):
            phub.Session(hub, 0, 1, keys=keys, optimizer=optimizer, job="job", ema=decay)
    with pytest.raises(phub.Error, match="ema with the optimizer average.*the hub keeps no weights"):
        phub.Session(hub, 0, 1, keys=keys, optimizer=phub.Average(), job="job", ema=DECAY)
    with phub.Session(hub, 0, 1, keys=keys, optimizer=optimizer, job="job") as session:
        session.broadcast({"a": np.zeros(3, np.float32)})
        with pytest.raises(phub.SettingsError, match=r"'job' keeps no average.*Session\(ema=0.999\)"):
            session.ema()


torch = pytest.importorskip("torch")

from test_torch_optimizer import OPTIMIZERS, Net, backward, data, train, wrap  # noqa: E402

import phub.torch  # noqa: E402


def bits(model):
    return [parameter.detach().clone().view(torch.int32) for parameter in model.parameters()]


def equal(ours, theirs):
    return all(torch.equal(our, their) for our, their in zip(ours, theirs))


@pytest.mark.parametrize("name", ["sgd", "nesterov", "adamw"])
def test_a_model_is_evaluated_with_the_averages(hub, name):
    ours, theirs, without = Net(), Net(), Net()
    optimizer = wrap(OPTIMIZERS[name](ours.parameters()), ours, hub, ema=DECAY)
    local = OPTIMIZERS[name](theirs.parameters())
    plain = wrap(OPTIMIZERS[name](without.parameters()), without, hub, job="plain")
    averaged = torch.optim.swa_utils.AveragedModel(theirs, avg_fn=lambda average, new, _steps: DECAY * average + (1 - DECAY) * new)
    averaged.update_parameters(theirs)  # the first update only copies
    for number in range(6):
        for model, each in ((ours, optimizer), (theirs, local), (without, plain)):
            each.zero_grad()
            backward(model, *data(number))
            each.step()
        averaged.update_parameters(theirs)
        own = bits(ours)
        with optimizer.averaged():
            assert not equal(bits(ours), own)
            outputs = averaged.module(data()[0]).detach()
            torch.testing.assert_close(ours(data()[0]).detach(), outputs, rtol=1e-4, atol=1e-5)
            with optimizer.averaged(), pytest.raises(phub.torch.StateError, match=r"step\(\) within averaged\(\)"):
                optimizer.step()
        assert equal(bits(ours), own)
    assert equal(bits(ours), bits(without)), "the evaluations have changed nothing"
    rounds = [each.session.next_round for each in (optimizer, plain)]
    assert rounds[0] == rounds[1], "no round gave the hub values that nobody has written"


def test_own_values_come_back_after_an_error_and_with_what_the_script_has_written(hub):
    model = Net()
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, hub, ema=DECAY)
    train(model, optimizer, 3)
    with torch.no_grad():
        model.first.weight.mul_(2)
    own = bits(model)
    with pytest.raises(ZeroDivisionError), optimizer.averaged():
        raise ZeroDivisionError
    assert equal(bits(model), own)
    before = optimizer.session.next_round
    optimizer.zero_grad()
    backward(model, *data())
    optimizer.step()
    optimizer.synchronize()
    assert optimizer.session.next_round == before + 2, "the written values went to the hub in a round of their own"


def test_averages_go_along_with_another_group(hub):
    model, more = Net(), torch.nn.Parameter(torch.ones(3))
    for name in ("sgd", "adam"):
        optimizer = wrap(OPTIMIZERS[name](model.parameters()), model, hub, ema=DECAY, job=name)
        train(model, optimizer, 4)
        optimizer.synchronize()
        before = optimizer.session.ema()
        model.more = more
        optimizer.add_param_group({"params": [more]})
        after = optimizer.session.ema()
        np.testing.assert_array_equal(after.pop("more"), np.ones(3))
        assert before.keys() == after.keys()
        for key, average in after.items():
            np.testing.assert_array_equal(average, before[key])
            assert not np.array_equal(average, dict(model.named_parameters())[key].detach().numpy())
        optimizer.leave()
        del model.more


def evaluate_alone(rank, hub):
    model = Net()
    optimizer = wrap(torch.optim.Adam(model.parameters()), model, hub, rank=rank, world_size=2, ema=DECAY)
    seen = []
    for _ in range(4):
        train(model, optimizer, 2)
        if rank == 0:
            own = bits(model)
            with optimizer.averaged():
                seen.append(not equal(bits(model), own))
    optimizer.leave()
    return seen, [each.tolist() for each in bits(model)]


def test_one_rank_may_evaluate_alone(hub):
    (seen, first), (_, second) = in_processes(2, evaluate_alone, hub.address)
    assert seen == [True] * 4 and first == second


def test_an_optimizer_without_averages_says_so(hub):
    model = Net()
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, hub)
    with pytest.raises(phub.SettingsError, match="keeps no average"), optimizer.averaged():
        pass
    with pytest.raises(phub.SettingsError, match="SlimDP.*swa_utils"):
        wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, hub, ema=DECAY, compression=phub.SlimDP(0.3, 0.15), job="slim")
