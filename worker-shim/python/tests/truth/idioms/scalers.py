"""`GradScaler`: losses are scaled, gradients are unscaled, steps with infinite gradients are skipped."""

import warnings

import torch

from ..context import Mlp, adam, adamw, sgd
from ..idiom import idiom
from ..scaler import scaler


def trained(ctx, run, steps=6, bad=(), unscale=lambda scaler: None):
    """Runs the loop of torch's manual. Steps in `bad` have an infinite loss on all ranks."""
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
    """Adam's bias correction does not count skipped steps."""
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


AT_THE_HUB = {"skip_nonfinite": True}
"""Settings with which the hub unscales gradients and finds inf/NaN."""


@idiom(workers=(1, 2, 4), hooked=False)
def found_by_the_hub(ctx):
    trained(ctx, ctx.run(make=adam, wrap=AT_THE_HUB), steps=8, bad=[0, 3, 4])


@idiom(hooked=False)
def unscaled_where_the_hub_finds(ctx):
    """The script reads the mean before its step. The scaler then unscales and searches the mean itself."""
    run = ctx.run(make=adamw, wrap=AT_THE_HUB)

    def clip(scales):
        scales.unscale_(run.optimizer)
        ctx.record(norm=torch.nn.utils.clip_grad_norm_(run.net.parameters(), 0.1))

    trained(ctx, run, bad=[1], unscale=clip)


@idiom(hooked=False)
def made_finite_where_the_hub_finds(ctx):
    """The scaler finds values that are not finite, and the script then makes them finite. The step is skipped nevertheless."""
    run = ctx.run(make=adamw, wrap=AT_THE_HUB)

    def make_finite(scales):
        scales.unscale_(run.optimizer)
        for each in run.net.parameters():
            each.grad.nan_to_num_(0.0, 0.1, -0.1)

    trained(ctx, run, bad=[1], unscale=make_finite)


@idiom(hooked=False, needs=(2, 3))
def read_before_the_step_where_the_hub_finds(ctx):
    """A hook before the step gets unscaled gradients."""
    run = ctx.run(make=adam, wrap=AT_THE_HUB)
    hook = run.optimizer.register_step_pre_hook(lambda *_: ctx.record(first=next(run.net.parameters()).grad.clone()))
    trained(ctx, run, bad=[1])
    hook.remove()
    trained(ctx, run, bad=[1])


@idiom(hooked=False)
def unscaled_in_some_steps_where_the_hub_finds(ctx):
    """In some steps the script lets the scaler unscale the gradients, but does not read them. The optimizer does not zero them."""
    run = ctx.run(make=adam, wrap=AT_THE_HUB)
    scales = scaler()
    for step, (inputs, targets) in enumerate(ctx.batches(6)):
        run.net.zero_grad()
        loss = run.loss(inputs, targets)
        scales.scale(loss * (float("inf") if step in (2, 3) else 1.0)).backward()
        if step in (1, 2, 4):
            scales.unscale_(run.optimizer)
        scales.step(run.optimizer)
        scales.update()
        ctx.record(run.net, loss=loss, scale=scales.get_scale())


@idiom(hooked=False, needs=(2, 3))
def updated_late_where_the_hub_finds(ctx):
    """There is another step before the scaler's `update` reads the result for its own step."""
    run = ctx.run(wrap=AT_THE_HUB)
    scales = scaler()
    for step, (inputs, targets) in enumerate(ctx.batches(6)):
        run.optimizer.zero_grad()
        loss = run.loss(inputs, targets)
        if step % 2:
            loss.backward()
            run.optimizer.step()
            scales.update()
        else:
            scales.scale(loss * (float("inf") if step == 2 else 1.0)).backward()
            scales.step(run.optimizer)
        ctx.record(run.net, loss=loss, scale=scales.get_scale())


@idiom(hooked=False)
def read_where_the_hub_finds(ctx):
    """The script reads scaled gradients in some steps. In the step after, no bytes are sent ahead."""
    run = ctx.run(wrap=AT_THE_HUB)
    reads = iter([False, True, True, False, False, True])
    trained(ctx, run, bad=[2, 3], unscale=lambda _scales: next(reads) and ctx.record(first=next(run.net.parameters()).grad.clone()))


@idiom(hooked=False)
def read_after_the_step_where_the_hub_finds(ctx):
    """After the step, gradients are unscaled, and are the mean of all workers."""
    run = ctx.run(wrap=AT_THE_HUB)
    scales = scaler()
    for step, (inputs, targets) in enumerate(ctx.batches(6)):
        run.optimizer.zero_grad()
        loss = run.loss(inputs, targets)
        scales.scale(loss).backward()
        scales.step(run.optimizer)
        if step % 2:
            ctx.record(gradients=[each.grad.clone() for each in run.net.parameters()])
        scales.update()
        ctx.record(run.net, loss=loss, scale=scales.get_scale())


@idiom(hooked=False)
def some_steps_without_scaler_where_the_hub_finds(ctx):
    run = ctx.run(wrap=AT_THE_HUB)
    scales = scaler()
    for step, (inputs, targets) in enumerate(ctx.batches(6)):
        run.optimizer.zero_grad()
        loss = run.loss(inputs, targets)
        if step % 3 == 1:
            loss.backward()
            run.optimizer.step()
        else:
            scales.scale(loss).backward()
            scales.step(run.optimizer)
            scales.update()
        ctx.record(run.net, loss=loss, scale=scales.get_scale())


@idiom(workers=(1, 2, 4), hooked=False)
def infinite_on_one_rank_and_found_by_the_hub(ctx):
    infinite(ctx, ctx.run(wrap=AT_THE_HUB))


@idiom(workers=(1, 2, 4))
def infinite_on_one_rank(ctx):
    """An infinite gradient of one rank makes the mean of all ranks infinite, so all ranks skip the step."""
    infinite(ctx, ctx.run())


def infinite(ctx, run):
    """Trains with an infinite loss of one rank in one step."""
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
    """One scaler, and two optimizers, of which only one has an infinite gradient."""
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


def with_the_old_name(ctx, **wrap):
    """`torch.cuda.amp.GradScaler`. Without CUDA the scaler disables itself, with a warning: losses are not scaled. With CUDA the script
    disables it, because the tensors are in host memory."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scales = torch.cuda.amp.GradScaler(init_scale=1024.0, enabled=not torch.cuda.is_available())
    run = ctx.run(make=adamw, wrap=wrap)
    for inputs, targets in ctx.batches(6):
        run.optimizer.zero_grad()
        loss = run.loss(inputs, targets)
        scales.scale(loss).backward()
        scales.unscale_(run.optimizer)
        ctx.record(norm=torch.nn.utils.clip_grad_norm_(run.net.parameters(), 0.1))
        scales.step(run.optimizer)
        scales.update()
        ctx.record(run.net, loss=loss, scale=scales.get_scale(), enabled=float(scales.is_enabled()))
    ctx.record(state=scales.state_dict())


@idiom()
def old_name(ctx):
    with_the_old_name(ctx)


@idiom(hooked=False)
def old_name_and_found_by_the_hub(ctx):
    with_the_old_name(ctx, **AT_THE_HUB)
