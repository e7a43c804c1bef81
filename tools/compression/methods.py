"""The methods that are compared: the values that each sends, and the end that steps."""

import dataclasses
from typing import Any, Optional

import phub


@dataclasses.dataclass(frozen=True)
class Method:
    """A way to train with several workers.

    Attributes:
        compression: of the values that are sent; None: all values are sent.
        consistency: how far workers may be apart.
        schedule: the order of sending.
        rate: multiplies the task's learning rate.
        local: the worker steps by itself and pushes the change of its step, and the hub adds the mean of the changes
            (Slim-DP, algorithm 1). Otherwise the worker pushes gradients and the hub steps.
        keep: changes that are not sent are sent later.
        once: Slim-DP selects its significant set after the first round and never again.
    """

    compression: Optional[Any] = None
    consistency: str = "bsp"
    schedule: str = "sliced"
    rate: float = 1.0
    local: bool = False
    keep: bool = False
    once: bool = False


METHODS = {
    "plump": Method(),
    "p3": Method(schedule="p3"),
    "quant": Method(phub.Qsgd(bits=8, bucket=512)),
    "slim": Method(phub.SlimDP(0.3, 0.15), local=True),
    "core": Method(phub.SlimDP(0.3, 0.3), local=True),
    "slim-once": Method(phub.SlimDP(0.3, 0.15), local=True, once=True),
    "core-once": Method(phub.SlimDP(0.3, 0.3), local=True, once=True),
    "kept": Method(phub.SlimDP(0.3, 0.15), local=True, keep=True),
    # The method's momentum sums ten gradients of one parameter: a tenth of the rate.
    "dgc": Method(phub.Dgc(ratio=0.01, momentum=0.9, warmup_rounds=88), rate=0.1),
    # A sent parameter loses its momentum, and the largest are sent often: a fifth learns as fast as Plump-DP at first.
    "dgc-fifth": Method(phub.Dgc(ratio=0.01, momentum=0.9, warmup_rounds=88), rate=0.2),
    # Four steps for one step of the others.
    "asgd": Method(consistency="asp", rate=0.25),
}
