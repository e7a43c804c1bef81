"""Several backward passes for a step, closures, accumulation, and activation checkpointing."""

import torch
from torch.utils.checkpoint import checkpoint

from ..context import Mlp, adamw, sgd
from ..idiom import idiom


def cross_entropy(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets)


@idiom(workers=(1, 2, 4))
def sharpness_aware(ctx):
    """SAM: the weights are moved up the gradient, another pass follows, and the weights are restored before the step."""
    run = ctx.run()
    for inputs, targets in ctx.batches():
        run.optimizer.zero_grad()
        loss = run.loss(inputs, targets)
        loss.backward()
        norm = torch.stack([each.grad.norm() for each in run.net.parameters()]).norm()
        moved = []
        with torch.no_grad():
            for each in run.net.parameters():
                moved.append(each.grad * (0.05 / (norm + 1e-12)))
                each.add_(moved[-1])
        run.optimizer.zero_grad()
        run.loss(inputs, targets).backward()
        with torch.no_grad():
            for each, way in zip(run.net.parameters(), moved):
                each.sub_(way)
        run.optimizer.step()
        ctx.record(run.net, loss=loss, norm=norm)


@idiom()
def sharpness_aware_by_copies(ctx):
    """SAM as in its best-known repository: the script keeps the old weights, and restores them by `data`."""
    run = ctx.run(make=adamw)
    for inputs, targets in ctx.batches():
        run.optimizer.zero_grad()
        run.loss(inputs, targets).backward()
        old = [each.data.clone() for each in run.net.parameters()]
        scale = 0.05 / (sum((each.grad**2).sum() for each in run.net.parameters()).sqrt() + 1e-12)
        for each in run.net.parameters():
            each.data.add_(each.grad * scale)
        run.optimizer.zero_grad()
        loss = run.loss(inputs, targets)
        loss.backward()
        for each, kept in zip(run.net.parameters(), old):
            each.data = kept
        run.optimizer.step()
        ctx.record(run.net, loss=loss)


@idiom()
def adversarial_weights(ctx):
    """FGM on one layer: a second pass adds to the gradients of the first pass."""
    run = ctx.run()
    for inputs, targets in ctx.batches():
        run.optimizer.zero_grad()
        run.loss(inputs, targets).backward()
        weight = run.net.first.weight
        kept = weight.data.clone()
        weight.data.add_(0.1 * weight.grad / weight.grad.norm())
        run.loss(inputs, targets).backward()
        weight.data = kept
        run.optimizer.step()
        ctx.record(run.net)


@idiom()
def accumulated(ctx):
    run = ctx.run(make=adamw)
    for step, (inputs, targets) in enumerate(ctx.batches(8)):
        loss = run.loss(inputs, targets) / 4
        loss.backward()
        if (step + 1) % 4 == 0:
            run.optimizer.step()
            run.optimizer.zero_grad()
        ctx.record(run.net, loss=loss)


@idiom()
def accumulated_with_an_uneven_rest(ctx):
    run = ctx.run()
    for step, (inputs, targets) in enumerate(ctx.batches(7)):
        loss = run.loss(inputs, targets) / 3
        loss.backward()
        if (step + 1) % 3 == 0 or step == 6:
            run.optimizer.step()
            run.optimizer.zero_grad()
        ctx.record(run.net, loss=loss)


@idiom()
def accumulated_without_syncing(ctx):
    run = ctx.run()
    for step, (inputs, targets) in enumerate(ctx.batches(6)):
        if step % 3 < 2:
            with ctx.no_sync(run.model):
                run.loss(inputs, targets).backward()
            continue
        run.loss(inputs, targets).backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
        ctx.record(run.net)


@idiom()
def two_losses_in_two_passes(ctx):
    run = ctx.run()
    for inputs, targets in ctx.batches():
        run.optimizer.zero_grad()
        run.loss(inputs, targets).backward()
        run.loss(inputs.flip(1), targets).backward()
        run.optimizer.step()
        ctx.record(run.net)


@idiom(workers=(1,))
def two_losses_of_one_graph(ctx):
    """The graph is kept for a second backward pass, which DDP refuses."""
    run = ctx.run()
    for inputs, targets in ctx.batches():
        run.optimizer.zero_grad()
        outputs = run.model(inputs)
        cross_entropy(outputs, targets).backward(retain_graph=True)
        outputs.pow(2).mean().backward()
        run.optimizer.step()
        ctx.record(run.net)


@idiom(raises=True)
def graph_kept_over_a_step(ctx):
    """The graph is used after a step has changed its weights, which is an error of torch."""
    run = ctx.run()
    for inputs, targets in ctx.batches():
        run.optimizer.zero_grad()
        loss = run.loss(inputs, targets)
        loss.backward(retain_graph=True)
        run.optimizer.step()
        loss.backward()
        ctx.record(run.net)


@idiom()
def closure(ctx):
    run = ctx.run()
    for inputs, targets in ctx.batches():

        def closure():
            run.optimizer.zero_grad()
            loss = run.loss(inputs, targets)
            loss.backward()
            return loss

        loss = run.optimizer.step(closure)
        ctx.record(run.net, loss=loss)


@idiom()
def closure_that_clips(ctx):
    run = ctx.run(make=adamw)
    for inputs, targets in ctx.batches():

        def closure():
            run.optimizer.zero_grad()
            loss = run.loss(inputs, targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(run.net.parameters(), 0.1)
            return loss

        ctx.record(run.net, loss=run.optimizer.step(closure))


@idiom(raises=True)
def backward_twice(ctx):
    run = ctx.run()
    inputs, targets = next(ctx.batches())
    loss = run.loss(inputs, targets)
    loss.backward()
    loss.backward()


@idiom()
def checkpointed(ctx):
    """Activations are computed again in the backward pass."""

    class Checkpointed(Mlp):
        def features(self, inputs):
            hidden = torch.tanh(self.first(inputs))
            return torch.tanh(checkpoint(self.second, hidden, use_reentrant=False))

    ctx.run(Checkpointed()).train()


@idiom()
def checkpointed_twice_through_one_layer(ctx):
    class Checkpointed(Mlp):
        def features(self, inputs):
            hidden = torch.tanh(self.first(inputs))
            for _ in range(2):
                hidden = torch.tanh(checkpoint(self.second, hidden, use_reentrant=False))
            return hidden

    ctx.run(Checkpointed(), adamw).train()


@idiom()
def forward_without_backward(ctx):
    """An evaluation between steps, and a forward pass whose loss is not used."""
    run = ctx.run()
    for inputs, targets in ctx.batches():
        run.net.eval()
        with torch.no_grad():
            seen = run.net(inputs)
        run.net.train()
        run.optimizer.zero_grad()
        loss = run.loss(inputs, targets)
        loss.backward()
        run.optimizer.step()
        ctx.record(run.net, loss=loss, seen=seen)


@idiom()
def zero_grad_after_the_step(ctx):
    net = Mlp()
    model, optimizer = ctx.wrap(net, sgd(net.parameters(), nesterov=True))
    for inputs, targets in ctx.batches():
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        net.zero_grad(set_to_none=False)
        ctx.record(net, loss=loss)


@idiom()
def never_zeroed(ctx):
    """Gradients add up over all steps, as in a script without `zero_grad`."""
    run = ctx.run(lr=0.01)
    for inputs, targets in ctx.batches():
        run.loss(inputs, targets).backward()
        run.optimizer.step()
        ctx.record(run.net)


@idiom()
def a_pass_thrown_away(ctx):
    """The script discards a backward pass because of its loss, and makes another pass."""
    run = ctx.run(make=adamw)
    for inputs, targets in ctx.batches():
        run.optimizer.zero_grad()
        run.loss(inputs * 3, targets).backward()
        run.optimizer.zero_grad()
        loss = run.loss(inputs, targets)
        loss.backward()
        run.optimizer.step()
        ctx.record(run.net, loss=loss)
