"""Settings of a torch optimizer's groups that change during a run: the steps equal torch's, or an error names the setting."""

import math

import pytest

torch = pytest.importorskip("torch")

from test_torch_optimizer import Net, backward, data, wrap  # noqa: E402

import phub.torch  # noqa: E402
from phub.torch._settings import Settings  # noqa: E402

ROUNDS = 10


def groups_of(model, **second):
    return [{"params": list(model.first.parameters())}, {"params": list(model.second.parameters()), **second}]


def one_cycle(optimizer, max_lr):
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr, total_steps=ROUNDS + 1, pct_start=0.4).step


def by_hand(*changes):
    """Returns a schedule that changes settings itself, from the changes of each step as (group, setting, value)."""

    def of(optimizer):
        steps = iter(changes)

        def step():
            for group, name, value in next(steps, ()):
                optimizer.param_groups[group][name] = value

        return step

    return of


def warm_up(optimizer):
    """Returns a schedule of a warm-up: the first group's rate begins at 0, and the other group's rate does not change."""
    rates = [lambda step: step / ROUNDS, lambda step: 1.0]
    return torch.optim.lr_scheduler.LambdaLR(optimizer, rates).step


SCHEDULES = {
    "one cycle, Adam": (
        lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
        lambda optimizer: one_cycle(optimizer, 0.02),
    ),
    "one cycle, AdamW, groups": (
        lambda model: torch.optim.AdamW(groups_of(model, lr=0.003, weight_decay=0.0), lr=0.01, weight_decay=0.1),
        lambda optimizer: one_cycle(optimizer, [0.02, 0.01]),
    ),
    "one cycle, momentum": (
        lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=0.01),
        lambda optimizer: one_cycle(optimizer, 0.1),
    ),
    "one cycle, Nesterov": (
        lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True),
        lambda optimizer: one_cycle(optimizer, 0.1),
    ),
    "a group's rate begins at 0": (
        lambda model: torch.optim.SGD(groups_of(model, lr=0.02), lr=0.1, momentum=0.9),
        warm_up,
    ),
    "all rates begin at 0": (
        lambda model: torch.optim.Adam(groups_of(model, lr=0.002), lr=0.01),
        lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / ROUNDS).step,
    ),
    "momentum and dampening by group": (
        lambda model: torch.optim.SGD(groups_of(model, momentum=0.5, dampening=0.25), lr=0.1, momentum=0.9, dampening=0.5),
        by_hand([(0, "momentum", 0.75)], [(1, "dampening", 0.125), (1, "lr", 0.05)], [(0, "momentum", 0.5), (0, "dampening", 0.125)]),
    ),
    "betas and eps by group": (
        lambda model: torch.optim.AdamW(groups_of(model, betas=(0.5, 0.9), eps=1e-3, lr=0.02), lr=0.01),
        by_hand([], [(0, "betas", (0.8, 0.95))], [(1, "eps", 1e-8), (1, "weight_decay", 0.2)], [(1, "betas", (0.8, 0.95))]),
    ),
    "weight decay, ratios of rates, eps": (
        lambda model: torch.optim.AdamW(groups_of(model, lr=0.02), lr=0.01, weight_decay=0.0),
        by_hand(
            [(1, "weight_decay", 0.3)],
            [(0, "weight_decay", 0.1), (0, "lr", 0.0)],
            [(0, "lr", 0.03), (1, "lr", 0.007), (0, "eps", 1e-4), (1, "eps", 1e-4)],
            [(1, "weight_decay", 0.0), (1, "lr", 0.0)],
            [(0, "lr", 0.0)],
            [(1, "lr", 0.01)],
        ),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_steps_are_torchs(hub, name):
    make, schedule = SCHEDULES[name]
    ours, theirs = Net(), Net()
    optimizers = wrap(make(ours), ours, hub), make(theirs)
    for model, optimizer in zip((ours, theirs), optimizers):
        step = schedule(optimizer)
        for number in range(ROUNDS):
            optimizer.zero_grad()
            backward(model, *data(number))
            optimizer.step()
            step()
    moved = 0.0
    for (key, our), their, begun in zip(ours.named_parameters(), theirs.parameters(), Net().parameters()):
        our, their = our.detach(), their.detach()
        largest = float(their.abs().max())
        difference = float((our - their).abs().max()) / largest
        assert difference <= 1e-6, f"{key}: {difference}"
        moved = max(moved, float((their - begun.detach()).abs().max()) / largest)
    assert moved > 1e-2, "there was something to compare"


@pytest.mark.parametrize(
    "make, change, words",
    [
        ({"momentum": 0.9}, {"momentum": 0.0}, r"momentum was 0.9 and is 0.0 now: .*; use a small momentum instead of 0"),
        ({}, {"momentum": 0.9}, r"SGD: parameter group 1: momentum was 0 and is 0.9 now"),
        ({"momentum": 0.9}, {"nesterov": True}, r"SGD: parameter group 1: nesterov was False and is True now"),
        ({"momentum": 0.9}, {"dampening": 0.5}, r"dampening was 0 and is 0.5 now: .*; start a new job to change dampening"),
        ({}, {"maximize": True}, r"SGD: parameter group 1: maximize was False and is True now"),
    ],
)
def test_what_the_hub_cannot_follow_is_named_again_and_again(make, change, words):
    model = Net()
    optimizer = torch.optim.SGD(groups_of(model), lr=0.1, **make)
    settings = Settings.of(optimizer)
    former = {name: optimizer.param_groups[1][name] for name in change}
    optimizer.param_groups[1].update(change)
    for _ in range(2):
        with pytest.raises(phub.torch.UnsupportedOptimizerError, match=words):
            settings.changed(optimizer.param_groups)
    optimizer.param_groups[1].update(former)
    assert settings.changed(optimizer.param_groups) is None


def test_a_change_is_told_once_and_multipliers_only_if_they_change():
    model = Net()
    optimizer = torch.optim.Adam(groups_of(model, lr=torch.tensor(0.03)), lr=0.1, foreach=False)
    settings, groups = Settings.of(optimizer), optimizer.param_groups
    assert [each.learning_rate for each in settings.groups] == pytest.approx([1.0, 0.3])
    assert settings.changed(groups) is None
    for group in groups:
        group["lr"] = group["lr"] * (1 / 3)  # the ratio of the groups' rates does not change, except for rounding
    assert settings.differs(groups)
    change = settings.changed(groups)
    assert math.isclose(change.optimizer.learning_rate, 0.1 / 3) and change.groups is None
    assert not settings.differs(groups) and settings.changed(groups) is None
    groups[1]["lr"] = 0.0
    assert [each.learning_rate for each in settings.changed(groups).groups] == [1.0, 0.0]
    groups[0]["lr"] = 0.0
    change = settings.changed(groups)
    assert (change.optimizer.learning_rate, change.groups) == (0.0, None), "no rate is left to multiply"
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
    with pytest.raises(phub.torch.UnsupportedOptimizerError, match="2 parameter groups at the join and has 3 now"):
        settings.changed(optimizer.param_groups)


def test_groups_of_a_session_have_their_own_numbers_until_the_next_change(hub):
    keys = {"a": (4,), "b": (3,)}
    with phub.Session(hub, 0, 1, keys=keys, optimizer=phub.Momentum(1.0, 0.5), job="job") as session:
        session.broadcast()

        def train(rounds, a, b):
            for _ in range(rounds):
                for key in keys:
                    session.gradient(key)[:] = 1.0
                session.push()
                session.wait()
            assert (session.weights("a").tolist(), session.weights("b").tolist()) == ([a] * 4, [b] * 3)

        session.set_optimizer(phub.Momentum(1.0, 0.0), groups={"b": phub.Momentum(0.5, 0.5)})
        train(2, -2.0, -1.25)
        session.set_learning_rate(0.25)
        train(1, -2.25, -1.6875)
        session.set_optimizer(phub.Momentum(1.0, 0.0))
        train(1, -3.25, -2.6875)
        for groups, words in (({"c": phub.Momentum(1.0, 0.5)}, "groups: 'c' is not one of"), ({"a": phub.Sgd(1.0)}, "are of sgd")):
            with pytest.raises(phub.SettingsError, match=words):
                session.set_optimizer(phub.Momentum(1.0, 0.0), groups=groups)


def test_multipliers_of_a_session_are_those_of_all_its_keys(hub):
    keys = {"a": (4,), "b": (3,)}
    with phub.Session(hub, 0, 1, keys=keys, optimizer=phub.Momentum(0.5, 0.5), job="job") as session:
        session.broadcast()
        session.set_optimizer(phub.Momentum(1.0, 0.0, weight_decay=0.5), {"b": (0.5, 0.0), "a": (1.0, 1.0)})
        for _ in range(2):
            for key in keys:
                session.gradient(key)[:] = 1.0
            session.push()
            session.wait()
        assert session.weights("a").tolist() == [-1.5] * 4
        assert session.weights("b").tolist() == [-1.0] * 3
        session.set_optimizer(phub.Momentum(1.0, 0.5), {"a": (1.0, 0.0), "b": (1.0, 0.0)}, reset=["a"])
        session.push()
        session.wait()
        assert session.weights("a").tolist() == [-2.5] * 4, "its momentum is that of one gradient"
        assert session.weights("b").tolist() == [-2.5] * 3, "half of the former gradient and a new one"
        with pytest.raises(phub.SettingsError, match="reset: 'c' is not one of the job's keys"):
            session.set_optimizer(phub.Momentum(1.0, 0.5), reset=["c"])
        with pytest.raises(phub.SettingsError, match=r"reset is 'ab': expected a list of names, such as \['ab'\]"):
            session.set_optimizer(phub.Momentum(1.0, 0.5), reset="ab")
        for wrong, words in (({"a": (1, 1)}, "'b' is missing"), ({"a": (1, 1), "b": (1, 1), "c": (1, 1)}, "'c' is not one of")):
            with pytest.raises(phub.SettingsError, match=words):
                session.set_optimizer(phub.Momentum(1.0, 0.0), wrong)
        with pytest.raises(phub.SettingsError, match="optimizer is momentum, and the new hyperparameters are of sgd"):
            session.set_optimizer(phub.Sgd(1.0))
        with pytest.raises(phub.SettingsError, match="momentum is 1; expected a finite number from 0 to below 1"):
            session.set_optimizer(phub.Momentum(1.0, 1.0))
