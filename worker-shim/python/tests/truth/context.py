"""An idiom's context: the same script runs with plain torch, with DDP, and with the hub."""

import contextlib

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import phub.torch

from .records import Records
from .ways import HUB_WAYS, UNREAD


class Mlp(torch.nn.Module):
    """Three layers, with a smooth function between them, so that a rounding error stays small."""

    def __init__(self, inputs=6, hidden=8, outputs=3):
        super().__init__()
        self.first = torch.nn.Linear(inputs, hidden)
        self.second = torch.nn.Linear(hidden, hidden)
        self.head = torch.nn.Linear(hidden, outputs)

    def features(self, inputs):
        return torch.tanh(self.second(torch.tanh(self.first(inputs))))

    def forward(self, inputs):
        return self.head(self.features(inputs))


def sgd(parameters, lr=0.1, momentum=0.9, **settings):
    return torch.optim.SGD(parameters, lr=lr, momentum=momentum, **settings)


def adamw(parameters, lr=0.01, **settings):
    return torch.optim.AdamW(parameters, lr=lr, **settings)


def adam(parameters, lr=0.01, **settings):
    return torch.optim.Adam(parameters, lr=lr, **settings)


class Context:
    """One run of an idiom, in one of the ways of `ways`, on one rank."""

    def __init__(self, way, rank, world, hub, job):
        self.way, self.rank, self.world = way, rank, world
        self.records = Records(reads_modules=way != UNREAD)
        self._hub, self._job, self._jobs = hub, job, 0
        self._models, self._members, self._states = [], [], []
        torch.manual_seed(7)

    # ---- the beginning of a script

    def batches(self, steps=5, rows=12, inputs=6, classes=3):
        """Yields this rank's share of each batch. The mean over ranks is the mean of the whole batch."""
        source = torch.Generator().manual_seed(11)
        for _ in range(steps):
            whole = torch.randn(rows, inputs, generator=source), torch.randint(classes, (rows,), generator=source)
            yield tuple(each[self.rank :: self.world] for each in whole)

    def wrap(self, model, optimizer, *, unused=False, broadcast_buffers=False, **hub):
        """Wraps a model and its optimizer. Returns the model that the script calls, and the optimizer that makes its steps.
        `model` may be a list of models.

        Args:
            unused: `find_unused_parameters`, for DDP.
            hub: settings of `DistributedOptimizer`.
        """
        several = isinstance(model, list)
        models = model if several else [model]
        self._models += [each for each in models if each not in self._models]
        if self.way in HUB_WAYS:
            optimizer = self._at_the_hub(
                torch.nn.ModuleList(models) if several else model, optimizer, broadcast_buffers, hub
            )
        elif self.world > 1:
            models = [self._ddp(each, unused, broadcast_buffers) for each in models]
        return (models if several else models[0]), optimizer

    def _at_the_hub(self, model, optimizer, broadcast_buffers, settings):
        settings = {**HUB_WAYS[self.way], "broadcast_buffers": broadcast_buffers, **settings}
        settings.update(hub=self._hub, rank=self.rank, world_size=self.world, job=self._next_job())
        optimizer = phub.torch.DistributedOptimizer(optimizer, model, **settings)
        self._members.append(optimizer)
        return optimizer

    def _ddp(self, model, unused, broadcast_buffers):
        wrapped = DistributedDataParallel(model, find_unused_parameters=unused, broadcast_buffers=broadcast_buffers)
        if self.way == "hook":
            state = phub.torch.HubState(self._hub, self.rank, self.world, job=self._next_job())
            wrapped.register_comm_hook(state, phub.torch.ddp_hook)
            self._states.append(state)
        return wrapped

    def _next_job(self):
        self._jobs += 1
        return f"{self._job}-{self._jobs}"

    def run(self, net=None, make=sgd, *, wrap=None, **settings):
        """Returns a training loop: the default model if none is given, and the optimizer that `make` makes."""
        return Run(self, Mlp() if net is None else net, make, wrap or {}, settings)

    # ---- the parts of a script that differ with several workers

    def no_sync(self, model):
        """Returns the context `no_sync`: of DDP, or of the optimizer with the hub."""
        if self.way in HUB_WAYS:
            return self._members[-1].no_sync()
        return model.no_sync() if hasattr(model, "no_sync") else contextlib.nullcontext()

    def anew(self, model, net):
        """Makes DDP again, after parameters were frozen or unfrozen. With the hub it does nothing."""
        return self._ddp(net, True, False) if isinstance(model, DistributedDataParallel) else model

    def parallel(self, model, unused=False):
        """Returns another DDP of a model that is already wrapped. With the hub it returns the model itself."""
        return model if self.way in HUB_WAYS or self.world == 1 else self._ddp(model, unused, False)

    def also(self, model, optimizer):
        """Returns another optimizer, wrapped, for a model that already has an optimizer."""
        return self._at_the_hub(model, optimizer, False, {}) if self.way in HUB_WAYS else optimizer

    def join(self, model, optimizer):
        """Returns `Join` for the object that communicates: DDP's model, or the hub's optimizer."""
        return Join([optimizer if self.way in HUB_WAYS else model])

    def again(self, net, former, optimizer):
        """Ends the former optimizer, and wraps another optimizer. Returns the model that the script calls, and the
        optimizer."""
        self.leave(former)
        return self.wrap(net, optimizer)

    def leave(self, optimizer):
        """Leaves the optimizer's job. With torch alone it does nothing, because torch has no such call."""
        if optimizer in self._members:
            self._members.remove(optimizer)
            optimizer.leave()

    def mean(self, tensor):
        """Returns the mean of a tensor over ranks, by an all-reduce of the script's own."""
        dist.all_reduce(tensor)
        return tensor.div_(self.world)

    # ---- the values that the test compares

    def record(self, *modules, **values):
        """Records the parameters and buffers of modules, and other values by name: numbers, tensors, dicts and lists."""
        self.records.add(modules, values)

    def finish(self):
        """Ends the script: records the parameters before and after the optimizers leave."""
        self.records.add_modules("at the end", self._models)
        for each in self._members + self._states:
            each.leave()
        self.records.add_modules("after it", self._models)

    def abandon(self):
        """Ends a script that has raised an exception: closes its sessions, so that other workers do not wait for this
        worker."""
        for each in self._members:
            with contextlib.suppress(BaseException):
                each.session.close()
        for state in self._states:
            if state.session is not None:
                with contextlib.suppress(BaseException):
                    state.session.close()


class Run:
    """A plain training loop. An idiom changes parts of it."""

    def __init__(self, ctx, net, make, wrap, settings):
        self.ctx, self.net = ctx, net
        self.model, self.optimizer = ctx.wrap(net, make(net.parameters(), **settings), **wrap)

    def loss(self, inputs, targets):
        return torch.nn.functional.cross_entropy(self.model(inputs).float(), targets)

    def before_steps(self, steps=5, set_to_none=True):
        """Trains. Yields the loss between each backward pass and its step, for the idiom's code."""
        for inputs, targets in self.ctx.batches(steps):
            self.optimizer.zero_grad(set_to_none=set_to_none)
            loss = self.loss(inputs, targets)
            loss.backward()
            yield loss
            self.optimizer.step()
            self.ctx.record(self.net, loss=loss)

    def after_steps(self, steps=5, set_to_none=True):
        """Trains. Yields the loss after each step, for the idiom's code. Records the parameters after the code."""
        for inputs, targets in self.ctx.batches(steps):
            self.optimizer.zero_grad(set_to_none=set_to_none)
            loss = self.loss(inputs, targets)
            loss.backward()
            self.optimizer.step()
            yield loss
            self.ctx.record(self.net, loss=loss)

    def train(self, steps=5):
        """Trains without code of the idiom."""
        for _ in self.after_steps(steps):
            pass
