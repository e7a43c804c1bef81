"""The backend "phub" of vLLM's weight transfer: `vllm serve MODEL --weight-transfer-config '{"backend": "phub"}'`.

vLLM makes an engine in each of its workers. `init_info` has the fields of `Source`. `update_info` has the fields of `Request`.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch
from vllm.distributed.parallel_state import get_world_group
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.model_loader.reload.layerwise import (
    _get_original_loader,
    finalize_layerwise_reload,
    get_layerwise_info,
    initialize_layerwise_reload,
)
from vllm.model_executor.model_loader.reload.meta import SKIP_TENSORS, to_meta_tensor
from vllm.model_executor.model_loader.reload.sanitize import restore_layer_refs

from .. import _phub
from . import _twin
from ._receiver import Form, Receiver, Request, Source

_torch: Any = torch  # untyped, because mypy may see another version of torch than the engine uses
# vLLM writes what loggers below "vllm" say.
_log = logging.getLogger("vllm.phub")


@dataclasses.dataclass
class InitInfo(Source, WeightTransferInitInfo):  # type: ignore[misc]
    """The source of the weights, as vLLM parses it."""


@dataclasses.dataclass
class UpdateInfo(Request, WeightTransferUpdateInfo):  # type: ignore[misc]
    """The request of an update, as vLLM parses it."""


class PhubWeightTransferEngine(WeightTransferEngine):  # type: ignore[misc]
    """A weight-transfer engine that gets versions of weights from hubs, or from a directory."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    # A job has the weights of one model, so a draft model gets no weights from it.
    supports_draft_weight_update = False

    _receiver: Optional[Receiver] = None

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Checks the settings. A second call replaces the settings of the first call."""
        ranks = get_world_group()
        group = ranks.cpu_group if ranks.world_size > 1 else None
        receiver = Receiver(init_info, check=self._check, load=self._load, group=group)
        self.shutdown()
        self._receiver = receiver

    def start_weight_update(self) -> None:
        """Does nothing: the model is touched only after a version was read and checked."""

    def finish_weight_update(self) -> None:
        """Does nothing: the update is complete."""

    def update_weights(self, update_info: Dict[str, Any]) -> None:
        """Prepares, applies or aborts an update."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            _torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Prepares, applies or aborts an update."""
        if self._receiver is None:
            raise _phub.OrderError("the backend has no source of weights: call init_weight_transfer_engine first")
        words = self._receiver.update(update_info)
        if words is not None:
            _log.info("The model has %s", words)

    def shutdown(self) -> None:
        """Ends the reading, and drops what was read."""
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None

    def _check(self, forms: List[Form]) -> None:
        _twin.check(_twin.twin_of(self.model, _as_in_checkpoint), forms, is_deferred_attention_layer)

    def _load(self, tensors: Iterator[Tuple[str, torch.Tensor]]) -> None:
        with torch.no_grad():
            initialize_layerwise_reload(self.model)
            try:
                self.model.load_weights(tensors)
            finally:
                finalize_layerwise_reload(self.model, self.model_config)
            _process_shared(self.model)


def _process_shared(model: torch.nn.Module) -> None:
    """Lets layers that share a parameter, such as a tied head, prepare the parameter for their kernels. vLLM's reload leaves out
    a layer whose parameter is loaded under another layer's name. On the CPU a tied head would then keep old, packed weights."""
    owners = collections.Counter(id(parameter) for layer in model.modules() for parameter in layer._parameters.values())
    for layer in model.modules():
        own = [parameter for parameter in layer._parameters.values() if parameter is not None]
        method = getattr(layer, "quant_method", None)
        if own and all(owners[id(parameter)] > 1 for parameter in own) and isinstance(method, QuantizeMethodBase):
            method.process_weights_after_loading(layer)


def _as_in_checkpoint(module: torch.nn.Module) -> _twin.Tensors:
    """Returns a module's tensors as they were before vLLM packed them for its kernels."""
    now, before = _twin.on_meta(module), get_layerwise_info(module).restore_metadata

    def of(now: Dict[str, Any], before: Dict[str, Any]) -> Dict[str, Any]:
        kept = {name: tensor for name, tensor in now.items() if name in SKIP_TENSORS or tensor is None}
        return {**kept, **{name: _restored(tensor, module) for name, tensor in before.items()}}

    return of(now[0], before[0]), of(now[1], before[1])


def _restored(tensor: torch.Tensor, module: torch.nn.Module) -> torch.Tensor:
    restored = restore_layer_refs(to_meta_tensor(tensor), module)
    if hasattr(restored, "weight_loader"):
        # vLLM's reload leaves its own loaders in the tensor. These loaders load nothing until the next reload.
        restored.weight_loader = _get_original_loader(restored)
    return restored
