"""The methods that are compared: the values that a worker sends, and whether the worker or the hub makes the steps."""

import dataclasses
from typing import Any, Optional

import phub


@dataclasses.dataclass(frozen=True)
class Method:
    """A way to train with several workers.

    Attributes:
        compression: the codec; None: all values are sent.
        consistency: the bound of the distance between workers, as for `phub.Session`.
        schedule: the order in which values are sent.
        rate: the multiplier of the task's learning rate.
        local: whether the worker makes its own steps and pushes their changes, of which the hub adds the mean (Slim-DP,
            algorithm 1). Otherwise the worker pushes gradients, and the hub makes the steps.
        adds_sum: whether the hub adds the sum of the workers' changes, not their mean, if the worker makes its own steps. The
            paper calls the multiplier of the sum eta', and does not give its value.
        keep: whether changes that are not sent are kept, and sent later.
        once: whether Slim-DP selects its significant set only once, after the first round.
    """

    compression: Optional[Any] = None
    consistency: str = "bsp"
    schedule: str = "sliced"
    rate: float = 1.0
    local: bool = False
    adds_sum: bool = False
    keep: bool = False
    once: bool = False


METHODS = {
    "plump": Method(),
    # The rate that changes have with "slim-sum".
    "plump-fast": Method(rate=4.0),
    "p3": Method(schedule="p3"),
    "quant": Method(phub.Qsgd(bits=8, bucket=512)),
    "slim": Method(phub.SlimDP(0.3, 0.15), local=True),
    "core": Method(phub.SlimDP(0.3, 0.3), local=True),
    "explorer": Method(phub.SlimDP(0.3, 0.0), local=True),
    "slim-small": Method(phub.SlimDP(0.2, 0.1), local=True),
    "slim-large": Method(phub.SlimDP(0.5, 0.25), local=True),
    "slim-sum": Method(phub.SlimDP(0.3, 0.15), local=True, adds_sum=True),
    "explorer-sum": Method(phub.SlimDP(0.3, 0.0), local=True, adds_sum=True),
    "slim-once": Method(phub.SlimDP(0.3, 0.15), local=True, once=True),
    "core-once": Method(phub.SlimDP(0.3, 0.3), local=True, once=True),
    "kept": Method(phub.SlimDP(0.3, 0.15), local=True, keep=True),
    # DGC's momentum sums about ten gradients of a parameter, so the rate is a tenth.
    "dgc": Method(phub.Dgc(ratio=0.01, momentum=0.9, warmup_rounds=88), rate=0.1),
    # Sending a parameter clears its momentum, and the largest parameters are sent often. So with a fifth of the
    # rate, accuracy at first grows as fast as Plump-DP's.
    "dgc-fifth": Method(phub.Dgc(ratio=0.01, momentum=0.9, warmup_rounds=88), rate=0.2),
    # Each of the four workers' pushes is a step, where other methods make one step, so the rate is a quarter.
    "asgd": Method(consistency="asp", rate=0.25),
}
