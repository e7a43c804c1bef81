"""Learning rates, weight decay and momentum that change during the run."""

import torch
from torch.optim import lr_scheduler

from ..context import Mlp, adam, adamw, sgd
from ..idiom import idiom


def scheduled(ctx, make, schedule_of, steps=6, **settings):
    """Trains with a scheduler that steps after each step."""
    run = ctx.run(make=make, **settings)
    schedule = schedule_of(run.optimizer)
    for _ in run.after_steps(steps):
        schedule.step()
        ctx.record(rate=schedule.get_last_lr())


@idiom()
def one_cycle(ctx):
    """The momentum has a cycle, too."""
    scheduled(ctx, sgd, lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=8))


@idiom()
def one_cycle_with_adam(ctx):
    """The first beta has a cycle."""
    scheduled(ctx, adam, lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=8))


@idiom()
def cyclic(ctx):
    scheduled(ctx, sgd, lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.01, 0.2, step_size_up=2))


@idiom()
def cosine(ctx):
    scheduled(ctx, adamw, lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=6))


@idiom()
def cosine_to_zero_and_up_again(ctx):
    scheduled(ctx, sgd, lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=3, eta_min=0.0))


@idiom()
def warm_up_from_zero(ctx):
    """Transformers' linear schedule: the first rate is 0."""
    rate = lambda step: min(step / 3, max(0.0, (6 - step) / 3))  # noqa: E731, because scripts write it in this way
    scheduled(ctx, adamw, lambda optimizer: lr_scheduler.LambdaLR(optimizer, rate), steps=7)


@idiom()
def sequence_of_schedules(ctx):
    def schedule(optimizer):
        first = lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=3)
        return lr_scheduler.SequentialLR(optimizer, [first, lr_scheduler.ExponentialLR(optimizer, 0.8)], [3])

    scheduled(ctx, sgd, schedule)


@idiom()
def linear_to_zero(ctx):
    """The last rates are a rounding error below 0."""
    scheduled(ctx, sgd, lambda optimizer: lr_scheduler.LinearLR(optimizer, 0.3, 0.0, total_iters=3))


@idiom()
def steps_down(ctx):
    scheduled(ctx, sgd, lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [2, 4]), nesterov=True)


@idiom()
def reduced_on_a_plateau(ctx):
    run = ctx.run()
    schedule = lr_scheduler.ReduceLROnPlateau(run.optimizer, factor=0.5, patience=0, threshold=10.0)
    for loss in run.after_steps(6):
        schedule.step(ctx.mean(loss.detach().clone()))
        ctx.record(rate=run.optimizer.param_groups[0]["lr"])


@idiom()
def between_backward_and_step(ctx):
    run = ctx.run()
    for step, _ in enumerate(run.before_steps()):
        for group in run.optimizer.param_groups:
            group["lr"] = 0.1 / (step + 1)


@idiom()
def set_by_hand_before_the_pass(ctx):
    run = ctx.run(make=adamw)
    for step, (inputs, targets) in enumerate(ctx.batches(6)):
        run.optimizer.param_groups[0]["lr"] = 0.01 * (1 + step % 2)
        run.optimizer.zero_grad()
        run.loss(inputs, targets).backward()
        run.optimizer.step()
        ctx.record(run.net)


@idiom()
def layer_by_layer(ctx):
    """Deeper layers learn more slowly, and biases have no weight decay."""
    net = Mlp()
    groups = []
    for depth, layer in enumerate((net.head, net.second, net.first)):
        rate = 0.01 * 0.7**depth
        groups.append({"params": [layer.weight], "lr": rate, "weight_decay": 0.1})
        groups.append({"params": [layer.bias], "lr": rate, "weight_decay": 0.0})
    model, optimizer = ctx.wrap(net, adamw(groups))
    schedule = lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
    for inputs, targets in ctx.batches():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        schedule.step()
        ctx.record(net, loss=loss)


def two_groups(ctx, make, change, steps=6, **first):
    """Trains a head and a backbone, and calls `change` with the optimizer's groups before each step."""
    net = Mlp()
    backbone = {"params": [*net.first.parameters(), *net.second.parameters()], **first}
    model, optimizer = ctx.wrap(net, make([backbone, {"params": net.head.parameters()}]))
    for step, (inputs, targets) in enumerate(ctx.batches(steps)):
        change(step, *optimizer.param_groups)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        ctx.record(net, loss=loss)


@idiom()
def groups_apart(ctx):
    """Each group has its own schedule, so the ratio of their rates changes."""

    def change(step, backbone, head):
        backbone["lr"], head["lr"] = 0.01 * (step + 1), 0.1 / (step + 1)

    two_groups(ctx, sgd, change)


@idiom()
def a_group_at_rest(ctx):
    """The backbone's rate is 0 at first."""

    def change(step, backbone, head):
        backbone["lr"] = 0.0 if step < 3 else 0.01

    two_groups(ctx, adamw, change, lr=0.0)


@idiom()
def weight_decay_changed(ctx):
    """DINO's schedule of the weight decay."""

    def change(step, backbone, head):
        backbone["weight_decay"] = 0.05 * step

    two_groups(ctx, adamw, change)


@idiom()
def weight_decay_switched_on(ctx):
    def change(step, backbone, head):
        backbone["weight_decay"] = head["weight_decay"] = 0.0 if step < 3 else 0.2

    two_groups(ctx, sgd, change)


@idiom()
def momentum_changed(ctx):
    """The momentum has a warm-up, as in object detectors."""

    def change(step, backbone, head):
        backbone["momentum"] = head["momentum"] = 0.5 + 0.08 * step

    two_groups(ctx, sgd, change)


@idiom()
def momentum_of_groups_that_differ(ctx):
    two_groups(ctx, sgd, lambda *_: None, momentum=0.5)


@idiom()
def betas_changed(ctx):
    def change(step, backbone, head):
        backbone["betas"] = head["betas"] = (0.9 if step < 3 else 0.8, 0.999 - 0.01 * step)

    two_groups(ctx, adam, change)


@idiom()
def epsilon_changed(ctx):
    def change(step, backbone, head):
        backbone["eps"] = head["eps"] = 1e-8 if step < 3 else 1e-3

    two_groups(ctx, adam, change)


@idiom()
def momentum_switched_off(ctx):
    def change(step, backbone, head):
        backbone["momentum"] = head["momentum"] = 0.9 if step < 3 else 0.0

    two_groups(ctx, sgd, change)


@idiom()
def schedule_made_before_the_wrap(ctx):
    net = Mlp()
    optimizer = sgd(net.parameters())
    schedule = lr_scheduler.ExponentialLR(optimizer, 0.5)
    model, optimizer = ctx.wrap(net, optimizer)
    for inputs, targets in ctx.batches():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        schedule.step()
        ctx.record(net, loss=loss, rate=schedule.get_last_lr())


@idiom()
def schedule_saved_and_loaded(ctx):
    run = ctx.run()
    first = lr_scheduler.CosineAnnealingLR(run.optimizer, T_max=8)
    for _ in run.after_steps(3):
        first.step()
    second = lr_scheduler.CosineAnnealingLR(run.optimizer, T_max=8)
    second.load_state_dict(first.state_dict())
    for _ in run.after_steps(3):
        second.step()
        ctx.record(rate=second.get_last_lr())


@idiom(needs=(2, 1))
def rate_in_a_tensor(ctx):
    run = ctx.run(make=adamw, lr=torch.tensor(0.01))
    for _ in run.after_steps():
        run.optimizer.param_groups[0]["lr"].mul_(0.9)


@idiom()
def snapshots_with_restarts(ctx):
    """A cosine with restarts. A restart keeps Adam's state."""
    scheduled(ctx, adamw, lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=2), steps=7)
