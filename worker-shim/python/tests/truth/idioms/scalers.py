"""`GradScaler`: losses are scaled, gradients are unscaled, steps with infinite gradients are skipped."""

import torch

from ..context import Mlp, adam, adamw, sgd
from ..idiom import idiom
from ..scaler import scaler


def trained(ctx, run, steps=6, bad=(), unscale=lambda scaler: None):
    """The loop of torch's manual. Steps in `bad` have an infinite loss on all ranks."""
    scales = scaler()
    for step, (inputs, targets) in enumerate(ctx.batches(steps)):
        run.optimizer.zero_grad()
        loss = run.loss(inputs, targets)
        scales.scale(loss * (float("inf") if step in bad else 1.0)).backward()
        unscale(scales)
        scales.step(run.optimizer)
        scales.update()
        ctx.record(run.net, loss=loss, scale=scales.get_scale())
    ctx.record(state=scales.state_dict())


@idiom()
def with_sgd(ctx):
    trained(ctx, ctx.run())


@idiom(workers=(1, 2, 4))
def with_adamw(ctx):
    trained(ctx, ctx.run(make=adamw))


@idiom()
def with_sgd_and_a_bad_step(ctx):
    trained(ctx, ctx.run(), bad=[2])


@idiom()
def with_adam_and_bad_steps(ctx):
    """Adam's correction counts the steps that were made, not those that were skipped."""
    trained(ctx, ctx.run(make=adam), bad=[0, 1, 3])


@idiom(needs=(2, 4))
def with_fused_adamw(ctx):
    trained(ctx, ctx.run(make=adamw, fused=True), bad=[2])


@idiom(needs=(2, 4))
def with_fused_sgd(ctx):
    trained(ctx, ctx.run(fused=True), bad=[2])


@idiom()
def with_foreach_adamw(ctx):
    trained(ctx, ctx.run(make=adamw, foreach=True), bad=[2])


@idiom()
def unscaled_and_clipped(ctx):
    run = ctx.run(make=adamw)

    def clip(scales):
        scales.unscale_(run.optimizer)
        ctx.record(norm=torch.nn.utils.clip_grad_norm_(run.net.parameters(), 0.1))

    trained(ctx, run, bad=[1], unscale=clip)


@idiom(workers=(1, 2, 4))
def infinite_on_one_rank(ctx):
    """DDP's mean is infinite everywhere, so all ranks skip."""
    run = ctx.run()
    scales = scaler()
    for step, (inputs, targets) in enumerate(ctx.batches(6)):
        run.optimizer.zero_grad()
        loss = run.loss(inputs, targets)
        is_bad = step == 3 and ctx.rank == ctx.world - 1
        scales.scale(loss * (float("inf") if is_bad else 1.0)).backward()
        scales.step(run.optimizer)
        scales.update()
        ctx.record(run.net, scale=scales.get_scale())


@idiom()
def with_accumulation(ctx):
    run = ctx.run(make=adamw)
    scales = scaler()
    for step, (inputs, targets) in enumerate(ctx.batches(6)):
        scales.scale(run.loss(inputs, targets) / 2).backward()
        if step % 2:
            scales.step(run.optimizer)
            scales.update()
            run.optimizer.zero_grad()
        ctx.record(run.net, scale=scales.get_scale())


@idiom()
def two_optimizers(ctx):
    """One scaler, and two optimizers of which only one has an infinite gradient."""
    first, second = Mlp(), Mlp()
    one, by_sgd = ctx.wrap(first, sgd(first.parameters()))
    other, by_adam = ctx.wrap(second, adamw(second.parameters()))
    scales = scaler()
    for step, (inputs, targets) in enumerate(ctx.batches(6)):
        losses = [torch.nn.functional.cross_entropy(model(inputs), targets) for model in (one, other)]
        by_sgd.zero_grad()
        by_adam.zero_grad()
        scales.scale(losses[0]).backward()
        scales.scale(losses[1] * (float("inf") if step == 2 else 1.0)).backward()
        scales.step(by_sgd)
        scales.step(by_adam)
        scales.update()
        ctx.record(first, second, losses=losses, scale=scales.get_scale())


@idiom()
def with_autocast(ctx):
    """The forward pass in bfloat16, parameters in float32."""
    run = ctx.run(make=adamw)
    scales = scaler()
    for inputs, targets in ctx.batches():
        run.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = run.loss(inputs, targets)
        scales.scale(loss).backward()
        scales.step(run.optimizer)
        scales.update()
        ctx.record(run.net, loss=loss)
