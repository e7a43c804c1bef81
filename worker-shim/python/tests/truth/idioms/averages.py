"""Averages of weights: EMA in the ways of several libraries, SWA, target networks."""

import copy

import torch
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

from ..context import Mlp, adamw, sgd
from ..idiom import VERSION, idiom


@idiom()
def of_timm(ctx):
    """A deep copy of the model, whose state is moved towards the model's state after each step."""
    run = ctx.run()
    average = copy.deepcopy(run.net).eval()
    for _ in run.after_steps():
        with torch.no_grad():
            for ours, theirs in zip(average.state_dict().values(), run.net.state_dict().values()):
                ours.copy_(0.9 * ours + 0.1 * theirs)
        ctx.record(average={name: each.clone() for name, each in average.state_dict().items()})


@idiom()
def of_timm_before_the_wrap(ctx):
    net = Mlp()
    average = copy.deepcopy(net)
    run = ctx.run(net, adamw)
    for _ in run.after_steps():
        with torch.no_grad():
            for ours, theirs in zip(average.parameters(), net.parameters()):
                ours.lerp_(theirs, 0.1)
        ctx.record(average=list(average.parameters()))


@idiom()
def of_diffusers(ctx):
    """A list of shadow parameters. For an evaluation the script stores the parameters, copies the shadows into the model, and
    restores the parameters."""
    run = ctx.run()
    shadow = [each.clone().detach() for each in run.net.parameters()]
    for step, _ in enumerate(run.after_steps(6)):
        with torch.no_grad():
            for ours, theirs in zip(shadow, run.net.parameters()):
                ours.sub_(0.1 * (ours - theirs))
        if step % 2:
            stored = [each.detach().cpu().clone() for each in run.net.parameters()]
            for ours, theirs in zip(shadow, run.net.parameters()):
                theirs.data.copy_(ours.to(theirs.device).data)
            with torch.no_grad():
                ctx.record(seen=run.net(torch.ones(2, 6)))
            for kept, each in zip(stored, run.net.parameters()):
                each.data.copy_(kept.data)
        ctx.record(shadow=shadow)


@idiom()
def by_foreach(ctx):
    run = ctx.run(make=adamw)
    shadow = [each.detach().clone() for each in run.net.parameters()]
    for _ in run.after_steps():
        with torch.no_grad():
            torch._foreach_mul_(shadow, 0.9)
            torch._foreach_add_(shadow, list(run.net.parameters()), alpha=0.1)
        ctx.record(shadow=shadow)


@idiom()
def by_names(ctx):
    """The class of a well-known tutorial: `register`, `update`, `apply_shadow`, `restore`."""
    run = ctx.run()
    shadow = {name: each.data.clone() for name, each in run.net.named_parameters() if each.requires_grad}
    for _ in run.after_steps():
        for name, each in run.net.named_parameters():
            shadow[name] = (0.1 * each.data + 0.9 * shadow[name]).clone()
        ctx.record(shadow=shadow)
    backup = {}
    for name, each in run.net.named_parameters():
        backup[name] = each.data
        each.data = shadow[name]
    ctx.record(run.net)
    for name, each in run.net.named_parameters():
        each.data = backup[name]
    run.train(2)


@idiom()
def of_views_taken_before_the_wrap(ctx):
    net = Mlp()
    views = [each.data for each in net.parameters()]
    run = ctx.run(net)
    average = [each.clone() for each in views]
    for _ in run.after_steps():
        for ours, theirs in zip(average, views):
            ours.mul_(0.9).add_(theirs, alpha=0.1)
        ctx.record(average=average)


@idiom()
def of_views_taken_after_the_wrap(ctx):
    run = ctx.run(make=adamw)
    views = [each.data for each in run.net.parameters()]
    average = [each.clone() for each in views]
    for _ in run.after_steps():
        for ours, theirs in zip(average, views):
            ours.mul_(0.9).add_(theirs, alpha=0.1)
        ctx.record(average=average)


@idiom()
def of_numpy_views(ctx):
    run = ctx.run()
    views = [each.detach().numpy() for each in run.net.parameters()]
    average = [each.copy() for each in views]
    for _ in run.after_steps():
        average = [0.9 * ours + 0.1 * theirs for ours, theirs in zip(average, views)]
        ctx.record(average=[torch.from_numpy(each) for each in average])


@idiom()
def of_numpy_views_before_the_wrap(ctx):
    net = Mlp()
    views = [each.detach().numpy() for each in net.parameters()]
    run = ctx.run(net)
    for _ in run.after_steps():
        ctx.record(seen=[torch.from_numpy(each) for each in views])


@idiom()
def of_a_state_dict_taken_once(ctx):
    """The script takes `state_dict()` once, and uses this dict in each step, because the dict shares memory with the model."""
    run = ctx.run()
    state = run.net.state_dict()
    for _ in run.after_steps():
        ctx.record(state=state)


@idiom()
def swa_utils(ctx):
    run = ctx.run()
    averaged = AveragedModel(run.net)
    schedule = SWALR(run.optimizer, anneal_strategy="linear", anneal_epochs=2, swa_lr=0.05)
    for step, _ in enumerate(run.after_steps(6)):
        if step >= 2:
            averaged.update_parameters(run.net)
            schedule.step()
        ctx.record(averaged=averaged.state_dict(), rate=run.optimizer.param_groups[0]["lr"])


@idiom()
def swa_utils_with_ema(ctx):
    run = ctx.run(make=adamw)
    averaged = AveragedModel(run.net, avg_fn=lambda average, new, count: 0.9 * average + 0.1 * new, use_buffers=True)
    for _ in run.after_steps():
        averaged.update_parameters(run.net)
        ctx.record(averaged=averaged.state_dict())


@idiom(needs=(2, 1))
def swa_utils_with_multi_avg_fn(ctx):
    run = ctx.run(make=adamw)
    averaged = AveragedModel(run.net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    for _ in run.after_steps():
        averaged.update_parameters(run.net)
        ctx.record(averaged=averaged.state_dict())


@idiom(workers=(1,))
def swa_with_new_means(ctx):
    """SWA: `update_bn` at the end, and the average is copied into the model."""
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    run = ctx.run(net)
    averaged = AveragedModel(net)
    for _ in run.after_steps():
        averaged.update_parameters(net)
    update_bn(ctx.batches(), averaged)
    ctx.record(averaged=averaged.state_dict())
    net.load_state_dict(averaged.module.state_dict())
    run.train(2)


@idiom()
def momentum_encoder(ctx):
    """MoCo: before each forward pass the key encoder, which is never trained, is moved towards the query encoder."""
    run = ctx.run()
    keys = copy.deepcopy(run.net)
    for each in keys.parameters():
        each.requires_grad = False
    for inputs, _ in ctx.batches():
        for ours, theirs in zip(keys.parameters(), run.net.parameters()):
            ours.data = ours.data * 0.9 + theirs.data * 0.1
        run.optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(run.model(inputs), keys(inputs.flip(1)))
        loss.backward()
        run.optimizer.step()
        ctx.record(run.net, keys, loss=loss)


@idiom()
def mean_teacher(ctx):
    """The teacher is a part of the module that is wrapped."""

    class Both(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.student, self.teacher = Mlp(), Mlp()
            self.teacher.load_state_dict(self.student.state_dict())
            self.teacher.requires_grad_(False)

        def forward(self, inputs):
            with torch.no_grad():
                wanted = self.teacher(inputs.flip(1))
            return self.student(inputs), wanted

    both = Both()
    model, optimizer = ctx.wrap(both, sgd(both.student.parameters()))
    for inputs, targets in ctx.batches():
        optimizer.zero_grad()
        outputs, wanted = model(inputs)
        loss = torch.nn.functional.cross_entropy(outputs, targets) + torch.nn.functional.mse_loss(outputs, wanted)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for ours, theirs in zip(both.teacher.parameters(), both.student.parameters()):
                ours.mul_(0.9).add_(theirs, alpha=0.1)
        ctx.record(both, loss=loss)


def _after_step(optimizer, hook):
    """Calls a function after each `step()`: by torch's hook, or by a wrapped `step` for versions of torch without hooks."""
    if VERSION >= (2, 0):
        optimizer.register_step_post_hook(lambda *_: hook())
        return
    step = optimizer.step

    def and_then(*arguments, **named):
        loss = step(*arguments, **named)
        hook()
        return loss

    optimizer.step = and_then


@idiom()
def by_a_hook_of_step(ctx):
    run = ctx.run()
    average = copy.deepcopy(run.net)

    @torch.no_grad()
    def update():
        for ours, theirs in zip(average.parameters(), run.net.parameters()):
            ours.lerp_(theirs, 0.5)

    _after_step(run.optimizer, update)
    for _ in run.after_steps():
        ctx.record(average=average.state_dict())
