"""Hooks of optimizers and modules, profilers, and methods that a script replaces."""

import types

import torch

from ..context import Mlp, adamw, sgd
from ..idiom import idiom


@idiom(needs=(2, 0))
def step_pre_hook(ctx):
    """The hook gets the gradients that the step will use, and may change them."""
    run = ctx.run()

    def before(optimizer, _arguments, _named):
        ctx.record(before=[each.grad.norm() for each in run.net.parameters()])
        for each in run.net.parameters():
            each.grad.mul_(0.5)

    run.optimizer.register_step_pre_hook(before)
    run.train()


@idiom(needs=(2, 0))
def step_post_hook(ctx):
    """The hook gets the new weights."""
    run = ctx.run(make=adamw)
    run.optimizer.register_step_post_hook(lambda *_: ctx.record(after=[each for each in run.net.parameters()]))
    run.train()


@idiom(needs=(2, 0))
def step_post_hook_that_writes(ctx):
    """The hook clamps the new weights."""
    run = ctx.run()

    @torch.no_grad()
    def clamp(*_):
        for each in run.net.parameters():
            each.clamp_(-0.2, 0.2)

    run.optimizer.register_step_post_hook(clamp)
    run.train()


@idiom(needs=(2, 0))
def hooks_made_before_the_wrap(ctx):
    net = Mlp()
    optimizer = sgd(net.parameters())
    optimizer.register_step_pre_hook(lambda *_: ctx.record(hook="before"))
    optimizer.register_step_post_hook(lambda *_: ctx.record(hook="after", head=net.head.weight))
    model, optimizer = ctx.wrap(net, optimizer)
    for inputs, targets in ctx.batches():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        ctx.record(net)


@idiom(needs=(2, 0))
def global_step_hooks(ctx):
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    run = ctx.run()
    handles = [
        register_optimizer_step_pre_hook(lambda *_: ctx.record(hook="before")),
        register_optimizer_step_post_hook(lambda *_: ctx.record(hook="after", head=run.net.head.weight)),
    ]
    try:
        run.train()
    finally:
        for each in handles:
            each.remove()


@idiom(needs=(2, 3))
def state_dict_hooks(ctx):
    run = ctx.run()
    run.optimizer.register_state_dict_post_hook(lambda _, state: {**state, "mine": 5})
    run.train(2)
    state = run.optimizer.state_dict()
    ctx.record(mine=state["mine"])
    run.optimizer.register_load_state_dict_pre_hook(
        lambda _, state: {name: value for name, value in state.items() if name != "mine"}
    )
    run.optimizer.load_state_dict(state)
    run.train(2)


@idiom()
def profiled(ctx):
    """A profile names the optimizer's steps."""
    run = ctx.run()
    with torch.autograd.profiler.profile() as profile:
        run.train(3)
    steps = [event.name for event in profile.function_events if event.name.startswith("Optimizer.")]
    ctx.record(steps=sorted(steps))


@idiom()
def step_replaced(ctx):
    """A library that wraps `step` on the instance, as schedulers and trainers do."""
    run = ctx.run(make=adamw)
    step = run.optimizer.step

    def counted(self, *arguments, **named):
        ctx.record(counted=True)
        return step(*arguments, **named)

    run.optimizer.step = types.MethodType(counted, run.optimizer)
    run.train()


@idiom()
def zero_grad_of_the_model(ctx):
    run = ctx.run()
    for inputs, targets in ctx.batches():
        run.model.zero_grad()
        run.loss(inputs, targets).backward()
        run.optimizer.step()
        ctx.record(run.net)


@idiom()
def gradients_deleted(ctx):
    """`for p in parameters: p.grad = None`, which PyTorch's tuning guide recommends as faster."""
    run = ctx.run(make=adamw)
    for inputs, targets in ctx.batches():
        for each in run.net.parameters():
            each.grad = None
        run.loss(inputs, targets).backward()
        run.optimizer.step()
        ctx.record(run.net)


@idiom()
def forward_hooks(ctx):
    """Activations are gathered, and one hook changes the module's output."""
    run = ctx.run()
    seen = []
    run.net.first.register_forward_hook(lambda module, inputs, outputs: seen.append(outputs.detach().mean()))
    run.net.second.register_forward_hook(lambda module, inputs, outputs: outputs * 1.5)
    run.net.head.register_forward_pre_hook(lambda module, inputs: (inputs[0] + module.bias.sum(),))
    for _ in run.after_steps():
        ctx.record(seen=seen)


@idiom()
def backward_hooks(ctx):
    """Hooks that get the gradients of modules' outputs, as in Grad-CAM."""
    run = ctx.run()
    run.net.second.register_full_backward_hook(lambda module, by_inputs, by_outputs: ctx.record(by=by_outputs[0]))
    run.net.head.register_full_backward_hook(lambda module, by_inputs, by_outputs: (by_inputs[0] * 0.5,))
    run.train()


@idiom()
def parameter_hooks_that_record(ctx):
    """A tensor hook gets this rank's gradient. After the pass the script reads the mean."""
    run = ctx.run(make=adamw)
    run.net.head.weight.register_hook(lambda gradient: ctx.record(local=gradient))
    for _ in run.before_steps():
        ctx.record(mean=run.net.head.weight.grad)


@idiom(workers=(1,))
def hook_that_reads_gradients_of_others(ctx):
    """A hook of the first layer reads the head's gradient, which the pass has already computed."""
    run = ctx.run()
    run.net.first.weight.register_hook(lambda gradient: gradient * (1 + run.net.head.weight.grad.norm()))
    run.train()


@idiom(workers=(1,))
def training_stopped_by_a_hook(ctx):
    """A hook raises, the script catches it, and continues with the next batch."""
    run = ctx.run()
    is_bad = []

    def check(gradient):
        if is_bad:
            raise FloatingPointError("a gradient is no number")

    run.net.first.weight.register_hook(check)
    for step, (inputs, targets) in enumerate(ctx.batches()):
        run.optimizer.zero_grad()
        loss = run.loss(inputs, targets)
        is_bad[:] = [True] if step == 2 else []
        try:
            loss.backward()
        except FloatingPointError:
            continue
        run.optimizer.step()
        ctx.record(run.net, loss=loss)


@idiom(needs=(2, 1))
def norms_read_by_a_hook_and_after_the_pass(ctx):
    run, seen = ctx.run(), []
    for each in run.net.parameters():
        each.register_post_accumulate_grad_hook(lambda each: seen.append(each.grad.norm().item()))
    for _ in run.before_steps():
        ctx.record(norm=sum(each.grad.norm() for each in run.net.parameters()))
