"""Optimizer state that a script reads, saves, loads, copies or clears."""

import collections
import copy
import io
import pickle

import torch

from ..context import Mlp, adam, adamw, sgd
from ..idiom import idiom


def through_a_file(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file)


@idiom()
def momentum_read(ctx):
    run = ctx.run()
    for _ in run.after_steps():
        ctx.record(momentum=[run.optimizer.state[each]["momentum_buffer"] for each in run.net.parameters()])


@idiom()
def averages_of_adam_read(ctx):
    run = ctx.run(make=adamw)
    for _ in run.after_steps():
        for each in run.net.parameters():
            state = run.optimizer.state[each]
            ctx.record(
                step=torch.as_tensor(float(state["step"])), first=state["exp_avg"], second=state["exp_avg_sq"]
            )


@idiom()
def state_counted(ctx):
    """The script counts the optimizer's state, and the memory that it takes."""
    run = ctx.run(make=adam)
    ctx.record(entries=len(run.optimizer.state))
    for _ in run.after_steps(2):
        sizes = [value.numel() for state in run.optimizer.state.values() for value in (state["exp_avg"],)]
        ctx.record(entries=len(run.optimizer.state), sizes=sizes)


@idiom()
def state_dict_read(ctx):
    run = ctx.run(make=adamw)
    for _ in run.after_steps(3):
        ctx.record(state=numbers(run.optimizer.state_dict()))


def numbers(state_dict):
    """Returns a state_dict without the parts that differ between versions of torch."""
    groups = [
        {name: group[name] for name in ("lr", "weight_decay", "momentum", "betas", "eps", "params") if name in group}
        for group in state_dict["param_groups"]
    ]
    state = {
        str(number): {name: torch.as_tensor(state[name]).float() for name in sorted(state) if state[name] is not None}
        for number, state in sorted(state_dict["state"].items())
    }
    return {"groups": groups, "state": state}


@idiom()
def state_dict_between_backward_and_step(ctx):
    run = ctx.run()
    for step, _ in enumerate(run.before_steps(4)):
        if step == 2:
            ctx.record(state=numbers(run.optimizer.state_dict()), model=run.net.state_dict())


def resumed(ctx, make):
    """Trains, saves, and continues with a model and an optimizer that are loaded before the wrap."""
    run = ctx.run(make=make)
    run.train(3)
    saved = through_a_file({"model": run.net.state_dict(), "optimizer": run.optimizer.state_dict()})
    net = Mlp()
    net.load_state_dict(saved["model"])
    optimizer = make(net.parameters())
    optimizer.load_state_dict(saved["optimizer"])
    model, optimizer = ctx.wrap(net, optimizer)
    for inputs, targets in ctx.batches(4):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        ctx.record(net, loss=loss)


@idiom()
def resumed_with_momentum(ctx):
    resumed(ctx, sgd)


@idiom()
def resumed_with_adamw(ctx):
    resumed(ctx, adamw)


@idiom()
def resumed_after_skipped_steps(ctx):
    """One parameter has fewer steps than the other parameters, also in the state."""
    run = ctx.run(make=adamw)
    for step, _ in enumerate(run.before_steps(4)):
        if step < 2:
            run.net.head.bias.grad = None
    saved = through_a_file({"model": run.net.state_dict(), "optimizer": run.optimizer.state_dict()})
    ctx.record(state=numbers(saved["optimizer"]))
    again = ctx.run(make=adamw)
    again.net.load_state_dict(saved["model"])
    again.optimizer.load_state_dict(saved["optimizer"])
    again.train(3)


@idiom(workers=(1, 2, 4))
def loaded_between_backward_and_clip(ctx):
    """The script loads a state, and then clips the gradients from before the load: they are means nevertheless."""
    run = ctx.run(make=adamw)
    for step, _ in enumerate(run.before_steps()):
        if step == 2:
            run.optimizer.load_state_dict(through_a_file(run.optimizer.state_dict()))
        ctx.record(norm=torch.nn.utils.clip_grad_norm_(run.net.parameters(), 0.1))


@idiom()
def loaded_within_no_sync(ctx):
    """Gradients in the block stay this rank's own."""
    run = ctx.run(make=adamw)
    for step, (inputs, targets) in enumerate(ctx.batches()):
        run.optimizer.zero_grad()
        with ctx.no_sync(run.model):
            if step == 2:
                run.optimizer.load_state_dict(run.optimizer.state_dict())
            run.loss(inputs, targets).backward()
            ctx.record(own=[each.grad for each in run.net.parameters()])
        run.loss(inputs.flip(0), targets).backward()
        ctx.record(mean=[each.grad for each in run.net.parameters()])
        run.optimizer.step()
        ctx.record(run.net)


@idiom()
def best_state_kept(ctx):
    """The best optimizer state is kept by a deep copy, and read at the end."""
    run = ctx.run()
    kept = None
    for step, _ in enumerate(run.after_steps()):
        if step == 2:
            kept = copy.deepcopy(run.optimizer.state_dict())
    ctx.record(state=numbers(kept))


@idiom()
def cleared(ctx):
    """The script clears the momentum at a restart."""
    run = ctx.run()
    run.train(3)
    run.optimizer.state = collections.defaultdict(dict)
    run.train(3)


@idiom()
def averages_set_to_zero(ctx):
    run = ctx.run(make=adam)
    run.train(3)
    for each in run.net.parameters():
        run.optimizer.state[each]["exp_avg"].zero_()
    run.train(3)


@idiom()
def model_copied(ctx):
    run = ctx.run()
    run.train(2)
    other = copy.deepcopy(run.net)
    run.train(2)
    ctx.record(other)
    local = sgd(other.parameters())
    torch.nn.functional.cross_entropy(other(torch.ones(3, 6)), torch.arange(3)).backward()
    local.step()
    ctx.record(other, run.net)


@idiom()
def model_pickled(ctx):
    run = ctx.run(make=adamw)
    run.train(2)
    other = pickle.loads(pickle.dumps(run.net))
    run.train(2)
    ctx.record(other)


@idiom()
def model_saved_whole(ctx):
    run = ctx.run()
    run.train(2)
    file = io.BytesIO()
    torch.save(run.net, file)
    run.train(2)
    file.seek(0)
    settings = {"weights_only": False} if "weights_only" in torch.load.__code__.co_varnames else {}
    ctx.record(torch.load(file, **settings))


@idiom()
def optimizer_copied(ctx):
    """A deep copy of an optimizer has copies of the parameters, and makes its own steps."""
    run = ctx.run()
    run.train(2)
    net, optimizer = copy.deepcopy((run.net, run.optimizer))
    run.train(2)
    loss = torch.nn.functional.cross_entropy(net(torch.ones(3, 6)), torch.arange(3))
    loss.backward()
    optimizer.step()
    ctx.record(net, run.net, loss=loss)


@idiom()
def optimizer_pickled(ctx):
    run = ctx.run(make=adamw)
    run.train(2)
    optimizer = pickle.loads(pickle.dumps(run.optimizer))
    run.train(2)
    ctx.record(state=numbers(optimizer.state_dict()))


@idiom()
def optimizer_printed(ctx):
    run = ctx.run()
    run.train(2)
    ctx.record(kind=type(run.optimizer).__name__, is_sgd=isinstance(run.optimizer, torch.optim.SGD))
    ctx.record(rate=run.optimizer.defaults["lr"], groups=len(run.optimizer.param_groups))
    assert "lr: 0.1" in repr(run.optimizer)


@idiom()
def another_optimizer_in_the_middle(ctx):
    """Adam first, then SGD for the same model."""
    run = ctx.run(make=adam)
    run.train(3)
    run.model, run.optimizer = ctx.again(run.net, run.optimizer, sgd(run.net.parameters(), lr=0.05))
    run.train(3)


@idiom()
def one_of_two_optimizers_ends_first(ctx):
    net = Mlp()
    model, first = ctx.wrap(net, sgd(net.parameters()))
    second = ctx.also(net, adam(net.parameters()))
    for step, (inputs, targets) in enumerate(ctx.batches()):
        if step == 2:
            ctx.leave(second)
        first.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        ctx.record(norm=torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1), loss=loss)
        (second if step < 2 else first).step()
        ctx.record(net)


@idiom()
def another_optimizer_after_an_error(ctx):
    """An exception in a step; the script continues with another optimizer."""
    run = ctx.run()
    try:
        for step, _ in enumerate(run.before_steps()):
            if step == 2:
                raise FloatingPointError("the loss is no number")
    except FloatingPointError:
        run.model, run.optimizer = ctx.again(run.net, run.optimizer, adamw(run.net.parameters()))
    run.train(3)


@idiom()
def a_local_optimizer_afterwards(ctx):
    """The script leaves the job, and continues with a torch optimizer."""
    net = Mlp()
    run = ctx.run(net)
    run.train(3)
    ctx.leave(run.optimizer)
    local = sgd(net.parameters())
    for inputs, targets in ctx.batches(3):
        local.zero_grad()
        torch.nn.functional.cross_entropy(net(inputs), targets).backward()
        local.step()
        ctx.record(net)
