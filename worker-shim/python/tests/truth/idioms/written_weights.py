"""Parameters that a script writes after `step()`, in each step or in some steps."""

import ctypes

import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from ..context import adamw
from ..idiom import idiom


@idiom(workers=(1, 2, 4))
def clamped_by_data(ctx):
    """WGAN's clipping of weights, by `data`."""
    run = ctx.run()
    for _ in run.after_steps():
        for each in run.net.parameters():
            each.data.clamp_(-0.1, 0.1)


@idiom()
def clamped_without_gradients(ctx):
    run = ctx.run(make=adamw)
    for _ in run.after_steps():
        with torch.no_grad():
            for each in run.net.parameters():
                each.clamp_(-0.1, 0.1)


@idiom()
def clamped_before_the_backward_pass(ctx):
    """WGAN as in many repositories: weights are clipped at the top of the loop."""
    run = ctx.run()
    for inputs, targets in ctx.batches():
        for each in run.net.parameters():
            each.data.clamp_(-0.1, 0.1)
        run.optimizer.zero_grad()
        loss = run.loss(inputs, targets)
        loss.backward()
        run.optimizer.step()
        ctx.record(run.net, loss=loss)


@idiom()
def norms_of_rows_limited(ctx):
    run = ctx.run()
    for _ in run.after_steps():
        with torch.no_grad():
            weight = run.net.head.weight
            norms = weight.norm(dim=1, keepdim=True)
            weight.mul_(norms.clamp(max=0.5) / norms)


@idiom()
def renormed(ctx):
    run = ctx.run()
    for _ in run.after_steps():
        weight = run.net.first.weight
        weight.data = torch.renorm(weight.data, p=2, dim=0, maxnorm=0.5)


@idiom()
def decayed_by_hand(ctx):
    run = ctx.run(make=adamw, weight_decay=0.0)
    for _ in run.after_steps():
        for each in run.net.parameters():
            each.data.mul_(0.9)


@idiom()
def pruned_by_a_mask(ctx):
    run = ctx.run()
    masks = [(each.abs() > 0.1).float() for each in run.net.parameters()]
    for _ in run.after_steps():
        with torch.no_grad():
            for each, mask in zip(run.net.parameters(), masks):
                each *= mask


@idiom()
def scaled_by_foreach(ctx):
    run = ctx.run()
    for _ in run.after_steps():
        with torch.no_grad():
            torch._foreach_mul_(list(run.net.parameters()), 0.9)


@idiom()
def copied_into(ctx):
    run = ctx.run()
    for _ in run.after_steps():
        with torch.no_grad():
            run.net.head.weight.copy_(run.net.head.weight.sign() * 0.1)


@idiom()
def written_by_out(ctx):
    run = ctx.run()
    for _ in run.after_steps():
        with torch.no_grad():
            torch.mul(run.net.head.weight, 0.5, out=run.net.head.weight)


@idiom()
def written_by_index(ctx):
    run = ctx.run()
    for _ in run.after_steps():
        with torch.no_grad():
            run.net.head.weight[0] = 0.25
            run.net.head.bias[1:].fill_(-0.5)


@idiom()
def written_by_numpy(ctx):
    run = ctx.run()
    for _ in run.after_steps():
        run.net.head.weight.detach().numpy()[:] *= 0.5


@idiom()
def written_through_an_older_view(ctx):
    """A view that was taken before the loop, as scripts with a flat vector of parameters do."""
    run = ctx.run()
    view = run.net.second.weight.data
    for _ in run.after_steps():
        view.clamp_(-0.2, 0.2)


@idiom()
def written_through_an_older_array(ctx):
    run = ctx.run()
    array = run.net.second.weight.detach().numpy()
    for _ in run.after_steps():
        array[array < 0] *= 0.5


@idiom()
def vector_to_the_parameters(ctx):
    run = ctx.run()
    for _ in run.after_steps():
        vector = parameters_to_vector(run.net.parameters())
        vector_to_parameters(vector / vector.norm(), run.net.parameters())


@idiom()
def noise_of_langevin(ctx):
    run = ctx.run(momentum=0.0)
    source = torch.Generator().manual_seed(5)
    for _ in run.after_steps():
        with torch.no_grad():
            for each in run.net.parameters():
                each.add_(torch.randn(each.shape, generator=source), alpha=0.01)


@idiom()
def once_in_the_middle(ctx):
    run = ctx.run(make=adamw)
    for step, _ in enumerate(run.after_steps(6)):
        if step == 2:
            run.net.first.weight.data.fill_(0.1)


@idiom()
def between_backward_and_step(ctx):
    run = ctx.run()
    for _ in run.before_steps():
        with torch.no_grad():
            run.net.first.weight.mul_(0.5)


@idiom()
def data_of_another_tensor(ctx):
    run = ctx.run()
    for step, _ in enumerate(run.after_steps()):
        if step == 1:
            run.net.first.weight.data = run.net.first.weight.data.flip(0).clone()


@idiom(workers=(1,))
def memory_set_to_that_of_another_tensor(ctx):
    """`Tensor.set_`, with one worker: DDP does not notice the call, and DDP's next step fails."""
    run = ctx.run()
    for step, _ in enumerate(run.after_steps()):
        if step in (0, 2):
            with torch.no_grad():
                run.net.head.weight.set_(torch.full((3, 8), 0.1 * (1 + step)))


@idiom()
def swapped_between_parameters(ctx):
    """Population-based training: one layer takes the values of another layer."""
    run = ctx.run()
    for step, _ in enumerate(run.after_steps()):
        if step == 2:
            run.net.head.bias.data.copy_(run.net.first.bias.data[:3])


@idiom()
def only_one_parameter(ctx):
    run = ctx.run(make=adamw)
    for _ in run.after_steps():
        run.net.head.bias.data.sub_(run.net.head.bias.data.mean())


@idiom()
def written_at_an_older_address(ctx):
    run = ctx.run()
    weight = run.net.head.weight
    values = (ctypes.c_float * weight.numel()).from_address(weight.data_ptr())
    for _ in run.after_steps():
        values[:] = [min(max(each, -0.1), 0.1) for each in values]


@idiom()
def parameter_of_a_parameter(ctx):
    """`torch.nn.Parameter(p)` has the memory of `p`. The script reads it, and writes it between steps."""
    run = ctx.run()
    again = torch.nn.Parameter(run.net.first.weight)
    for step, _ in enumerate(run.after_steps(6)):
        ctx.record(again=again, alike=float(again.data_ptr() == run.net.first.weight.data_ptr()))
        if step % 2:
            again = torch.nn.Parameter(run.net.first.weight, requires_grad=False)
            again.mul_(0.5)
