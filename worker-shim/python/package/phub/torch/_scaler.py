"""torch's `GradScaler` in a job with `skip_nonfinite`: gradients leave unscaled, and the hub finds values that are not
finite.

```
   scaler.scale(loss).backward()   bytes ahead leave times the last step's 1 / scale
   scaler.step(optimizer)          asks whether the optimizer unscales gradients itself, which it does
                                   searches its gradients: put off, as they are not the mean yet
      optimizer.step()             gradients are pushed times 1 / scale; the hub steps, or skips the round
   scaler.update()                 reads what was found: it waits for the norm of the round
```

The mean of all workers therefore costs no separate exchange. It does if the scaler itself unscales and
searches.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional

import torch

from ._watched import release, watch

__all__ = ["Found", "found_infinite", "unscaling"]


class Found:
    """The answer to a search that the hub makes. The scaler waits for it when it reads it."""

    def __init__(self, tensors: List[torch.Tensor], wait: Callable[[], bool]) -> None:
        """Args:
        tensors: the scaler reads the answer in them. They hold 0 until then.
        wait: waits until the hub knows whether all is finite, and returns whether something is not.
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

    def touched(self) -> None:
        """Prepares for the scaler, which is about to read the result of a search."""
        self.answer()

    def zeroed_by_script(self, gradient: Any) -> None:
        """Writes the answer first, so that it does not replace a zero that the script writes afterwards."""
        self.answer()

    def puts_off(self, found: Any) -> bool:
        """Refuses to postpone a search: an answer is not a gradient."""
        return False


def unscaling(optimizer: torch.optim.Optimizer) -> float:
    """Returns the factor that the scaler wants for gradients in its step: 1 without a scaler, or if it has unscaled them
    already. Rounded as torch rounds it."""
    scale: Optional[torch.Tensor] = vars(optimizer).get("grad_scale")
    return 1.0 if scale is None else scale.double().reciprocal().float().item()


def found_infinite(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the scaler that is in its step has itself searched the gradients, and has found one that is not finite."""
    found: Optional[torch.Tensor] = vars(optimizer).get("found_inf")
    return found is not None and found.item() > 0
