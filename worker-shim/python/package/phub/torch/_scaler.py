"""Torch's `GradScaler` in a job with `skip_nonfinite`: gradients are sent unscaled, and the hub finds values that are not finite.

```
   scaler.scale(loss).backward()   bytes that are sent ahead are multiplied by the last step's 1 / scale
   scaler.step(optimizer)          the scaler asks whether the optimizer unscales gradients itself: yes
                                   the scaler searches the gradients: postponed, because they are not the mean yet
      optimizer.step()             gradients are pushed times 1 / scale; the hub steps, or skips the round
   scaler.update()                 the scaler reads the result of the search: it waits for the norm of the round
```

So the search needs no separate exchange of gradients. A scaler that itself unscales and searches would need such an exchange, to
get the mean of all workers first.
"""

from __future__ import annotations

import importlib
from typing import Any, Callable, Dict, List, Optional

import torch

from ._watched import release, watch

__all__ = ["Found", "found_infinite", "reads_before_steps", "unscale", "unscaling"]

_of_optimizers = importlib.import_module("torch.optim.optimizer")  # not an attribute of torch.optim in every version
_HOOKS_BEFORE_ALL_STEPS: Dict[Any, Any] = getattr(_of_optimizers, "_global_optimizer_pre_hooks", {})  # torch 2.0


class Found:
    """The result of a search that the hub makes. When the scaler reads the result, it waits for the hub."""

    def __init__(self, tensors: List[torch.Tensor], wait: Callable[[], bool]) -> None:
        """Args:
        tensors: the tensors from which the scaler reads the result. They hold 0 until then.
        wait: waits for the hub's answer, and returns whether a gradient is not finite.
        """
        self._tensors, self._wait = tensors, wait
        for tensor in tensors:
            watch(tensor, self)

    def answer(self) -> None:
        """Waits for the hub's answer, and writes it into the tensors that the scaler reads."""
        tensors, self._tensors = self._tensors, []
        if tensors:
            found = self._wait()
            for tensor in tensors:
                release(tensor)
                tensor.fill_(float(found))

    def touched(self, _result: torch.Tensor) -> None:
        """Waits for the answer, because the scaler is about to read the result."""
        self.answer()

    def zeroed_by_script(self, gradient: Any) -> None:
        """Waits for the answer, because the script is about to write zeros, which the answer must not replace later."""
        self.answer()

    def puts_off(self, found: Any, factor: Any) -> bool:
        """Returns False: the hub searches only gradients, and these tensors are the result of a search."""
        return False


def unscaling(optimizer: torch.optim.Optimizer) -> float:
    """Returns the factor by which this step multiplies gradients: the scaler's 1 / scale, rounded as by torch. It is 1 without a
    scaler, and after a scaler has unscaled the gradients itself."""
    scale: Optional[torch.Tensor] = vars(optimizer).get("grad_scale")
    return 1.0 if scale is None else scale.double().reciprocal().float().item()


def found_infinite(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the scaler itself has searched the gradients and found a value that is not finite. For calls within its step."""
    found: Optional[torch.Tensor] = vars(optimizer).get("found_inf")
    return found is not None and found.item() > 0


def unscale(optimizer: torch.optim.Optimizer) -> None:
    """Unscales the gradients of an optimizer that makes its own step within the scaler's step."""
    times = unscaling(optimizer)
    if times != 1.0:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(times)
    for name in vars(optimizer).keys() & {"grad_scale", "found_inf"}:  # torch's own step would unscale once more
        setattr(optimizer, name, None)


def reads_before_steps(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the script has hooks that run before steps. They expect unscaled gradients."""
    return bool(vars(optimizer).get("_optimizer_step_pre_hooks") or _HOOKS_BEFORE_ALL_STEPS)
