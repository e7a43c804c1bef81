"""Kinds of modules: lazy, without memory at first, parametrised, functional, compiled."""

import copy

import torch
from torch.nn.utils import parametrizations, parametrize, prune

from ..context import Mlp, adam, adamw, sgd
from ..idiom import VERSION, idiom


@idiom()
def lazy_after_a_first_batch(ctx):
    net = torch.nn.Sequential(torch.nn.LazyLinear(8), torch.nn.Tanh(), torch.nn.LazyLinear(3))
    net(next(ctx.batches())[0])
    ctx.run(net).train()


@idiom(raises=True, workers=(2,))
def lazy_without_a_batch(ctx):
    """DDP raises an error for a lazy module that has not seen a batch."""
    net = torch.nn.Sequential(torch.nn.LazyLinear(8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    ctx.run(net).train()


@idiom(needs=(2, 0))
def without_memory_at_first(ctx):
    """The model is made on `meta`, gets memory, is initialised, and only then wrapped."""
    with torch.device("meta"):
        net = Mlp()
    net = net.to_empty(device="cpu")
    torch.manual_seed(12)
    for layer in (net.first, net.second, net.head):
        layer.reset_parameters()
    ctx.run(net, adamw).train()


@idiom(raises=True, workers=(2,), needs=(2, 0))
def wrapped_without_memory(ctx):
    with torch.device("meta"):
        net = Mlp()
    ctx.run(net).train()


@idiom(needs=(2, 1))
def loaded_by_assignment(ctx):
    """`load_state_dict(assign=True)` gives the model other Parameters. So the script makes the optimizer later."""
    net = Mlp()
    state = copy.deepcopy(net.state_dict())
    net.load_state_dict({name: value * 0.5 for name, value in state.items()}, assign=True)
    ctx.run(net).train()


class WithExtra(Mlp):
    """A model with a parameter that has no elements, as a part that this configuration switches off."""

    def __init__(self):
        super().__init__()
        self.extra = torch.nn.Parameter(torch.zeros(0, 3))

    def forward(self, inputs):
        return super().forward(inputs) + self.extra.sum(0)


@idiom(needs_for_two=(2, 4))  # DDP of torch 1.13 raises an error
def parameter_without_elements(ctx):
    run = ctx.run(WithExtra(), adamw)
    for _ in run.before_steps():
        ctx.record(norm=torch.nn.utils.clip_grad_norm_(run.net.parameters(), 0.1))


@idiom(workers=(1,))
def parameter_that_gets_elements(ctx):
    run = ctx.run(WithExtra(), momentum=0.0)
    run.train(2)
    run.optimizer.zero_grad()
    run.net.extra.data = torch.full((2, 3), 0.1)
    run.train(2)


@idiom()
def orthogonal(ctx):
    net = Mlp()
    parametrizations.orthogonal(net.second)
    ctx.run(net).train()


@idiom()
def parametrised_by_hand(ctx):
    class Symmetric(torch.nn.Module):
        def forward(self, weight):
            return weight.triu() + weight.triu(1).transpose(-1, -2)

    net = Mlp()
    parametrize.register_parametrization(net.second, "weight", Symmetric())
    run = ctx.run(net, adamw)
    for _ in run.after_steps():
        ctx.record(weight=net.second.weight)


@idiom()
def parametrisation_removed_in_the_run(ctx):
    """The weight that the optimizer has is replaced by another parameter, so the script makes a new optimizer."""
    net = Mlp()
    parametrizations.spectral_norm(net.second)
    run = ctx.run(net)
    run.train(2)
    parametrize.remove_parametrizations(net.second, "weight")
    run.model, run.optimizer = ctx.again(net, run.optimizer, sgd(net.parameters()))
    run.train(3)


@idiom()
def weight_norm(ctx):
    net = Mlp()
    torch.nn.utils.weight_norm(net.first)
    torch.nn.utils.weight_norm(net.second)
    ctx.run(net, adam).train()


@idiom(needs=(2, 1))
def weight_norm_by_parametrisation(ctx):
    net = Mlp()
    parametrizations.weight_norm(net.second)
    ctx.run(net, adam).train()


@idiom()
def spectral_norm(ctx):
    """The vectors of a spectral norm are buffers, which each forward pass writes."""
    net = Mlp()
    torch.nn.utils.spectral_norm(net.second)
    ctx.run(net).train()


@idiom()
def pruned(ctx):
    """`torch.nn.utils.prune` puts a mask on the weight during the run."""
    net = Mlp()
    prune.l1_unstructured(net.second, "weight", amount=0.3)
    run = ctx.run(net, adamw)
    run.train(3)
    prune.l1_unstructured(net.second, "weight", amount=0.3)
    run.train(3)


@idiom(workers=(1,))
def functional_call(ctx):
    """The model's own parameters by a functional call. DDP does not see such a call."""
    if VERSION >= (2, 0):
        call = torch.func.functional_call
    else:
        from torch.nn.utils.stateless import functional_call as call
    run = ctx.run()
    for inputs, targets in ctx.batches():
        run.optimizer.zero_grad()
        outputs = call(run.net, dict(run.net.named_parameters()), (inputs,))
        loss = torch.nn.functional.cross_entropy(outputs, targets)
        loss.backward()
        run.optimizer.step()
        ctx.record(run.net, loss=loss)


@idiom(workers=(1,))
def meta_learning(ctx):
    """MAML: one inner step with a graph, and an outer step."""
    if VERSION >= (2, 0):
        call = torch.func.functional_call
    else:
        from torch.nn.utils.stateless import functional_call as call
    run = ctx.run(make=adam)
    for inputs, targets in ctx.batches():
        weights = dict(run.net.named_parameters())
        inner = torch.nn.functional.cross_entropy(call(run.net, weights, (inputs[:6],)), targets[:6])
        slopes = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        fast = {name: each - 0.1 * slope for (name, each), slope in zip(weights.items(), slopes)}
        loss = torch.nn.functional.cross_entropy(call(run.net, fast, (inputs[6:],)), targets[6:])
        run.optimizer.zero_grad()
        loss.backward()
        run.optimizer.step()
        ctx.record(run.net, loss=loss, inner=inner)


@idiom(needs=(2, 0), hooked=False)
def gradients_by_torch_func(ctx):
    """Gradients of `torch.func.grad`, which the script averages over ranks and assigns to the parameters."""
    net = Mlp()
    _, optimizer = ctx.wrap(net, adamw(net.parameters()))

    def loss_of(weights, inputs, targets):
        return torch.nn.functional.cross_entropy(torch.func.functional_call(net, weights, (inputs,)), targets)

    for inputs, targets in ctx.batches():
        weights = {name: each.detach() for name, each in net.named_parameters()}
        gradients = torch.func.grad(loss_of)(weights, inputs, targets)
        for name, each in net.named_parameters():
            each.grad = ctx.mean(gradients[name])
        optimizer.step()
        ctx.record(net)


@idiom(needs=(2, 0), hooked=False)
def gradients_of_each_sample(ctx):
    """Gradients are clipped sample by sample, as for differential privacy."""
    net = Mlp()
    _, optimizer = ctx.wrap(net, sgd(net.parameters()))

    def loss_of(weights, one, target):
        outputs = torch.func.functional_call(net, weights, (one[None],))
        return torch.nn.functional.cross_entropy(outputs, target[None])

    for inputs, targets in ctx.batches():
        weights = {name: each.detach() for name, each in net.named_parameters()}
        of_each = torch.func.vmap(torch.func.grad(loss_of), (None, 0, 0))(weights, inputs, targets)
        norms = sum(each.flatten(1).pow(2).sum(1) for each in of_each.values()).sqrt()
        share = (0.5 / norms).clamp(max=1.0)
        for name, each in net.named_parameters():
            each.grad = ctx.mean((of_each[name].flatten(1) * share[:, None]).mean(0).view_as(each))
        optimizer.step()
        ctx.record(net, norms=norms)


@idiom(needs=(2, 1), limit_s=120)
def compiled(ctx):
    """`torch.compile` of the model, with a backend that needs no C++ compiler."""
    net = Mlp()
    model, optimizer = ctx.wrap(net, adamw(net.parameters()))
    model = torch.compile(model, backend="eager")
    for inputs, targets in ctx.batches():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        ctx.record(net, loss=loss)


@idiom(needs=(2, 2), limit_s=120)
def compiled_before_the_wrap(ctx):
    """The backend takes no parameter of another class before torch 2.2."""
    net = Mlp()
    run = ctx.run(torch.compile(net, backend="aot_eager"), sgd)
    run.train()


@idiom(needs=(2, 1), limit_s=120, tolerance=5e-6, why_tolerance="torch's compiled Adam corrects its means in 32 bits")
def compiled_step(ctx):
    """`torch.compile` of the optimizer's step, as in torch's tutorial."""
    run = ctx.run(make=adam)

    @torch.compile(backend="eager", fullgraph=False)
    def step():
        run.optimizer.step()

    for inputs, targets in ctx.batches():
        run.optimizer.zero_grad()
        run.loss(inputs, targets).backward()
        step()
        ctx.record(run.net)


@idiom(needs=(2, 6), limit_s=120)
def compiled_loop(ctx):
    """`torch.compile` of a whole training step. So torch also compiles Python functions that the backward pass calls."""
    run = ctx.run()

    @torch.compile(backend="eager")
    def step(inputs, targets):
        loss = run.loss(inputs, targets)
        loss.backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
        return loss

    for inputs, targets in ctx.batches():
        ctx.record(run.net, loss=step(inputs, targets))


@idiom()
def scripted(ctx):
    ctx.run(torch.jit.script(Mlp())).train()


@idiom()
def traced(ctx):
    ctx.run(torch.jit.trace(Mlp(), torch.ones(2, 6)), adamw).train()


@idiom()
def dropout(ctx):
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))
    ctx.run(net).train()


class Sequences(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent = torch.nn.LSTM(2, 4, batch_first=True)
        self.head = torch.nn.Linear(4, 3)

    def forward(self, inputs):
        return self.head(self.recurrent(inputs.view(-1, 3, 2))[0][:, -1])


@idiom()
def recurrent(ctx):
    ctx.run(Sequences()).train()


@idiom()
def recurrent_over_pieces(ctx):
    """Truncated backpropagation: the state is carried over steps, detached."""
    net = torch.nn.RNN(6, 8)
    model, optimizer = ctx.wrap(net, sgd(net.parameters()))
    state = torch.zeros(1, 12 // ctx.world, 8)
    for inputs, _ in ctx.batches():
        optimizer.zero_grad()
        outputs, state = model(inputs[None], state)
        loss = outputs.pow(2).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.25)
        optimizer.step()
        state = state.detach()
        ctx.record(net, loss=loss)


@idiom()
def attention(ctx):
    """A transformer's layer, whose attention reads parameters of a module that is never called."""

    class Attending(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
            self.head = torch.nn.Linear(4, 3)

        def forward(self, inputs):
            return self.head(self.layer(inputs[:, :4].reshape(-1, 1, 4).expand(-1, 3, 4).cumsum(1)).mean(1))

    ctx.run(Attending()).train()


@idiom(workers=(1,))
def convolutions_in_another_order_of_memory(ctx):
    """`channels_last` after the wrap gives the parameters' memory a new layout. DDP of torch 1.13 then mixes up gradients."""
    net = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 2), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(8, 3))
    run = ctx.run(torch.nn.Sequential(torch.nn.Unflatten(1, (2, 1, 3)), torch.nn.ZeroPad2d((0, 0, 0, 1)), net))
    run.net.to(memory_format=torch.channels_last)
    run.train()


@idiom()
def convolutions_in_another_order_before_the_wrap(ctx):
    net = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 2), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(8, 3))
    net = torch.nn.Sequential(torch.nn.Unflatten(1, (2, 1, 3)), torch.nn.ZeroPad2d((0, 0, 0, 1)), net)
    ctx.run(net.to(memory_format=torch.channels_last), adamw).train()


@idiom()
def moved_to_where_it_is(ctx):
    run = ctx.run()
    run.net.to("cpu").to(torch.float32).float()
    run.train()


@idiom()
def moved_to_where_it_is_at_rank_0(ctx):
    """Rank 0 saves `model.cpu().state_dict()`, for a model that is in host memory already."""
    run = ctx.run()
    for _ in run.after_steps():
        if ctx.rank == 0:
            state = run.net.cpu().float().state_dict()
            assert all(value.dtype == torch.float32 for value in state.values())


@idiom()
def memory_shared_after_the_wrap(ctx):
    """A3C: `share_memory()` moves all parameters."""
    run = ctx.run()
    run.train(2)
    run.net.share_memory()
    run.train(3)


@idiom()
def parameters_without_a_module(ctx):
    """A module that has its own parameters and no layers, as in textbooks."""

    class Line(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = torch.nn.ParameterList([torch.randn(6, 3) * 0.3, torch.zeros(3)])
            self.scale = torch.nn.Parameter(torch.ones(()))

        def forward(self, inputs):
            return (inputs @ self.weights[0] + self.weights[1]) * self.scale

    ctx.run(Line()).train()


@idiom()
def many_chunks(ctx):
    """A layer that has several chunks at the hub."""
    net = torch.nn.Sequential(torch.nn.Linear(6, 20_000), torch.nn.Tanh(), torch.nn.Linear(20_000, 3))
    ctx.run(net, sgd, lr=0.001).train(3)


@idiom()
def submodule_called_by_itself(ctx):
    """The script computes features for an evaluation by a method, without a call of the model."""
    run = ctx.run()
    for _ in run.after_steps():
        with torch.no_grad():
            ctx.record(features=run.net.features(torch.ones(2, 6)), head=run.net.head(torch.ones(2, 8)))


@idiom()
def parameters_used_by_a_function(ctx):
    """`functional.linear` with a module's weights, outside of the module."""
    run = ctx.run(make=adamw)
    for _ in run.after_steps():
        ctx.record(seen=torch.nn.functional.linear(torch.ones(1, 6), run.net.first.weight, run.net.first.bias))
