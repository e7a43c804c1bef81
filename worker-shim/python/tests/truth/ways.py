"""The ways to run an idiom: with plain torch, which is the reference, and with the hub in several modes."""

REFERENCE = "torch"
"""Plain torch with one worker, DDP over gloo with several workers."""

HUB_WAYS = {
    "tcp": {"transport": "tcp", "chunk_bytes": 64},
    "memory": {},
    "waiting": {"overlap": False},
    "unread": {"transport": "tcp", "chunk_bytes": 64},
}
"""Settings of `DistributedOptimizer`. Over TCP gradients of several chunks are sent ahead of `step()`; over shared memory no
gradient is."""

UNREAD = "unread"
"""The way in which the script does not read parameters between steps. After a read, a module would not have to wait."""

DDP_WAYS = ("hook", "c10d")
"""DDP, whose buckets the hub averages by `ddp_hook` or by the backend "phub"."""
