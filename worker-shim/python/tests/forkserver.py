"""The server that forks the processes of tests."""

import multiprocessing

FORKS = multiprocessing.get_context("forkserver")
# The server imports these modules once. Without that, each process would import torch, and torch 2 imports Dynamo in the first
# step of an optimizer, which takes seconds. A module that this Python lacks is left out.
FORKS.set_forkserver_preload(
    ["torch", "torch.distributed", "torch.distributed.nn.functional", "torch._dynamo", "phub.torch"]
)
