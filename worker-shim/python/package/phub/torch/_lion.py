"""Lion as a torch optimizer, which PyTorch does not have."""

from __future__ import annotations

from typing import Any, Callable, Optional, Tuple

import torch


class Lion(torch.optim.Optimizer):
    """Lion (Chen et al. 2023): a step moves each weight by `lr`, against the sign of a mean of gradients. The worker makes the
    steps itself, unless the optimizer is given to `DistributedOptimizer`.

    Args:
        params: parameters or groups, as for every torch optimizer.
        lr: the learning rate: three to ten times smaller than AdamW's.
        betas: the weight of the mean in a step's direction, and the decay of the mean.
        weight_decay: the decay of the weights, in units of `lr`: three to ten times AdamW's.
        maximize: whether steps go up the gradient.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: Tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize})

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:  # type: ignore[override]
        """Makes a step, as every torch optimizer does. Returns the result of `closure`, or `None`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, group)
        return loss

    def _move(self, parameter: torch.Tensor, group: Any) -> None:
        (beta1, beta2), rate = group["betas"], group["lr"]
        gradient = -parameter.grad if group["maximize"] else parameter.grad  # type: ignore[operator]
        mean = self.state[parameter].setdefault("exp_avg", torch.zeros_like(parameter))
        parameter.mul_(1 - rate * group["weight_decay"])
        parameter.add_(torch.sign(beta1 * mean + (1 - beta1) * gradient), alpha=-rate)
        mean.mul_(beta2).add_(gradient, alpha=1 - beta2)
