"""A gradient scaler for tensors in host memory: torch's own scaler, or for torch 1 a scaler with the same methods."""

import torch

from .idiom import VERSION


class _Scaler:
    """A copy of torch 2's `GradScaler`, for tensors in host memory."""

    def __init__(self, init_scale, growth_interval, growth_factor=2.0, backoff_factor=0.5):
        self._scale, self._interval = init_scale, growth_interval
        self._growth, self._backoff = growth_factor, backoff_factor
        self._good_steps = 0
        self._found = {}

    def scale(self, loss):
        return loss * self._scale

    def unscale_(self, optimizer):
        gradients = [each.grad for group in optimizer.param_groups for each in group["params"] if each.grad is not None]
        for each in gradients:
            each.mul_(1 / self._scale)
        self._found[id(optimizer)] = any(not each.isfinite().all() for each in gradients)

    def step(self, optimizer):
        if id(optimizer) not in self._found:
            self.unscale_(optimizer)
        if not self._found[id(optimizer)]:
            optimizer.step()

    def update(self):
        if any(self._found.values()):
            self._scale, self._good_steps = self._scale * self._backoff, 0
        else:
            self._good_steps += 1
            if self._good_steps == self._interval:
                self._scale, self._good_steps = self._scale * self._growth, 0
        self._found.clear()

    def get_scale(self):
        return self._scale

    def state_dict(self):
        return {"scale": self._scale, "_growth_tracker": self._good_steps}


def scaler(init_scale=1024.0, growth_interval=2):
    """Returns a scaler whose scale grows after `growth_interval` steps with finite gradients."""
    if VERSION >= (2, 3):
        return torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=growth_interval)
    return _Scaler(init_scale, growth_interval)
