"""Optimizers that PyTorch does not have: Lion, LAMB and LARS. They also step without a hub."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Tuple

import torch

__all__ = ["Lamb", "Lars", "Lion"]


class Own(torch.optim.Optimizer):
    """An optimizer that steps each parameter by itself. The worker makes the steps, unless the optimizer is given to
    `DistributedOptimizer`."""

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
                    gradient = -parameter.grad if group["maximize"] else parameter.grad
                    self._move(parameter, gradient, group, self.state[parameter])
        return loss

    def _move(self, parameter: torch.Tensor, gradient: torch.Tensor, group: Dict[str, Any], state: Dict[str, Any]) -> None:
        raise NotImplementedError


class Lion(Own):
    """Lion (Chen et al. 2023): a step moves each weight by `lr`, against the sign of a mean of gradients.

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

    def _move(self, parameter: torch.Tensor, gradient: torch.Tensor, group: Dict[str, Any], state: Dict[str, Any]) -> None:
        (beta1, beta2), rate = group["betas"], group["lr"]
        mean = state.setdefault("exp_avg", torch.zeros_like(parameter))
        parameter.mul_(1 - rate * group["weight_decay"])
        parameter.add_(torch.sign(beta1 * mean + (1 - beta1) * gradient), alpha=-rate)
        mean.mul_(beta2).add_(gradient, alpha=1 - beta2)


class Lamb(Own):
    """LAMB (You et al. 2020): Adam's step of a parameter is scaled to `lr` times the norm of the parameter. A group without
    weight decay takes Adam's step unscaled. In the usual recipe, biases and the scales of normalization layers are such a
    group. `phub.Lamb` has the formula.

    Args:
        params: parameters or groups, as for every torch optimizer.
        lr: the learning rate.
        betas: the decays of the means of gradients and of their squares.
        eps: a number that is added to the root of the mean of squares.
        weight_decay: the decay of the weights, as a part of the step before it is scaled.
        maximize: whether steps go up the gradient.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize})

    def _move(self, parameter: torch.Tensor, gradient: torch.Tensor, group: Dict[str, Any], state: Dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        if not state:
            state.update(step=torch.tensor(0.0), exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter))
        state["step"] += 1
        steps = state["step"].item()
        state["exp_avg"].mul_(beta1).add_(gradient, alpha=1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (state["exp_avg_sq"] / (1 - beta2**steps)).sqrt_().add_(group["eps"])
        step = (state["exp_avg"] / (1 - beta1**steps)).div_(root).add_(parameter, alpha=group["weight_decay"])
        ratio = _quotient(parameter.norm().item(), step.norm().item()) if group["weight_decay"] else 1.0
        parameter.add_(step, alpha=-group["lr"] * ratio)


class Lars(Own):
    """LARS (You et al. 2017): the gradient of a parameter is scaled to `trust` times the norm of the parameter, before
    momentum. A group without weight decay takes steps of SGD with momentum. In the usual recipe, biases and the scales of
    normalization layers are such a group. `phub.Lars` has the formula.

    Args:
        params: parameters or groups, as for every torch optimizer.
        lr: the learning rate.
        momentum: the decay of the sum of steps.
        weight_decay: the decay of the weights, which is added to the gradient.
        trust: the norm of a step, in units of `lr` times the norm of the parameter.
        maximize: whether steps go up the gradient.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        trust: float = 0.001,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust, "maximize": maximize}
        )

    def _move(self, parameter: torch.Tensor, gradient: torch.Tensor, group: Dict[str, Any], state: Dict[str, Any]) -> None:
        decay, ratio = group["weight_decay"], 1.0
        momentum = state.setdefault("momentum_buffer", torch.zeros_like(parameter))
        if decay:
            length, of_gradient = parameter.norm().item(), gradient.norm().item()
            if length and of_gradient:
                ratio = group["trust"] * length / (of_gradient + decay * length)
        momentum.mul_(group["momentum"]).add_(gradient.add(parameter, alpha=decay), alpha=group["lr"] * ratio)
        parameter.sub_(momentum)


def _quotient(numerator: float, denominator: float) -> float:
    """Returns the quotient of two norms, or 1 if one of them is 0."""
    return numerator / denominator if numerator and denominator else 1.0
