"""Frozen parameters, buffers and BatchNorm, when ranks begin with different values."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable

from ..context import Mlp, adamw, sgd
from ..idiom import idiom


class WithBuffers(Mlp):
    """A frozen layer, and buffers of several types."""

    def __init__(self):
        super().__init__()
        self.first.requires_grad_(False)
        self.register_buffer("shift", torch.randn(8))
        self.register_buffer("count", torch.randint(100, ()))
        self.register_buffer("order", torch.randperm(8))
        self.register_buffer("not_saved", torch.randn(8), persistent=False)

    def features(self, inputs):
        hidden = torch.tanh(self.first(inputs) + self.shift)[:, self.order]
        return torch.tanh(self.second(hidden + self.not_saved) * (1 + self.count / 100))


@idiom(workers=(2,))
def unlike_seeds(ctx):
    """Ranks have different seeds. After the wrap all parameters are rank 0's, also the frozen parameters."""
    torch.manual_seed(ctx.rank)
    net = Mlp()
    net.first.requires_grad_(False)
    ctx.run(net).train()


@idiom(workers=(2,))
def unlike_buffers(ctx):
    torch.manual_seed(ctx.rank)
    net = WithBuffers()
    run = ctx.run(net, adamw, wrap={"broadcast_buffers": True})
    ctx.record(net, not_saved=net.not_saved)
    run.train()


@idiom(workers=(2,))
def rank_0_alone_loads_the_backbone(ctx):
    net = Mlp()
    net.first.requires_grad_(False)
    net.second.requires_grad_(False)
    if ctx.rank == 0:
        torch.manual_seed(50)
        net.load_state_dict(Mlp().state_dict())
    model, optimizer = ctx.wrap(net, sgd(net.head.parameters()))
    for inputs, targets in ctx.batches():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        ctx.record(net, loss=loss)


@idiom(workers=(2,))
def parameters_that_no_optimizer_has(ctx):
    """A layer that requires gradients, but is not in the optimizer."""
    torch.manual_seed(ctx.rank)
    net = Mlp()
    model, optimizer = ctx.wrap(net, sgd([*net.second.parameters(), *net.head.parameters()]))
    for inputs, targets in ctx.batches():
        net.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        ctx.record(net, loss=loss)


class Normed(torch.nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.first = torch.nn.Linear(6, 8, bias=False)
        self.norm = norm
        self.head = torch.nn.Linear(8, 3)

    def forward(self, inputs):
        return self.head(torch.tanh(self.norm(self.first(inputs))))


@idiom()
def batch_norm(ctx):
    """Each rank has its own means of BatchNorm, as in DDP with `broadcast_buffers=False`."""
    ctx.run(Normed(torch.nn.BatchNorm1d(8))).train()


@idiom()
def batch_norm_with_buffers_of_rank_0(ctx):
    """DDP's default: before each forward pass all ranks get rank 0's means of BatchNorm."""
    net = Normed(torch.nn.BatchNorm1d(8))
    run = ctx.run(net, adamw, wrap={"broadcast_buffers": True})
    run.train()
    run.model.eval()
    with torch.no_grad():
        ctx.record(seen=run.model(torch.ones(2, 6)))


@idiom()
def batch_norm_of_a_scripted_model_with_buffers_of_rank_0(ctx):
    """The script compiles the model after the wrap, and calls only the compiled module."""
    net = Normed(torch.nn.BatchNorm1d(8))
    run = ctx.run(net, adamw, wrap={"broadcast_buffers": True})
    run.model = torch.jit.script(net) if run.model is net else run.model
    run.train()
    run.model.eval()
    ctx.record(seen=run.model(torch.ones(2, 6)))


@idiom(needs=(2, 1), limit_s=120)
def batch_norm_of_a_compiled_model_with_buffers_of_rank_0(ctx):
    net = Normed(torch.nn.BatchNorm1d(8))
    run = ctx.run(net, adamw, wrap={"broadcast_buffers": True})
    run.model = torch.compile(run.model, backend="eager")
    run.train()
    run.model.eval()
    ctx.record(seen=run.model(torch.ones(2, 6)))


@idiom()
def batch_norm_of_a_frozen_backbone(ctx):
    net = Normed(torch.nn.BatchNorm1d(8))
    net.first.requires_grad_(False)
    net.norm.requires_grad_(False)
    net.norm.eval()
    run = ctx.run(net)
    run.train()
    net.norm.train()
    run.train(3)


class SyncedNorm(torch.nn.BatchNorm1d):
    """A SyncBatchNorm for host memory, because torch's SyncBatchNorm needs a GPU. The means are over the rows of all ranks."""

    def forward(self, inputs):
        if not self.training:
            return super().forward(inputs)
        both = torch.cat([inputs.mean(0), (inputs**2).mean(0)])
        mean, square = (differentiable.all_reduce(both) / dist.get_world_size()).chunk(2)
        variance = square - mean**2
        with torch.no_grad():
            self.running_mean.lerp_(mean, 0.1)
            self.running_var.lerp_(variance, 0.1)
        return (inputs - mean) / (variance + self.eps).sqrt() * self.weight + self.bias


@idiom()
def synced_batch_norm(ctx):
    ctx.run(Normed(SyncedNorm(8))).train()


@idiom()
def group_and_layer_norm(ctx):
    net = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.Tanh(), torch.nn.GroupNorm(2, 8), torch.nn.Linear(8, 3)
    )
    ctx.run(net, adamw).train()


@idiom()
def buffer_that_the_script_moves(ctx):
    """DINO's centre: a buffer that the script moves towards a mean over all ranks."""
    net = Mlp()
    net.register_buffer("centre", torch.zeros(3))
    run = ctx.run(net)
    for inputs, targets in ctx.batches():
        run.optimizer.zero_grad()
        outputs = run.model(inputs)
        loss = torch.nn.functional.cross_entropy(outputs - net.centre, targets)
        loss.backward()
        run.optimizer.step()
        net.centre = net.centre * 0.9 + ctx.mean(outputs.detach().mean(0)) * 0.1
        ctx.record(net, loss=loss)


class Centred(Mlp):
    """A layer that moves its buffer by an assignment, which puts another tensor in the buffer's place."""

    def __init__(self):
        super().__init__()
        self.register_buffer("centre", torch.zeros(6))

    def features(self, inputs):
        self.centre = 0.9 * self.centre + 0.1 * inputs.detach().mean(0)
        return super().features(inputs - self.centre)


@idiom()
def buffer_that_the_model_replaces(ctx):
    ctx.run(Centred(), wrap={"broadcast_buffers": True}).train()


@idiom()
def buffers_that_come_grow_and_go(ctx):
    """The model makes a buffer in the run, such as a mask or a cache, replaces it by a larger buffer, and deletes it."""
    net = Centred()
    run = ctx.run(net, wrap={"broadcast_buffers": True})
    for step, _ in enumerate(run.after_steps(8)):
        if step in (1, 3):
            net.register_buffer("seen", torch.full((step,), step + ctx.rank))
        if step == 5:
            del net.seen
        if step in (2, 4):
            ctx.record(seen=net.seen)
