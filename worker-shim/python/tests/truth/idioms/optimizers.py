"""Kinds and settings of optimizers."""

import torch

import phub.torch

from ..context import Mlp, adam, adamw, sgd
from ..idiom import idiom


@idiom()
def sgd_alone(ctx):
    ctx.run(momentum=0.0).train()


@idiom()
def sgd_with_nesterov_and_decay(ctx):
    ctx.run(nesterov=True, weight_decay=0.1).train(8)


@idiom()
def adam_with_decay(ctx):
    ctx.run(make=adam, weight_decay=0.1).train(8)


@idiom()
def adamw_for_long(ctx):
    ctx.run(make=adamw, betas=(0.8, 0.99), eps=1e-6).train(20)


def by_layers(ctx, make, clip=lambda net: None, steps=20):
    """Trains with a group of matrices and a group of biases, which have no weight decay. The learning rate and the decay of
    the matrices change."""
    net = Mlp()
    groups = [
        {"params": [each for each in net.parameters() if each.dim() > 1]},
        {"params": [each for each in net.parameters() if each.dim() == 1], "weight_decay": 0.0, "lr": 0.02},
    ]
    model, optimizer = ctx.wrap(net, make(groups))
    for step, (inputs, targets) in enumerate(ctx.batches(steps)):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        clip(net)
        optimizer.param_groups[0]["lr"] *= 0.95
        optimizer.param_groups[0]["weight_decay"] = 0.1 if step < 10 else 0.05
        optimizer.step()
        ctx.record(net, loss=loss)


@idiom(workers=(1, 2, 4))
def lamb(ctx):
    by_layers(ctx, lambda groups: phub.torch.Lamb(groups, lr=0.02))


@idiom(workers=(1, 2, 4))
def lars(ctx):
    by_layers(ctx, lambda groups: phub.torch.Lars(groups, lr=2.0, trust=0.02))


@idiom()
def lamb_of_clipped_gradients(ctx):
    by_layers(ctx, phub.torch.Lamb, lambda net: ctx.record(norm=torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)))


@idiom()
def lamb_without_decay(ctx):
    """No group has a weight decay, so no step is scaled by norms."""
    ctx.run(make=phub.torch.Lamb, lr=0.01, weight_decay=0.0).train(6)


@idiom()
def lars_with_all_weights_decayed(ctx):
    ctx.run(make=phub.torch.Lars, lr=2.0, trust=0.02, maximize=True).train(6)


@idiom()
def by_foreach(ctx):
    ctx.run(make=adamw, foreach=True).train()


@idiom(needs=(2, 4))
def fused(ctx):
    ctx.run(make=adamw, fused=True).train()


@idiom(needs=(2, 7))
def decay_decoupled(ctx):
    """A setting that turns Adam into AdamW."""
    ctx.run(make=adam, weight_decay=0.1, decoupled_weight_decay=True, foreach=False).train()


@idiom()
def named_groups(ctx):
    """Parameter groups with an extra entry, a name that only the script uses."""
    net = Mlp()
    groups = [{"params": [each], "name": name, "lr": 0.05} for name, each in net.named_parameters()]
    model, optimizer = ctx.wrap(net, sgd(groups))
    for inputs, targets in ctx.batches():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        ctx.record(net, names=[group["name"] for group in optimizer.param_groups])


@idiom()
def amsgrad(ctx):
    ctx.run(make=adam, amsgrad=True).train()


@idiom()
def dampened(ctx):
    ctx.run(dampening=0.3).train()


@idiom()
def maximized(ctx):
    """`maximize=True`, as for an adversary, or for a return in reinforcement learning."""
    ctx.run(make=adamw, maximize=True).train()


@idiom()
def rmsprop(ctx):
    """The optimizer of WGAN's paper."""
    ctx.run(make=torch.optim.RMSprop, lr=0.01).train()


class Signs(torch.optim.Optimizer):
    """An optimizer that the script defines."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for each in group["params"]:
                each.add_(each.grad.sign(), alpha=-group["lr"])


@idiom()
def of_the_scripts_own(ctx):
    ctx.run(make=Signs, lr=0.01).train()


@idiom()
def sparse_gradients(ctx):
    """`Embedding(sparse=True)`."""

    class Words(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words = torch.nn.Embedding(5, 3, sparse=True)

        def forward(self, inputs):
            return self.words((inputs[:, :2].abs() * 2).long().clamp(max=4)).sum(1)

    net = Words()
    model, optimizer = ctx.wrap(net, torch.optim.SGD(net.parameters(), lr=0.1))
    for inputs, targets in ctx.batches():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        ctx.record(net, loss=loss)
