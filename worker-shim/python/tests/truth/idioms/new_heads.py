"""Layers that are initialised again during the run."""

import torch

from ..context import adamw
from ..idiom import idiom


@idiom()
def reset_parameters(ctx):
    run = ctx.run()
    run.train(2)
    torch.manual_seed(21)
    run.net.head.reset_parameters()
    run.train(3)


@idiom()
def reset_parameters_after_the_wrap(ctx):
    run = ctx.run(make=adamw)
    torch.manual_seed(21)
    run.net.head.reset_parameters()
    run.train()


@idiom()
def initialisers(ctx):
    run = ctx.run()
    run.train(2)
    torch.manual_seed(21)
    torch.nn.init.xavier_uniform_(run.net.head.weight)
    torch.nn.init.zeros_(run.net.head.bias)
    torch.nn.init.kaiming_normal_(run.net.second.weight, nonlinearity="relu")
    torch.nn.init.trunc_normal_(run.net.first.weight, std=0.2)
    run.train(3)


@idiom()
def apply_after_the_wrap(ctx):
    """`model.apply` of DCGAN's `weights_init`, after the wrap."""

    def weights_init(module):
        if "Linear" in module.__class__.__name__:
            torch.nn.init.normal_(module.weight.data, 0.0, 0.2)
            torch.nn.init.constant_(module.bias.data, 0)

    run = ctx.run()
    torch.manual_seed(21)
    run.net.apply(weights_init)
    run.train()


@idiom()
def every_step(ctx):
    run = ctx.run()
    torch.manual_seed(21)
    for _ in run.after_steps():
        run.net.head.reset_parameters()


@idiom()
def dead_units(ctx):
    """Units that are never active get new weights, as in dictionary learning and continual backpropagation."""
    run = ctx.run(make=adamw)
    torch.manual_seed(21)
    for step, _ in enumerate(run.after_steps(6)):
        if step % 2:
            with torch.no_grad():
                run.net.first.weight[step] = torch.randn(6) * 0.3
                run.net.second.weight[:, step] = 0
