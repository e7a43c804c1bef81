"""New secrets for hubs that workers start: a secret that all workers of a run share, or a secret for a lone process."""

from __future__ import annotations

import functools
import importlib
import secrets
from datetime import timedelta
from typing import Optional, Tuple

from . import _phub

# The timeout of torch's store.
_STORE_LIMIT = timedelta(seconds=60)
_KEY = "phub/secret"


@functools.lru_cache(maxsize=None)
def of_run(store: Optional[Tuple[str, int]]) -> Optional[str]:
    """Returns a new secret, the same at all workers of this run, through torch's store at this host and port. None without a
    store. The secret crosses the network in clear text, as does everything in torch's store."""
    if store is None:
        return None
    try:
        distributed = importlib.import_module("torch.distributed")
    except ImportError:
        return None  # torchrun has started a Python that has no torch
    run = distributed.TCPStore(*store, is_master=False, timeout=_STORE_LIMIT, wait_for_workers=False)
    # `compare_set` with "" writes only if there is no value. So the first worker's secret is kept, and all workers get it.
    return bytes(run.compare_set(_KEY, "", secrets.token_hex(32))).decode()


@functools.lru_cache(maxsize=None)
def of_lone_process() -> Optional[str]:
    """Returns a new secret if this user has no secret and cannot store a secret, and None in all other cases. Only for a
    process with its own hub, because no other process gets this secret."""
    return None if _phub.token("read", "*", None) is not None else secrets.token_hex(32)
