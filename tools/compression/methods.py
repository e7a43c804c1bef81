"""The methods that are compared: what is sent, and who steps."""

import dataclasses
from typing import Any, Optional

import phub


@dataclasses.dataclass(frozen=True)
class Method:
    """A way to train with several workers.

    Attributes:
        title: for people.
        compression: what is sent; None: everything.
        consistency: how far workers may be apart.
        schedule: in what order.
        rate: multiplies the task's learning rate.
        local: the worker steps by itself and pushes what its step changed, and the hub adds the mean of that
            (Slim-DP, algorithm 1); else it pushes gradients and the hub steps.
        keep: of what the worker changed by itself, what was not sent is sent later.
        once: Slim-DP's core is selected after the first round and never again.
    """

    title: str
    compression: Optional[Any] = None
    consistency: str = "bsp"
    schedule: str = "sliced"
    rate: float = 1.0
    local: bool = False
    keep: bool = False
    once: bool = False


METHODS = {
    "plump": Method("Plump-DP"),
    "p3": Method("P3", schedule="p3"),
    "quant": Method("Quant-DP (QSGD, 8 bit, 512)", phub.Qsgd(bits=8, bucket=512)),
    "slim": Method("Slim-DP (0.3, 0.15)", phub.SlimDP(0.3, 0.15), local=True),
    "core": Method("Slim-DP, core alone (0.3, 0.3)", phub.SlimDP(0.3, 0.3), local=True),
    "slim-once": Method("Slim-DP, one core (0.3, 0.15)", phub.SlimDP(0.3, 0.15), local=True, once=True),
    "core-once": Method("Slim-DP, one core alone (0.3, 0.3)", phub.SlimDP(0.3, 0.3), local=True, once=True),
    "kept": Method("Slim-DP that keeps (0.3, 0.15)", phub.SlimDP(0.3, 0.15), local=True, keep=True),
    # Momentum, which is the method's, sums ten gradients of one place: a tenth of the rate.
    "dgc": Method("DGC (1%)", phub.Dgc(ratio=0.01, momentum=0.9, warmup_rounds=88), rate=0.1),
    # What is sent loses its momentum, and the largest is sent often: a fifth learns as fast as Plump-DP at first.
    "dgc-fifth": Method("DGC (1%), a fifth", phub.Dgc(ratio=0.01, momentum=0.9, warmup_rounds=88), rate=0.2),
    # Four steps where the others have one.
    "asgd": Method("ASGD", consistency="asp", rate=0.25),
}
