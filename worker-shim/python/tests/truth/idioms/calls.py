"""Calls of torch.distributed that a script makes itself. In the mode "c10d" the hub does them. In the other modes gloo does them,
and the hub does only the optimizer's exchange. With DDP's own hooks each worker makes its own steps."""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from ..context import Mlp, sgd
from ..idiom import idiom

LOSS = torch.nn.functional.cross_entropy


def loop(ctx, net, model, optimizer, after_backward=lambda: None, after_step=lambda: None):
    for inputs, targets in ctx.batches():
        optimizer.zero_grad()
        loss = LOSS(model(inputs), targets)
        loss.backward()
        after_backward()
        optimizer.step()
        after_step()
        ctx.record(net, loss=loss)


def with_hook(ctx, state, hook):
    net = Mlp()
    model = DistributedDataParallel(net, bucket_cap_mb=0.0003)
    model.register_comm_hook(state, hook)
    loop(ctx, net, model, sgd(net.parameters()))


@idiom(workers=(2,))
def gradients_averaged_by_hand(ctx):
    net = Mlp()

    def average():
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= ctx.world

    loop(ctx, net, net, sgd(net.parameters()), after_backward=average)


@idiom(workers=(2,))
def gradients_flattened_and_averaged_asynchronously(ctx):
    net = Mlp()

    def average():
        gradients = [parameter.grad for parameter in net.parameters()]
        flat = torch.cat([each.reshape(-1) for each in gradients])
        work = dist.all_reduce(flat, async_op=True)
        work.wait()
        for each, mean in zip(gradients, (flat / ctx.world).split([each.numel() for each in gradients])):
            each.copy_(mean.view_as(each))

    loop(ctx, net, net, sgd(net.parameters()), after_backward=average)


@idiom(workers=(2,))
def weights_averaged_every_second_step(ctx):
    net = Mlp()
    averager = PeriodicModelAverager(period=2, warmup_steps=1)
    loop(ctx, net, net, sgd(net.parameters()), after_step=lambda: averager.average_parameters(net.parameters()))


@idiom(workers=(2,))
def loss_averaged_in_a_callback(ctx):
    net = Mlp()
    model, optimizer = ctx.wrap(net, sgd(net.parameters()))
    for inputs, targets in ctx.batches():
        optimizer.zero_grad()
        loss = LOSS(model(inputs), targets)
        loss.backward()
        sums = dist.all_reduce(loss.detach().clone(), async_op=True).get_future()
        mean = sums.then(lambda future: future.wait()[0] / 2)
        optimizer.step()
        ctx.record(net, loss=loss, mean=mean.wait())


@idiom(workers=(2,), needs=(2, 4))
def call_in_a_callback(ctx):
    ones = torch.ones(3) * (ctx.rank + 1)

    def again(future):
        each = future.wait()[0] * 10
        if ctx.way == "c10d":  # gloo pairs calls by their number, and the calls of its threads have no order
            dist.all_reduce(each)
            return each
        return each * 2

    for _ in range(5):
        future = dist.all_reduce(ones.clone(), async_op=True).get_future()
        ctx.record(seen=future.then(again).wait())


@idiom(workers=(2,), hooked=True)
def halved_gradients_in_a_hook(ctx):
    with_hook(ctx, None, default_hooks.fp16_compress_hook)


@idiom(workers=(2,))
def allreduce_in_a_hook(ctx):
    with_hook(ctx, None, default_hooks.allreduce_hook)


@idiom(workers=(2,), tolerance=1e-4, why_tolerance="it divides by norms of what it compresses")
def low_rank_gradients_in_a_hook(ctx):
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=1)

    def hook(state, bucket):
        future = powerSGD_hook.powerSGD_hook(state, bucket)
        if ctx.way != "c10d":  # gloo pairs calls by their number, and the calls of its threads have no order
            future.wait()
        return future

    hook.__annotations__ = powerSGD_hook.powerSGD_hook.__annotations__
    with_hook(ctx, state, hook)


@idiom(workers=(2,))
def optimizer_state_in_shards(ctx):
    net = Mlp()
    model = DistributedDataParallel(net)
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, lr=0.01)
    loop(ctx, net, model, optimizer)


@idiom(workers=(2,))
def several_kinds_of_numbers(ctx):
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64):
        if dtype == torch.bfloat16 and ctx.way != "c10d":
            ctx.record(sums=torch.arange(5).float() * 3)  # the expected numbers: gloo lacks this call before torch 2
            continue
        each = (torch.arange(5) * (ctx.rank + 1)).to(dtype)
        dist.all_reduce(each)
        ctx.record(sums=each.float())
    dist.barrier()
    highest = torch.tensor([float(ctx.rank)])
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    first = torch.tensor([ctx.rank + 5.0])
    dist.broadcast(first, 0)
    ctx.record(highest=highest, first=first)
