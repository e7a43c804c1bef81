"""Weights that the backward pass reads after their gradient was sent, or that a forward pass writes."""

import time

import torch
from torch.utils.checkpoint import checkpoint

from ..context import Mlp, adamw, sgd
from ..idiom import idiom


def trained(ctx, net, make=sgd, loss_of=torch.nn.functional.cross_entropy, steps=5):
    model, optimizer = ctx.wrap(net, make(net.parameters()))
    for inputs, targets in ctx.batches(steps):
        optimizer.zero_grad()
        loss = loss_of(model(inputs), targets)
        loss.backward()
        optimizer.step()
        ctx.record(net, loss=loss)


class Slowly(torch.autograd.Function):
    """A backward pass that sleeps, so that an early answer of the hub would change weights that are still in use.

    The pass sleeps, because there is no event to wait for: an early answer must not occur.
    """

    @staticmethod
    def forward(ctx, inputs):
        return inputs.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(0.02)
        return gradient


class Shared(torch.nn.Module):
    """A net that uses one matrix twice: early without a gradient, and late with a gradient."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(6, 6) * 0.4)
        self.first = torch.nn.Linear(6, 6)
        self.head = torch.nn.Linear(6, 3)

    def forward(self, inputs):
        early = torch.tanh(self.first(inputs)) @ self.weight.detach()
        return self.head(torch.tanh(Slowly.apply(early)) @ self.weight)


@idiom()
def early_without_a_gradient(ctx):
    trained(ctx, Shared())


@idiom()
def early_by_data(ctx):
    class ByData(Shared):
        def forward(self, inputs):
            early = torch.tanh(self.first(inputs)) @ self.weight.data.t()
            return self.head(torch.tanh(Slowly.apply(early)) @ self.weight)

    trained(ctx, ByData(), adamw)


class Times(torch.autograd.Function):
    """A matrix product whose backward pass reads the parameter itself, not a saved value."""

    @staticmethod
    def forward(ctx, inputs, weight):
        ctx.weight = weight
        ctx.save_for_backward(inputs)
        return inputs @ weight

    @staticmethod
    def backward(ctx, gradient):
        (inputs,) = ctx.saved_tensors
        return gradient @ ctx.weight.data.t(), inputs.t() @ gradient


@idiom()
def read_by_a_function_of_the_scripts_own(ctx):
    class Own(Shared):
        def forward(self, inputs):
            hidden = torch.tanh(Times.apply(torch.tanh(self.first(inputs)), self.weight))
            return self.head(torch.tanh(Times.apply(Slowly.apply(hidden), self.weight)))

    trained(ctx, Own())


@idiom()
def tied_embedding(ctx):
    """The output layer shares the weights of the embedding, so the gradient is a sum of two parts."""

    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words = torch.nn.Embedding(5, 8)
            self.middle = torch.nn.Linear(8, 8)
            self.out = torch.nn.Linear(8, 5, bias=False)
            self.out.weight = self.words.weight

        def forward(self, inputs):
            words = (inputs.abs() * 2).long().clamp(max=4)
            return self.out(torch.tanh(self.middle(self.words(words).mean(1))))

    trained(ctx, Tied(), adamw)


@idiom()
def tied_layers(ctx):
    class Tied(Mlp):
        def __init__(self):
            super().__init__()
            self.third = torch.nn.Linear(8, 8)
            self.third.weight = self.second.weight

        def features(self, inputs):
            return torch.tanh(self.third(super().features(inputs)))

    trained(ctx, Tied())


@idiom(workers=(1,))
def embedding_with_a_limit(ctx):
    """`max_norm`: the forward pass writes the weight. With several workers DDP's ranks diverge; with the hub all ranks
    have rank 0's weights."""

    class Limited(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words = torch.nn.Embedding(5, 6, max_norm=1.0)
            self.head = torch.nn.Linear(6, 3)

        def forward(self, inputs):
            return self.head(self.words((inputs[:, :2].abs() * 2).long().clamp(max=4)).mean(1))

    trained(ctx, Limited())


@idiom()
def recomputed_with_a_shared_layer(ctx):
    """A layer is used twice: early with activation checkpointing, and late without it."""

    class Both(Mlp):
        def features(self, inputs):
            hidden = torch.tanh(checkpoint(self.second, torch.tanh(self.first(inputs)), use_reentrant=False))
            return torch.tanh(self.second(Slowly.apply(hidden)))

    trained(ctx, Both())


@idiom()
def gradient_penalty(ctx):
    """The loss contains the gradient of the output with respect to the input, by `create_graph`."""
    run = ctx.run()
    for inputs, targets in ctx.batches():
        inputs.requires_grad_(True)
        run.optimizer.zero_grad()
        outputs = run.model(inputs)
        (slope,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
        loss = torch.nn.functional.cross_entropy(outputs, targets) + 0.1 * (slope.norm(dim=1) - 1).pow(2).mean()
        loss.backward()
        run.optimizer.step()
        ctx.record(run.net, loss=loss)


@idiom(workers=(1,))
def norm_of_the_gradient_in_the_loss(ctx):
    """The loss contains gradients with respect to the parameters, so there are second derivatives. DDP has no hooks for them."""
    run = ctx.run()
    for inputs, targets in ctx.batches():
        run.optimizer.zero_grad()
        loss = run.loss(inputs, targets)
        gradients = torch.autograd.grad(loss, list(run.net.parameters()), create_graph=True)
        (loss + 0.1 * sum(each.pow(2).sum() for each in gradients)).backward()
        run.optimizer.step()
        ctx.record(run.net, loss=loss)


@idiom(workers=(1,))
def backward_with_create_graph(ctx):
    run = ctx.run()
    for inputs, targets in ctx.batches():
        run.optimizer.zero_grad(set_to_none=True)
        run.loss(inputs, targets).backward(create_graph=True)
        penalty = sum(each.grad.pow(2).sum() for each in run.net.parameters())
        penalty.backward()
        run.optimizer.step()
        run.optimizer.zero_grad(set_to_none=True)
        ctx.record(run.net)


@idiom()
def anomalies_detected(ctx):
    with torch.autograd.detect_anomaly(check_nan=True):
        ctx.run(make=adamw).train()


@idiom()
def weights_read_by_a_gradient_hook(ctx):
    """A hook of the backward pass that reads another parameter."""
    run = ctx.run()
    run.net.first.weight.register_hook(lambda gradient: gradient + 0.01 * run.net.head.weight.detach().sum())
    run.train()


@idiom()
def weights_read_between_backward_and_step(ctx):
    run = ctx.run()
    for _ in run.before_steps():
        ctx.record(norms=[each.norm() for each in run.net.parameters()], head=run.net.head.weight)


@idiom()
def penalty_from_a_kept_copy(ctx):
    """L2-SP: the loss has a penalty of the distance to the first weights."""
    run = ctx.run()
    begin = [each.detach().clone() for each in run.net.parameters()]
    for inputs, targets in ctx.batches():
        run.optimizer.zero_grad()
        away = sum((each - kept).pow(2).sum() for each, kept in zip(run.net.parameters(), begin))
        loss = run.loss(inputs, targets)
        (loss + 0.1 * away).backward()
        run.optimizer.step()
        ctx.record(run.net, loss=loss, away=away)


@idiom(workers=(1,))
def graph_kept_over_a_step_without_gradients(ctx):
    """A step without gradients writes no parameter, so the backward pass of an older graph still works. With several workers
    torch raises its error about an in-place change, because another worker may have had gradients."""
    net = Mlp()
    model, optimizer = ctx.wrap(net, adamw(net.parameters()))
    for inputs, targets in ctx.batches(5):
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad(set_to_none=True)
        optimizer.step()
        loss.backward()
        optimizer.step()
        ctx.record(net, loss=loss)
