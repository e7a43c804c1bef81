"""Loops that end early, that end at different steps, or in which ranks decide together."""

import torch
import torch.distributed as dist

from ..context import Mlp, adam, adamw, sgd
from ..idiom import idiom


@idiom()
def stopped_by_rank_0(ctx):
    """Rank 0 decides by its loss to stop, and broadcasts the decision."""
    run = ctx.run()
    lowest, waited = float("inf"), 0
    for loss in run.after_steps(10):
        stop = torch.zeros(1)
        if ctx.rank == 0:
            waited = 0 if loss.item() < lowest else waited + 1
            lowest = min(lowest, loss.item())
            stop += waited > 1
        dist.broadcast(stop, 0)
        ctx.record(stop=stop)
        if stop.item() > 0:
            break
    ctx.record(run.net)


@idiom(workers=(2,))
def uneven_inputs(ctx):
    """Rank 1 has more batches. Meanwhile `Join` makes rank 0 take part in the all-reduces."""
    net = Mlp()
    model, optimizer = ctx.wrap(net, sgd(net.parameters(), momentum=0.0))
    with ctx.join(model, optimizer):
        for inputs, targets in ctx.batches(3 + 2 * ctx.rank):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            ctx.record(loss=loss)


@idiom()
def barrier_each_epoch(ctx):
    run = ctx.run(make=adamw)
    for _ in range(2):
        run.train(2)
        dist.barrier()
        total = torch.tensor([1.0 + ctx.rank])
        dist.all_reduce(total)
        ctx.record(total=total)


@idiom()
def evaluated_by_rank_0(ctx):
    """Only rank 0 reads the model between steps, and the other ranks wait at a barrier."""
    run = ctx.run()
    for _ in run.after_steps():
        if ctx.rank == 0:
            run.net.eval()
            with torch.no_grad():
                ctx.record(seen=run.net(torch.ones(2, 6)))
            run.net.train()
        dist.barrier()


@idiom()
def saved_by_rank_0(ctx):
    run = ctx.run(make=adamw)
    for step, _ in enumerate(run.after_steps(4)):
        if ctx.rank == 0 and step % 2:
            ctx.record(model=run.net.state_dict(), entries=len(run.optimizer.state_dict()["state"]))


@idiom()
def bad_batches_skipped(ctx):
    """A batch whose loss is not finite is skipped before its backward pass, by all ranks."""
    run = ctx.run()
    for step, (inputs, targets) in enumerate(ctx.batches(6)):
        loss = run.loss(inputs * (float("nan") if step in (1, 4) else 1.0), targets)
        if not torch.isfinite(ctx.mean(loss.detach().clone())):
            continue
        run.optimizer.zero_grad()
        loss.backward()
        run.optimizer.step()
        ctx.record(run.net, loss=loss)


@idiom()
def norms_logged(ctx):
    """The norm of gradients and weights, for a log."""
    run = ctx.run()
    for _ in run.before_steps():
        ctx.record(
            gradients=torch.stack([each.grad.detach().norm() for each in run.net.parameters()]).norm(),
            weights=sum(each.detach().pow(2).sum() for each in run.net.parameters()).sqrt(),
        )


@idiom()
def norms_logged_after_the_step(ctx):
    run = ctx.run(make=adamw)
    for _ in run.after_steps():
        ctx.record(gradients=[each.grad.norm() for each in run.net.parameters()])


@idiom()
def histograms_logged(ctx):
    """TensorBoard copies weights and gradients to NumPy."""
    run = ctx.run(make=adam)
    for _ in run.after_steps():
        for each in run.net.parameters():
            ctx.record(weight=torch.from_numpy(each.clone().cpu().data.numpy()))
            ctx.record(gradient=torch.from_numpy(each.grad.clone().cpu().data.numpy()))


@idiom()
def ratio_of_updates(ctx):
    """The script logs the change of each weight relative to its size."""
    run = ctx.run()
    for _ in run.before_steps():
        before = [each.data.clone() for each in run.net.parameters()]
        ctx.record(before=before)
    ctx.record(ratio=[(each.data - kept).std() / kept.std() for each, kept in zip(run.net.parameters(), before)])


@idiom()
def interrupted(ctx):
    """Ctrl-C ends training, and the script saves the current state."""
    run = ctx.run()
    try:
        for step, _ in enumerate(run.after_steps()):
            if step == 2:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        ctx.record(model=run.net.state_dict())


@idiom()
def epochs_with_evaluations(ctx):
    run = ctx.run(make=adamw)
    for _ in range(3):
        run.net.train()
        run.train(2)
        run.net.eval()
        with torch.no_grad():
            right = sum((run.net(inputs).argmax(1) == targets).sum() for inputs, targets in ctx.batches(2))
        ctx.record(right=right)


@idiom()
def evaluated_without_recording(ctx):
    """An evaluation in `inference_mode` between steps."""
    run = ctx.run()
    for _ in run.after_steps():
        with torch.inference_mode():
            ctx.record(seen=run.net(torch.ones(2, 6)).clone())
