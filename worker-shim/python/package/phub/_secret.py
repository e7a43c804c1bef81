"""The credential of this process for hubs, and the secret that the workers of one run on several machines share."""

from __future__ import annotations

import functools
import importlib
import secrets
from datetime import timedelta
from typing import Optional, Tuple

from . import _phub

# How long torch's store may take to answer.
_STORE_LIMIT = timedelta(seconds=60)
_KEY = "phub/secret"


@functools.lru_cache(maxsize=None)
def of_run(store: Optional[Tuple[str, int]]) -> Optional[str]:
    """Returns a new secret, which all workers of this run get from torch's store at this host and port; None without a store.
    The secret crosses the network in clear, as everything does that torch keeps in the store."""
    if store is None:
        return None
    try:
        distributed = importlib.import_module("torch.distributed")
    except ImportError:
        return None  # this is not torchrun's own Python
    run = distributed.TCPStore(*store, is_master=False, timeout=_STORE_LIMIT, wait_for_workers=False)
    # The first worker sets the value. All workers get this value.
    return bytes(run.compare_set(_KEY, "", secrets.token_hex(32))).decode()


@functools.lru_cache(maxsize=None)
def of_lone_process() -> Optional[str]:
    """Returns a secret for a process and the hub in it, if this user cannot store a secret: no other process needs it."""
    return None if _phub.token("read", "*", None) is not None else secrets.token_hex(32)
