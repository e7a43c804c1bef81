"""Gradients that a script changes, replaces or removes between the backward pass and `step()`."""

import torch
import torch.distributed as dist

from ..context import Mlp, adamw
from ..idiom import idiom


@idiom(workers=(1, 2, 4))
def clamped_by_data(ctx):
    run = ctx.run()
    for _ in run.before_steps():
        for each in run.net.parameters():
            each.grad.data.clamp_(-0.01, 0.01)


@idiom()
def clamped_in_place(ctx):
    run = ctx.run(make=adamw)
    for _ in run.before_steps():
        for each in run.net.parameters():
            each.grad.clamp_(-0.01, 0.01)


@idiom()
def clamped_by_their_other_name(ctx):
    run = ctx.run()
    for _ in run.before_steps():
        for each in run.net.parameters():
            each._grad.clamp_(-0.01, 0.01)


@idiom(workers=(1, 2, 4))
def replaced(ctx):
    run = ctx.run()
    for _ in run.before_steps():
        for each in run.net.parameters():
            each.grad = each.grad.sign() * 0.05


@idiom()
def replaced_by_one_number(ctx):
    """A gradient whose elements are all the same number in memory."""
    run = ctx.run()
    for _ in run.before_steps():
        run.net.first.weight.grad = torch.full((1, 1), 0.1).expand(8, 6)


@idiom()
def taken_away(ctx):
    run = ctx.run()
    for _ in run.before_steps():
        run.net.second.weight.grad = None


@idiom(workers=(1, 2, 4))
def clip_grad_norm(ctx):
    run = ctx.run()
    for _ in run.before_steps():
        ctx.record(norm=torch.nn.utils.clip_grad_norm_(run.net.parameters(), 0.1))


@idiom()
def clip_grad_value(ctx):
    run = ctx.run(make=adamw)
    for _ in run.before_steps():
        torch.nn.utils.clip_grad_value_(run.net.parameters(), 0.01)


@idiom()
def clipped_by_hand(ctx):
    run = ctx.run()
    for _ in run.before_steps():
        norm = sum(each.grad.data.norm(2).item() ** 2 for each in run.net.parameters()) ** 0.5
        for each in run.net.parameters():
            each.grad.data.mul_(min(1.0, 0.1 / (norm + 1e-6)))
        ctx.record(norm=norm)


@idiom()
def scaled_by_foreach(ctx):
    run = ctx.run()
    for _ in run.before_steps():
        torch._foreach_mul_([each.grad for each in run.net.parameters()], 0.1)


@idiom()
def written_by_out(ctx):
    run = ctx.run()
    for _ in run.before_steps():
        for each in run.net.parameters():
            torch.mul(each.grad, 0.25, out=each.grad)


@idiom()
def written_by_numpy(ctx):
    run = ctx.run()
    for _ in run.before_steps():
        for each in run.net.parameters():
            array = each.grad.numpy()
            array *= 0.5


@idiom()
def noise_added(ctx):
    run = ctx.run()
    source = torch.Generator().manual_seed(3)
    for _ in run.before_steps():
        for each in run.net.parameters():
            each.grad += 0.1 * torch.randn(each.shape, generator=source)


@idiom()
def centralised(ctx):
    run = ctx.run()
    for _ in run.before_steps():
        for each in run.net.parameters():
            if each.dim() > 1:
                each.grad.data.add_(-each.grad.data.mean(dim=1, keepdim=True))


@idiom()
def masked_for_pruned_weights(ctx):
    run = ctx.run(make=adamw)
    masks = {name: (each.abs() > 0.1).float() for name, each in run.net.named_parameters()}
    for _ in run.before_steps():
        for name, each in run.net.named_parameters():
            each.grad.mul_(masks[name])


@idiom()
def one_row_of_an_embedding_left_out(ctx):
    """Word vectors of which only the new words are trained: the gradients of the other rows are zeroed."""
    net = torch.nn.Sequential(torch.nn.Embedding(5, 6), torch.nn.Flatten(), torch.nn.Linear(12, 3))
    model, optimizer = ctx.wrap(net, torch.optim.SGD(net.parameters(), lr=0.5))
    for inputs, targets in ctx.batches():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model((inputs[:, :2].abs() * 2).long().clamp(max=4)), targets)
        loss.backward()
        net[0].weight.grad[:3] = 0
        optimizer.step()
        ctx.record(net, loss=loss)


@idiom()
def flattened_and_written_back(ctx):
    run = ctx.run()
    for _ in run.before_steps():
        parameters = list(run.net.parameters())
        flat = torch.cat([each.grad.view(-1) for each in parameters])
        flat = flat / flat.norm()
        ctx.record(flat=flat)
        for each, part in zip(parameters, flat.split([each.numel() for each in parameters])):
            each.grad.copy_(part.view_as(each))


@idiom()
def gradient_surgery(ctx):
    """PCGrad: the part of one task's gradient that is opposite to the other task's gradient is removed."""
    run = ctx.run()
    for inputs, targets in ctx.batches():
        of_tasks = []
        for wanted in (targets, targets.flip(0)):
            run.optimizer.zero_grad()
            run.loss(inputs, wanted).backward()
            of_tasks.append(torch.cat([each.grad.flatten() for each in run.net.parameters()]))
        first, second = of_tasks
        if first @ second < 0:
            first = first - (first @ second) / second.norm() ** 2 * second
        total, place = first + second, 0
        for each in run.net.parameters():
            each.grad = total[place : place + each.numel()].view_as(each).clone()
            place += each.numel()
        run.optimizer.step()
        ctx.record(run.net, total=total)


@idiom(hooked=False)
def assigned_from_autograd_grad(ctx):
    net = Mlp()
    _, optimizer = ctx.wrap(net, adamw(net.parameters()))
    for inputs, targets in ctx.batches():
        loss = torch.nn.functional.cross_entropy(net(inputs), targets)
        for each, gradient in zip(net.parameters(), torch.autograd.grad(loss, list(net.parameters()))):
            each.grad = ctx.mean(gradient)
        optimizer.step()
        ctx.record(net, loss=loss)


@idiom()
def tensor_hooks(ctx):
    run = ctx.run()
    for each in run.net.parameters():
        each.register_hook(lambda gradient: gradient.clamp(-0.02, 0.02))
    run.train()


@idiom(needs=(2, 1))
def post_accumulate_hooks(ctx):
    run = ctx.run()

    def halve(parameter):
        parameter.grad.mul_(0.5)

    for each in run.net.parameters():
        each.register_post_accumulate_grad_hook(halve)
    run.train()


@idiom()
def skipped_when_not_finite(ctx):
    run = ctx.run()
    for step, (inputs, targets) in enumerate(ctx.batches()):
        run.optimizer.zero_grad()
        loss = run.loss(inputs * (float("nan") if step == 2 else 1.0), targets)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(run.net.parameters(), 1.0)
        if not torch.isfinite(norm):
            run.optimizer.zero_grad()
            continue
        run.optimizer.step()
        ctx.record(run.net, loss=loss, norm=norm)


@idiom(workers=(1, 2, 4))
def skipped_when_one_rank_is_not_finite(ctx):
    run = ctx.run(make=adamw)
    for step, (inputs, targets) in enumerate(ctx.batches()):
        run.optimizer.zero_grad()
        is_bad = step == 2 and ctx.rank == ctx.world - 1
        run.loss(inputs * (float("inf") if is_bad else 1.0), targets).backward()
        if not all(each.grad.isfinite().all() for each in run.net.parameters()):
            ctx.record(skipped=step)
            continue
        run.optimizer.step()
        ctx.record(run.net)


@idiom()
def momentum_of_the_scripts_own(ctx):
    """The script keeps the gradients of earlier steps, and adds them to the new gradients."""
    run = ctx.run(momentum=0.0)
    kept = {}
    for _ in run.before_steps():
        for name, each in run.net.named_parameters():
            if name in kept:
                each.grad.add_(kept[name], alpha=0.5)
            kept[name] = each.grad.clone()


@idiom()
def all_reduced_again(ctx):
    """The script averages gradients over ranks itself, although they already are averages."""
    run = ctx.run()
    for _ in run.before_steps():
        for each in run.net.parameters():
            dist.all_reduce(each.grad.data)
            each.grad.data /= ctx.world


@idiom()
def views_of_a_buffer(ctx):
    """Gradients are views of one buffer, and the script clips the buffer."""
    net = Mlp()
    model, optimizer = ctx.wrap(net, adamw(net.parameters()))
    flat, at = torch.zeros(sum(each.numel() for each in net.parameters())), 0
    for each in net.parameters():
        each.grad = flat[at : at + each.numel()].view_as(each)
        at += each.numel()
    for inputs, targets in ctx.batches(4):
        flat.zero_()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        norm = flat.norm()
        flat.mul_(0.1 / norm)
        optimizer.step()
        ctx.record(net, norm=norm)
