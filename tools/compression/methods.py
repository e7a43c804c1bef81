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
    """

    title: str
    compression: Optional[Any] = None
    consistency: str = "bsp"
    schedule: str = "sliced"
    rate: float = 1.0
    local: bool = False


def slim(alpha, beta):
    """Slim-DP with a selection every hundred rounds."""
    return phub.SlimDP(alpha=alpha, beta=beta, q=100)


METHODS = {
    "plump": Method("Plump-DP"),
    "p3": Method("P3", schedule="p3"),
    "quant": Method("Quant-DP (QSGD, 8 bit, 512)", phub.Qsgd(bits=8, bucket=512)),
    "slim": Method("Slim-DP (0.3, 0.15)", slim(0.3, 0.15), local=True),
    "core": Method("Slim-DP, core alone (0.3, 0.3)", slim(0.3, 0.3), local=True),
    # Momentum, which is the method's, sums ten gradients of one place: a tenth of the rate.
    "dgc": Method("DGC (1%)", phub.Dgc(ratio=0.01, momentum=0.9, warmup_rounds=88), rate=0.1),
    # Four steps where the others have one.
    "asgd": Method("ASGD", consistency="asp", rate=0.25),
}
