"""A parameter hub's workers in Python.

    import numpy, phub

    with phub.serve() as hub:                       # or the address of a hub that runs
        keys = {"weight": (10, 64), "bias": (10,)}
        optimizer = phub.Nesterov(learning_rate=0.1, momentum=0.9)
        with phub.Session(hub=hub.address, rank=0, world_size=1, keys=keys, optimizer=optimizer) as session:
            session.broadcast({"weight": numpy.zeros((10, 64)), "bias": numpy.zeros(10)})
            session.gradient("weight")[:] = 0.5     # written where the hub reads it
            session.gradient("bias")[:] = 0.5
            session.push("weight", "bias")
            session.wait("weight", "bias")
            print(session.weights("weight").mean())

`phub.torch` has an optimizer for PyTorch. Every exception is a `phub.Error`.
"""

from ._compression import Bf16, Compression, Dgc, F16, OneBit, Qsgd, RandomK, SlimDP, TernGrad, TopK
from ._follow import Subscription, Version, subscribe
from ._hub import Hub, serve
from ._keys import Key, Places, places
from ._launch import Machine, Worker, worker
from ._optimizers import Adam, AdamW, AmsGrad, AmsGradW, Average, Dampened, Lamb, Lars, Lion, Momentum, Nesterov, Optimizer, Sgd, Sum
from ._phub import (
    ConnectError,
    Error,
    ForkError,
    HubLostError,
    HubStartError,
    JobFailedError,
    LeftError,
    MissingWorkersError,
    OrderError,
    OutOfMemoryError,
    PeerLeftError,
    ProtocolError,
    RefusedError,
    ResourceError,
    SettingsError,
    StalledError,
    UnreachableError,
    __version__,
)
from ._pull import PullPlan
from ._session import Checkpoint, Norm, Returns, Session, Times, Traffic, Way
from ._state import State

__all__ = [
    "Adam",
    "AdamW",
    "AmsGrad",
    "AmsGradW",
    "Average",
    "Bf16",
    "Checkpoint",
    "Compression",
    "ConnectError",
    "Dampened",
    "Dgc",
    "Error",
    "F16",
    "ForkError",
    "Hub",
    "HubLostError",
    "HubStartError",
    "JobFailedError",
    "Key",
    "Lamb",
    "Lars",
    "LeftError",
    "Lion",
    "Machine",
    "MissingWorkersError",
    "Momentum",
    "Nesterov",
    "OneBit",
    "Optimizer",
    "OrderError",
    "OutOfMemoryError",
    "PeerLeftError",
    "Places",
    "ProtocolError",
    "PullPlan",
    "Qsgd",
    "RandomK",
    "RefusedError",
    "ResourceError",
    "Norm",
    "Returns",
    "Session",
    "SettingsError",
    "Sgd",
    "SlimDP",
    "StalledError",
    "State",
    "Subscription",
    "Sum",
    "TernGrad",
    "TopK",
    "Times",
    "Traffic",
    "UnreachableError",
    "Version",
    "Way",
    "Worker",
    "__version__",
    "places",
    "serve",
    "subscribe",
    "worker",
]
