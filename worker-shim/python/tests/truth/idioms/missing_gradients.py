"""Parameters that have no gradient in some steps: they are frozen, unused, or there was no backward pass."""

import torch

from ..context import Mlp, adam, adamw, sgd
from ..idiom import idiom


class Branches(torch.nn.Module):
    """Two branches after one layer. A batch uses one branch or both branches."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 8)
        self.left = torch.nn.Linear(8, 3)
        self.right = torch.nn.Linear(8, 3)

    def forward(self, inputs, way):
        hidden = torch.tanh(self.first(inputs))
        left = self.left(hidden) if "l" in way else 0
        return left + (self.right(hidden) if "r" in way else 0)


def branches(ctx, make, ways, **settings):
    """Trains with a list of ways through the branches: for each step one way for all ranks, or one way for each rank."""
    net = Branches()
    model, optimizer = ctx.wrap(net, make(net.parameters()), unused=True)
    for (inputs, targets), way in zip(ctx.batches(len(ways)), ways):
        optimizer.zero_grad(**settings)
        loss = torch.nn.functional.cross_entropy(model(inputs, way[ctx.rank % len(way)]), targets)
        loss.backward()
        optimizer.step()
        ctx.record(net, loss=loss)


@idiom()
def unused_branch_with_momentum(ctx):
    branches(ctx, sgd, [["lr"], ["l"], ["r"], ["lr"], ["l"], ["lr"]], set_to_none=True)


@idiom()
def unused_branch_with_adamw(ctx):
    branches(ctx, adamw, [["lr"], ["l"], ["r"], ["lr"], ["l"], ["lr"]], set_to_none=True)


@idiom()
def branch_unused_at_first(ctx):
    branches(ctx, adam, [["l"], ["l"], ["r"], ["lr"], ["lr"]], set_to_none=True)


@idiom()
def unused_branch_with_zeros(ctx):
    """Gradients are set to zeros and not to `None`, so the momentum of an unused branch still changes its weights."""
    branches(ctx, sgd, [["lr"], ["l"], ["r"], ["lr"], ["l"]], set_to_none=False)


@idiom(workers=(2, 4))
def branch_unused_on_some_ranks(ctx):
    branches(ctx, sgd, [["lr", "l"], ["l", "r"], ["r", "r"], ["l", "lr"], ["lr", "lr"]], set_to_none=True)


@idiom(workers=(2, 4))
def branch_unused_on_some_ranks_with_adamw(ctx):
    branches(ctx, adamw, [["l", "l"], ["l", "r"], ["r", "r"], ["l", "lr"], ["lr", "lr"]], set_to_none=True)


@idiom()
def never_used(ctx):
    branches(ctx, adamw, [["l"]] * 5, set_to_none=True)


@idiom()
def unfrozen_later(ctx):
    """Parameters that the optimizer had from the start are unfrozen. DDP must be made again for them."""
    net = Mlp()
    for each in net.first.parameters():
        each.requires_grad_(False)
    run = ctx.run(net, adamw, wrap={"unused": True})
    run.train(3)
    for each in net.first.parameters():
        each.requires_grad_(True)
    run.model = ctx.anew(run.model, net)
    run.train(4)


@idiom()
def unfrozen_later_with_momentum(ctx):
    net = Mlp()
    net.first.requires_grad_(False)
    run = ctx.run(net, weight_decay=0.1, wrap={"unused": True})
    run.train(3)
    net.first.requires_grad_(True)
    run.model = ctx.anew(run.model, net)
    run.train(4)


def unfrozen_after_zero_grad(ctx, read, **settings):
    """Unfreezes a layer between `zero_grad` and the forward pass, and reads its gradients before its first step."""
    net = Mlp()
    net.first.requires_grad_(False)
    model, optimizer = ctx.wrap(net, adam(net.parameters()), unused=True)
    for step, (inputs, targets) in enumerate(ctx.batches(6)):
        optimizer.zero_grad(**settings)
        if step == 3:
            net.first.requires_grad_(True)
            model = ctx.anew(model, net)
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        if step >= 3:
            ctx.record(read=read(net))
        optimizer.step()
        ctx.record(net, loss=loss)


@idiom(workers=(1, 2, 4))
def unfrozen_after_zero_grad_and_clipped(ctx):
    unfrozen_after_zero_grad(ctx, lambda net: torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1))


@idiom()
def unfrozen_after_zero_grad_and_read(ctx):
    """Only a gradient of the unfrozen layer is read. The next backward pass adds to the same gradient."""
    unfrozen_after_zero_grad(ctx, lambda net: net.first.bias.grad.clone(), set_to_none=False)


@idiom()
def frozen_before_the_step_as_another_is_unfrozen(ctx):
    """After the backward pass one layer is frozen and another layer is unfrozen. Torch still makes the step of the frozen layer."""
    net = Mlp()
    net.head.requires_grad_(False)
    run = ctx.run(net, adamw, wrap={"unused": True})
    for step, _ in enumerate(run.before_steps(3)):
        if step == 2:
            net.first.requires_grad_(False)
            net.head.requires_grad_(True)
    run.model = ctx.anew(run.model, net)
    run.train(3)


@idiom()
def gradients_of_frozen_parameters_by_hand(ctx):
    """An evolution strategy: a layer needs no backward pass, and torch steps with the gradients that the script makes."""
    net = Mlp()
    net.first.requires_grad_(False)
    run = ctx.run(net, wrap={"unused": True})
    for step, _ in enumerate(run.before_steps(6)):
        if step in (1, 2, 4):
            for each in net.first.parameters():
                each.grad = torch.full_like(each, 0.1 * step)


@idiom()
def frozen_later(ctx):
    run = ctx.run(weight_decay=0.1)
    run.train(3)
    run.optimizer.zero_grad(set_to_none=True)
    run.net.first.requires_grad_(False)
    run.model = ctx.anew(run.model, run.net)
    run.train(3)


@idiom()
def frozen_later_with_adamw(ctx):
    run = ctx.run(make=adamw)
    run.train(3)
    for each in run.net.first.parameters():
        each.requires_grad = False
        each.grad = None
    run.model = ctx.anew(run.model, run.net)
    run.train(3)


@idiom()
def gradually_unfrozen(ctx):
    """Each epoch unfreezes one more layer, from the head downwards, as in ULMFiT."""
    net = Mlp()
    net.requires_grad_(False)
    net.head.requires_grad_(True)
    run = ctx.run(net, adam, wrap={"unused": True})
    for layer in (net.second, net.first):
        run.train(2)
        layer.requires_grad_(True)
        run.model = ctx.anew(run.model, net)
    run.train(3)


@idiom()
def group_added_when_unfrozen(ctx):
    """The optimizer has only the head at first. The backbone's group is added during the run."""
    net = Mlp()
    net.first.requires_grad_(False)
    net.second.requires_grad_(False)
    model, optimizer = ctx.wrap(net, sgd(net.head.parameters()))
    for step, (inputs, targets) in enumerate(ctx.batches(6)):
        if step == 3:
            net.second.requires_grad_(True)
            optimizer.add_param_group({"params": net.second.parameters(), "lr": 0.01})
            model = ctx.anew(model, net)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        ctx.record(net, loss=loss)


@idiom()
def step_without_a_backward_pass(ctx):
    run = ctx.run()
    for step, _ in enumerate(run.after_steps()):
        if step == 2:
            run.optimizer.zero_grad(set_to_none=True)
            run.optimizer.step()


@idiom()
def step_with_old_gradients(ctx):
    """`step()` is called twice: the second step uses the same gradients again."""
    run = ctx.run(make=adamw)
    for step, _ in enumerate(run.after_steps()):
        if step == 2:
            run.optimizer.step()


@idiom()
def step_before_all_backward_passes(ctx):
    """`step()` is called before the first backward pass, as some repositories do to silence a scheduler's warning."""
    run = ctx.run(make=adamw)
    run.optimizer.zero_grad()
    run.optimizer.step()
    run.train()


@idiom()
def step_without_a_backward_pass_and_zeros(ctx):
    run = ctx.run(weight_decay=0.1)
    for step, _ in enumerate(run.after_steps(set_to_none=False)):
        if step == 2:
            run.optimizer.zero_grad(set_to_none=False)
            run.optimizer.step()


@idiom()
def alternating_tasks(ctx):
    """A head for each task, and one optimizer for all heads."""
    branches(ctx, adamw, [["l"], ["r"]] * 3, set_to_none=True)


@idiom()
def dropped_layers(ctx):
    """Stochastic depth, with the same random numbers on all ranks."""

    class Deep(Mlp):
        def features(self, inputs):
            hidden = torch.tanh(self.first(inputs))
            return hidden + torch.tanh(self.second(hidden)) if torch.rand(()) > 0.5 else hidden

    ctx.run(Deep(), adamw, wrap={"unused": True}).train(8)


@idiom()
def requires_grad_toggled_each_step(ctx):
    net = Branches()
    model, optimizer = ctx.wrap(net, sgd(net.parameters()), unused=True)
    for step, (inputs, targets) in enumerate(ctx.batches(6)):
        net.left.requires_grad_(step % 2 == 0)
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(inputs, "lr"), targets)
        loss.backward()
        optimizer.step()
        ctx.record(net, loss=loss)
