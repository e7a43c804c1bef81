"""A parameter hub for PyTorch.

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = phub.torch.DistributedOptimizer(optimizer, model)

From then on, the hub makes the steps of `step()`, with the mean of all workers' gradients. Over a network, gradients are sent
while the backward pass computes other gradients. In the next forward pass, each module waits for its own parameters only. Works
with PyTorch 1.13 and later.
"""

from ._checkpoint import load_checkpoint
from ._ddp import HubState, ddp_hook
from ._errors import GradientError, MeanError, StateError, WrapError
from ._fsdp import Replicas
from ._observe import Late, Observer, observe
from ._optimizer import DistributedOptimizer, UnsupportedOptimizerError
from ._own import Lamb, Lars, Lion
from ._tensors import allreduce_metrics, broadcast_parameters

__all__ = [
    "DistributedOptimizer",
    "GradientError",
    "HubState",
    "Lamb",
    "Lars",
    "Late",
    "Lion",
    "MeanError",
    "Observer",
    "Replicas",
    "StateError",
    "UnsupportedOptimizerError",
    "WrapError",
    "allreduce_metrics",
    "broadcast_parameters",
    "ddp_hook",
    "load_checkpoint",
    "observe",
]
