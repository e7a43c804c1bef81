"""Weights of a job for inference engines that serve while the job trains: vLLM and SGLang.

vLLM finds the backend "phub" by itself when both are installed, because the wheel names `register` as a plugin of vLLM. SGLang
needs an option: `--weight-update-receivers phub.engines.sglang.receiver`. Both engines take the same settings and requests,
`Source` and `Request`.
"""

from __future__ import annotations

import importlib.util
import warnings

from ._receiver import Receiver, Request, Source

__all__ = ["Receiver", "Request", "Source", "register"]


def register() -> None:
    """Registers the weight-transfer backend "phub" with vLLM. vLLM calls this function in each of its processes.

    Does nothing without vLLM, or if the backend is registered. Warns if this version of vLLM has no such backends.
    """
    if importlib.util.find_spec("vllm") is None:
        return
    try:
        from vllm.distributed.weight_transfer import WeightTransferEngineFactory as Factory

        known, add = Factory._registry, Factory.register_engine
    except (ImportError, AttributeError) as error:
        warnings.warn(
            f'phub: the weight-transfer backend "phub" is not registered, because this vLLM has no '
            f"WeightTransferEngineFactory as in 0.32 ({error}); install vllm 0.32 or later",
            RuntimeWarning,
            stacklevel=2,
        )
        return
    if "phub" not in known:
        add("phub", "phub.engines.vllm", "PhubWeightTransferEngine")
