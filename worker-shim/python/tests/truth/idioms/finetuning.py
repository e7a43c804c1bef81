"""Transfer learning, adapters, and models that are trained in parts."""

import gc
import math

import torch

from ..context import Mlp, adam, adamw, sgd
from ..idiom import idiom


def trained(ctx, net, optimizer, steps=5, loss_of=torch.nn.functional.cross_entropy):
    model, optimizer = ctx.wrap(net, optimizer)
    for inputs, targets in ctx.batches(steps):
        optimizer.zero_grad()
        loss = loss_of(model(inputs), targets)
        loss.backward()
        optimizer.step()
        ctx.record(net, loss=loss)


@idiom()
def feature_extractor(ctx):
    """All parameters are frozen, the head is replaced, and the optimizer has only the head, as in torch's tutorial."""
    net = Mlp()
    for each in net.parameters():
        each.requires_grad = False
    net.head = torch.nn.Linear(net.head.in_features, 3)
    trained(ctx, net, sgd(net.head.parameters()))


@idiom()
def frozen_parameters_in_the_optimizer(ctx):
    """The optimizer has all parameters. Weight decay does not change the frozen parameters."""
    net = Mlp()
    net.first.requires_grad_(False)
    trained(ctx, net, adamw(net.parameters(), weight_decay=0.5))


@idiom()
def filtered_parameters(ctx):
    net = Mlp()
    net.first.requires_grad_(False)
    trained(ctx, net, adam(filter(lambda each: each.requires_grad, net.parameters())))


@idiom()
def biases_only(ctx):
    """BitFit: only the biases are trained."""
    net = Mlp()
    for name, each in net.named_parameters():
        each.requires_grad_("bias" in name)
    trained(ctx, net, sgd(net.parameters(), weight_decay=0.1))


@idiom()
def backbone_without_gradients(ctx):
    """The features are computed under `no_grad`, but their parameters are not frozen."""

    class Probe(Mlp):
        def forward(self, inputs):
            with torch.no_grad():
                features = self.features(inputs)
            return self.head(features)

    run = ctx.run(Probe(), adamw, wrap={"unused": True}, weight_decay=0.5)
    run.train()


@idiom()
def probe_first_and_all_later(ctx):
    """LP-FT: the head is trained with one optimizer, and then all parameters with another optimizer."""
    net = Mlp()
    net.first.requires_grad_(False)
    net.second.requires_grad_(False)
    run = ctx.run(net, sgd)
    run.train(3)
    net.requires_grad_(True)
    run.model, run.optimizer = ctx.again(net, run.optimizer, adamw(net.parameters(), lr=0.001))
    run.train(3)


class Adapted(torch.nn.Module):
    """A frozen linear layer, and a trained low-rank change of it."""

    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = torch.nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = torch.nn.Parameter(torch.zeros(base.out_features, rank))
        torch.nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.is_merged = False

    def forward(self, inputs):
        outputs = self.base(inputs)
        return outputs if self.is_merged else outputs + inputs @ self.lora_A.t() @ self.lora_B.t() * 2.0

    def merge(self, sign=1):
        self.base.weight.data += sign * 2.0 * self.lora_B @ self.lora_A
        self.is_merged = sign > 0


def with_adapters(net):
    """Replaces layers of the model, found by their names, by adapters, as PEFT does."""
    net.requires_grad_(False)
    for name in ("first", "second"):
        setattr(net, name, Adapted(getattr(net, name)))
    return net


@idiom()
def adapters(ctx):
    ctx.run(with_adapters(Mlp()), adamw).train()


@idiom()
def adapters_of_one_optimizer_group(ctx):
    net = with_adapters(Mlp())
    groups = [
        {"params": [each for name, each in net.named_parameters() if name.endswith("lora_A")], "lr": 0.01},
        {"params": [each for name, each in net.named_parameters() if name.endswith("lora_B")], "lr": 0.16},
    ]
    trained(ctx, net, adamw(groups))


@idiom()
def adapters_merged_for_an_evaluation(ctx):
    net = with_adapters(Mlp())
    run = ctx.run(net, sgd)
    for _ in run.after_steps():
        for layer in (net.first, net.second):
            layer.merge()
        with torch.no_grad():
            ctx.record(seen=net(torch.ones(2, 6)))
        for layer in (net.first, net.second):
            layer.merge(-1)


@idiom()
def adapters_merged_and_begun_anew(ctx):
    """ReLoRA: adapters are added to the frozen weights, and begin again at zero."""
    net = with_adapters(Mlp())
    run = ctx.run(net, sgd)
    for _ in range(3):
        run.train(2)
        for layer in (net.first, net.second):
            layer.merge()
            layer.is_merged = False
            torch.nn.init.zeros_(layer.lora_B)


@idiom()
def adapters_saved_alone(ctx):
    """Only the trained parameters are saved, and loaded into a new model after the wrap."""
    run = ctx.run(with_adapters(Mlp()), adamw)
    run.train(3)
    saved = {name: each.detach().clone() for name, each in run.net.named_parameters() if each.requires_grad}
    ctx.record(saved=saved)
    again = ctx.run(with_adapters(Mlp()), adamw)
    again.net.load_state_dict(saved, strict=False)
    again.train(3)


@idiom()
def two_adapters_in_turns(ctx):
    """One of two adapters is frozen in every second step."""
    net = with_adapters(Mlp())
    run = ctx.run(net, adamw, wrap={"unused": True})
    for step, _ in enumerate(run.after_steps(6)):
        net.first.requires_grad_(step % 2 == 0)
        net.first.base.requires_grad_(False)


@idiom()
def prompt(ctx):
    """A learned input in front of a frozen model."""

    class Prompted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.prompt = torch.nn.Parameter(torch.zeros(6))
            self.body = Mlp().requires_grad_(False)

        def forward(self, inputs):
            return self.body(inputs + self.prompt)

    ctx.run(Prompted(), adamw).train()


@idiom()
def distilled(ctx):
    """A teacher that is not trained, in evaluation mode."""
    torch.manual_seed(31)
    teacher = Mlp().eval()
    run = ctx.run()
    for inputs, targets in ctx.batches():
        with torch.no_grad():
            wanted = torch.softmax(teacher(inputs) / 2, 1)
        run.optimizer.zero_grad()
        outputs = run.model(inputs)
        loss = torch.nn.functional.cross_entropy(outputs, targets)
        loss = loss + 4 * torch.nn.functional.kl_div(torch.log_softmax(outputs / 2, 1), wanted, reduction="batchmean")
        loss.backward()
        run.optimizer.step()
        ctx.record(run.net, loss=loss)


@idiom()
def head_replaced_in_the_run(ctx):
    """A new head replaces the head during the run, as for new classes. Its parameters are a new group."""
    net = Mlp()
    model, optimizer = ctx.wrap(net, sgd(net.parameters()), unused=True)
    for step, (inputs, targets) in enumerate(ctx.batches(6)):
        if step == 3:
            torch.manual_seed(77)
            former, net.head = net.head, torch.nn.Linear(8, 3)
            net.head.weight.data[:2] = former.weight.data[:2]
            optimizer.add_param_group({"params": net.head.parameters()})
            model = ctx.anew(model, net)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        ctx.record(net, loss=loss)


@idiom()
def elastic_weights(ctx):
    """EWC: the script sums squared gradients in passes without steps, and then trains with a penalty weighted by the sums."""
    run = ctx.run()
    run.train(2)
    importance = {name: torch.zeros_like(each) for name, each in run.net.named_parameters()}
    for inputs, targets in ctx.batches(3):
        run.optimizer.zero_grad()
        run.loss(inputs, targets).backward()
        for name, each in run.net.named_parameters():
            importance[name] += each.grad.data.pow(2) / 3
    kept = {name: each.detach().clone() for name, each in run.net.named_parameters()}
    ctx.record(importance=importance)
    for inputs, targets in ctx.batches(3):
        run.optimizer.zero_grad()
        penalty = sum(
            (importance[name] * (each - kept[name]).pow(2)).sum() for name, each in run.net.named_parameters()
        )
        (run.loss(inputs, targets) + 10 * penalty).backward()
        run.optimizer.step()
        ctx.record(run.net, penalty=penalty)


@idiom()
def rates_searched(ctx):
    """A learning-rate finder: the rate grows with each step, and then the weights and the rate are set back."""
    run = ctx.run()
    kept = {name: each.clone() for name, each in run.net.state_dict().items()}
    for step, _ in enumerate(run.after_steps(5)):
        run.optimizer.param_groups[0]["lr"] = 0.001 * 3.0**step
    run.net.load_state_dict(kept)
    run.optimizer.param_groups[0]["lr"] = 0.05
    run.train(3)


@idiom()
def parameters_put_into_a_group(ctx):
    """The script appends to the list of a group, without `add_param_group`."""
    net = Mlp()
    model, optimizer = ctx.wrap(net, sgd(net.head.parameters()))
    for number, (inputs, targets) in enumerate(ctx.batches(4)):
        if number == 2:
            optimizer.param_groups[0]["params"].extend(net.first.parameters())
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        ctx.record(net)


def put_into_a_group_after_zero_grad(ctx, read):
    """Appends to the list of a group between `zero_grad` and the backward pass, and reads gradients by `read` before the step."""
    net = Mlp()
    model, optimizer = ctx.wrap(net, sgd(net.head.parameters()))
    for number, (inputs, targets) in enumerate(ctx.batches(4)):
        optimizer.zero_grad()
        if number == 2:
            optimizer.param_groups[0]["params"].extend([*net.first.parameters(), *net.second.parameters()])
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        if number >= 2:
            ctx.record(read=read(net))
        optimizer.step()
        ctx.record(net)


@idiom()
def put_into_a_group_after_zero_grad_and_clipped(ctx):
    put_into_a_group_after_zero_grad(ctx, lambda net: torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1))


@idiom()
def put_into_a_group_after_zero_grad_and_read(ctx):
    """Only a gradient of a parameter that was put into the group is read."""
    put_into_a_group_after_zero_grad(ctx, lambda net: net.first.bias.grad.clone())


@idiom()
def another_group_between_backward_and_clip(ctx):
    _another_group_between_backward_and_clip(ctx)


@idiom()
def a_garbage_collection_after_another_group(ctx):
    _another_group_between_backward_and_clip(ctx, gc.collect)


def _another_group_between_backward_and_clip(ctx, then=lambda: None):
    net = Mlp()
    model, optimizer = ctx.wrap(net, adamw([*net.first.parameters(), *net.second.parameters(), net.head.weight]))
    for step, (inputs, targets) in enumerate(ctx.batches()):
        net.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        if step == 2:
            optimizer.add_param_group({"params": [net.head.bias]})
            then()
        if step >= 2:
            ctx.record(norm=torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1))
        optimizer.step()
        ctx.record(net, loss=loss)


@idiom()
def put_into_a_group_between_two_reads(ctx):
    """A gradient of the group's first parameters is read before other parameters are put into the group."""

    def read(net):
        return net.head.bias.grad.sum() + net.first.weight.grad.sum()

    put_into_a_group_after_zero_grad(ctx, read)
