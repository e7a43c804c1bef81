"""A parameter hub for PyTorch.

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = phub.torch.DistributedOptimizer(optimizer, model)

From then on `step()` makes the hub step with the mean of all workers' gradients. Over a network their bytes leave as the
backward pass makes them. Each module waits for its own parameters when the next forward pass reaches it. Works with PyTorch
1.13 and later.
"""

from ._checkpoint import load_checkpoint
from ._ddp import HubState, ddp_hook
from ._errors import GradientError, MeanError, StateError, WrapError
from ._fsdp import Replicas
from ._lion import Lion
from ._observe import Late, Observer, observe
from ._optimizer import DistributedOptimizer, UnsupportedOptimizerError
from ._tensors import allreduce_metrics, broadcast_parameters

__all__ = [
    "DistributedOptimizer",
    "GradientError",
    "HubState",
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
