"""Numbers of 16 and of 64 bits."""

import torch

from ..context import Mlp, adam, adamw, sgd
from ..idiom import idiom

MASTERS = "the hub keeps weights and state in float32, so that small changes are not lost; torch rounds each step"


@idiom(tolerance=0.02, why_tolerance=MASTERS, needs_for_two=(2, 4))
def bfloat16_parameters(ctx):
    net = Mlp().bfloat16()
    model, optimizer = ctx.wrap(net, sgd(net.parameters()))
    for inputs, targets in ctx.batches():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs.bfloat16()).float(), targets)
        loss.backward()
        optimizer.step()
        ctx.record(net, loss=loss)


@idiom(tolerance=0.02, why_tolerance=MASTERS, needs_for_two=(2, 4))
def bfloat16_parameters_with_adamw(ctx):
    net = Mlp().bfloat16()
    model, optimizer = ctx.wrap(net, adamw(net.parameters()))
    for inputs, targets in ctx.batches():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs.bfloat16()).float(), targets)
        loss.backward()
        optimizer.step()
        ctx.record(net, loss=loss)


@idiom(tolerance=0.005, why_tolerance=MASTERS, needs=(2, 2))
def float16_parameters(ctx):
    """Parameters in float16. Torch before 2.2 has no matrix product of float16 in host memory."""
    net = Mlp().half()
    model, optimizer = ctx.wrap(net, sgd(net.parameters()))
    for inputs, targets in ctx.batches():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs.half()).float(), targets)
        loss.backward()
        optimizer.step()
        ctx.record(net, loss=loss)


@idiom()
def autocast(ctx):
    run = ctx.run()
    for inputs, targets in ctx.batches():
        run.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = run.loss(inputs, targets)
        loss.backward()
        run.optimizer.step()
        ctx.record(run.net, loss=loss)


@idiom()
def autocast_with_clipping(ctx):
    run = ctx.run(make=adam)
    for inputs, targets in ctx.batches():
        run.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = run.loss(inputs, targets)
        loss.backward()
        ctx.record(norm=torch.nn.utils.clip_grad_norm_(run.net.parameters(), 0.1))
        run.optimizer.step()
        ctx.record(run.net, loss=loss)


@idiom()
def layers_of_both_kinds(ctx):
    """A trained part in float32, and a frozen part in float64. The job does not have the frozen part."""

    class Mixed(Mlp):
        def __init__(self):
            super().__init__()
            self.first.double().requires_grad_(False)

        def features(self, inputs):
            return torch.tanh(self.second(torch.tanh(self.first(inputs.double()).float())))

    ctx.run(Mixed(), adamw).train()


@idiom()
def float64_parameters(ctx):
    net = Mlp().double()
    model, optimizer = ctx.wrap(net, sgd(net.parameters()))
    for inputs, targets in ctx.batches():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs.double()), targets)
        loss.backward()
        optimizer.step()
        ctx.record(net, loss=loss)


@idiom()
def default_type_of_64_bits_elsewhere(ctx):
    """Losses in float64, because of torch's default type; parameters are in float32."""
    run = ctx.run()
    for inputs, targets in ctx.batches():
        run.optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(run.model(inputs).double(), targets)
        loss.backward()
        run.optimizer.step()
        ctx.record(run.net, loss=loss)
