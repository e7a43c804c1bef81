"""Weights that are loaded into a model during the run: the best weights, a checkpoint's weights, an average."""

import copy
import io

import torch

from ..context import Mlp, adamw, sgd
from ..idiom import idiom


def other_weights():
    torch.manual_seed(99)
    return copy.deepcopy(Mlp().state_dict())


@idiom(workers=(1, 2, 4))
def the_best_of_all(ctx):
    """The best weights are loaded at the end, as in a transfer-learning tutorial with early stopping."""
    run = ctx.run()
    best, lowest = None, float("inf")
    for loss in run.after_steps():
        total = ctx.mean(loss.detach().clone()).item()
        if total < lowest:
            lowest, best = total, copy.deepcopy(run.net.state_dict())
    run.net.load_state_dict(best)
    ctx.record(run.net, lowest=lowest)
    run.train(3)


@idiom()
def a_checkpoint_with_a_fresh_optimizer(ctx):
    run = ctx.run(make=adamw)
    run.net.load_state_dict(other_weights())
    run.train()


@idiom()
def a_checkpoint_in_the_middle(ctx):
    run = ctx.run()
    run.train(3)
    run.net.load_state_dict(other_weights())
    run.train(3)


@idiom()
def a_part_of_a_checkpoint(ctx):
    run = ctx.run()
    run.train(2)
    some = {name: value for name, value in other_weights().items() if not name.startswith("head")}
    run.net.load_state_dict(some, strict=False)
    run.train(3)


@idiom()
def a_checkpoint_before_the_first_step(ctx):
    """Each rank loads a checkpoint after rank 0's weights were broadcast, and before the first step."""
    net = Mlp()
    model, optimizer = ctx.wrap(net, sgd(net.parameters()))
    state = other_weights()
    for name, each in net.named_parameters():
        each.data.copy_(state[name])
    for inputs, targets in ctx.batches():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        ctx.record(net, loss=loss)


@idiom()
def model_and_optimizer(ctx):
    """A run is resumed: model and optimizer are made and wrapped, and then loaded."""
    first = ctx.run(make=adamw)
    first.train(3)
    file = io.BytesIO()
    torch.save({"model": first.net.state_dict(), "optimizer": first.optimizer.state_dict()}, file)
    file.seek(0)
    checkpoint = torch.load(file)
    second = ctx.run(make=adamw)
    second.net.load_state_dict(checkpoint["model"])
    second.optimizer.load_state_dict(checkpoint["optimizer"])
    second.train(3)


@idiom()
def back_to_the_best_with_the_optimizer(ctx):
    """Model and optimizer are set back to the best state during the run."""
    run = ctx.run(make=adamw)
    run.train(2)
    kept = copy.deepcopy(run.net.state_dict()), copy.deepcopy(run.optimizer.state_dict())
    run.train(2)
    run.net.load_state_dict(kept[0])
    run.optimizer.load_state_dict(kept[1])
    run.train(3)


@idiom()
def reptile(ctx):
    """Reptile: after some steps of a task, the weights are set a small way from the first weights towards the last."""
    run = ctx.run(momentum=0.0)
    for _ in range(3):
        before = copy.deepcopy(run.net.state_dict())
        run.train(2)
        after = run.net.state_dict()
        run.net.load_state_dict({name: before[name] + (after[name] - before[name]) * 0.3 for name in before})
        ctx.record(run.net)


@idiom()
def lookahead(ctx):
    run = ctx.run(make=adamw)
    slow = [each.clone().detach() for each in run.net.parameters()]
    for step, _ in enumerate(run.after_steps(6)):
        if step % 2:
            for each, kept in zip(run.net.parameters(), slow):
                kept.add_(each.data - kept, alpha=0.5)
                each.data.copy_(kept)


@idiom()
def soup_of_snapshots(ctx):
    """Weights of several steps are averaged, and training continues from there."""
    run = ctx.run()
    states = []
    for _ in run.after_steps(4):
        states.append({name: each.clone() for name, each in run.net.state_dict().items()})
    run.net.load_state_dict({name: sum(each[name] for each in states) / len(states) for name in states[0]})
    run.train(3)


@idiom()
def restarts_from_the_first_weights(ctx):
    """Lottery tickets: the weights are set back to the first weights, with a mask."""
    run = ctx.run()
    first = copy.deepcopy(run.net.state_dict())
    for _ in range(3):
        run.train(2)
        mask = (run.net.second.weight.abs() > 0.1).float()
        run.net.load_state_dict(first)
        run.net.second.weight.data.mul_(mask)


@idiom()
def averaged_by_the_script(ctx):
    """Local SGD: the script averages the parameters over ranks by its own all-reduce."""
    run = ctx.run()
    for _ in run.after_steps():
        for each in run.net.parameters():
            each.data.copy_(ctx.mean(each.data.clone()))


@idiom()
def after_a_spike_of_the_loss(ctx):
    """The script keeps the last good weights, and restores them when the loss is not finite."""
    run = ctx.run(momentum=0.0)
    good = None
    for step, (inputs, targets) in enumerate(ctx.batches(6)):
        run.optimizer.zero_grad()
        loss = run.loss(inputs * (1e30 if step == 3 else 1.0), targets)
        (loss * (float("inf") if step == 3 else 1.0)).backward()
        run.optimizer.step()
        if all(each.isfinite().all() for each in run.net.parameters()):
            good = copy.deepcopy(run.net.state_dict())
        else:
            run.net.load_state_dict(good)
        ctx.record(run.net, loss=loss)
