"""A receiver of weights for SGLang: `--weight-update-receivers phub.engines.sglang.receiver`.

SGLang calls the factory in each of its tensor-parallel workers. `init_payload` has the fields of `Source`, and the payload of an
update has the fields of `Request`.
"""

from __future__ import annotations

import logging
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple, Type, TypeVar

from .. import _phub
from ._receiver import Form, Receiver, Request, Source

_log = logging.getLogger(__name__)
T = TypeVar("T")


class SglangReceiver:
    """An object with the two methods that SGLang calls."""

    def __init__(self, context: Any) -> None:
        self._model = context.model
        group = None
        if context.tp_size > 1:
            from sglang.srt.distributed import get_tp_group

            group = get_tp_group().cpu_group
        source = _parse(Source, context.init_payload)
        self._receiver = Receiver(source, check=self._check, load=self._load, group=group)

    def receive(self, payload: Optional[Mapping[str, Any]] = None) -> None:
        """Prepares, applies or aborts an update."""
        words = self._receiver.update(_parse(Request, payload))
        if words is not None:
            _log.info("The model has %s", words)

    def destroy(self) -> None:
        """Ends the reading, and drops what was read."""
        self._receiver.close()

    def _check(self, forms: List[Form]) -> None:
        from . import _twin

        _twin.check(_twin.twin_of(self._model), forms)

    def _load(self, tensors: Iterator[Tuple[str, Any]]) -> None:
        import torch

        with torch.no_grad():
            self._model.load_weights(tensors)


def receiver(context: Any) -> SglangReceiver:
    """Returns a receiver for a `WeightUpdateReceiverContext` of SGLang."""
    return SglangReceiver(context)


def _parse(kind: Type[T], fields: Optional[Mapping[str, Any]]) -> T:
    given: Dict[str, Any] = dict(fields or {})
    try:
        return kind(**given)
    except TypeError as error:
        raise _phub.SettingsError(f"the fields {sorted(given)} do not fit phub.engines.{kind.__name__}: {error}") from error
