"""A twin of an engine's model: a copy without memory, into which the engine loads a version for a check.

An engine joins tensors of a checkpoint (query, key and value are one matrix), and shards them over its ranks. Only the engine's
loaders know which names, shapes and types they take. So the check calls the loaders, with tensors on torch's device "meta": the
model is not touched. This module must not know any engine.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .. import _phub
from .._follow import _few
from ._receiver import Form, torch_dtype

_torch: Any = torch  # untyped, because mypy may see another version of torch than the engine uses

# The parameters and buffers of a module, by name.
Tensors = Tuple[Dict[str, Any], Dict[str, Any]]


def on_meta(module: torch.nn.Module) -> Tensors:
    """Returns a module's own parameters and buffers, on torch's device "meta"."""

    def of(tensors: Any) -> Dict[str, Any]:
        return {name: tensor if tensor is None else _on_meta(tensor) for name, tensor in tensors.items()}

    return of(module._parameters), of(module._buffers)


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    twin = tensor.data.to("meta")
    twin.__class__ = tensor.__class__
    twin.__dict__ = dict(tensor.__dict__)
    return twin


def twin_of(module: torch.nn.Module, tensors_of: Callable[[torch.nn.Module], Tensors] = on_meta) -> torch.nn.Module:
    """Returns a module with the same submodules and attributes, whose tensors have no memory."""
    done: Dict[int, torch.nn.Module] = {}
    shared: Dict[int, Any] = {}

    def copy(module: torch.nn.Module) -> torch.nn.Module:
        if id(module) not in done:
            twin = done[id(module)] = module.__class__.__new__(module.__class__)
            twin.__dict__.update(module.__dict__)
            parameters, buffers = tensors_of(module)
            for name, parameter in parameters.items():
                # Two layers may share a parameter, and a checkpoint has it once.
                parameters[name] = shared.setdefault(id(module._parameters.get(name, parameter)), parameter)
            below = {name: child if child is None else copy(child) for name, child in module._modules.items()}
            twin.__dict__.update(_parameters=parameters, _buffers=buffers, _modules=below)
        return done[id(module)]

    return copy(module)


def check(twin: Any, forms: List[Form], may_miss: Optional[Callable[[torch.nn.Module], bool]] = None) -> None:
    """Checks that a model would take tensors of these forms, and that the tensors fill all its parameters.

    Args:
        twin: a twin of the model, which has the engine's `load_weights`. The twin must not be used again.
        forms: the tensors.
        may_miss: returns whether the parameters of a module may be missing.

    Raises:
        SettingsError: an unknown name, another shape, a type to which the weights cannot be converted, or a parameter that no
            tensor fills.
    """
    parameters: Dict[str, Any] = {}
    for prefix, module in twin.named_modules():
        if may_miss is None or not may_miss(module):
            own = {name: parameter for name, parameter in module._parameters.items() if parameter is not None}
            parameters.update({f"{prefix}.{name}".lstrip("."): parameter for name, parameter in own.items()})
    last: List[Form] = []

    def tensors() -> Iterator[Tuple[str, torch.Tensor]]:
        for form in forms:
            last[:] = [form]
            name, shape, dtype = form
            # One number stands for all elements, because the twin stores no element.
            yield name, torch.zeros((), dtype=torch_dtype(dtype)).expand(shape)

    try:
        with torch.no_grad(), _Writes() as writes:
            twin.load_weights(tensors())
    except Exception as error:
        if not last:
            raise _phub.SettingsError(f"the engine's load_weights failed before it took a tensor: {_short(error)}") from error
        name, shape, dtype = last[0]
        expected = f"; expected the shape {tuple(parameters[name].shape)}" if name in parameters else ""
        raise _phub.SettingsError(
            f"tensor {name!r}, {dtype} of the shape {tuple(shape)}{expected}; the engine says {_short(error)}; "
            "give `names`, which maps the job's keys to the names in the engine's checkpoint, or start the engine with the job's model"
        ) from error
    missing = [
        f"{name} ({writes.count(parameter)} of {parameter.numel()} elements)"
        for name, parameter in parameters.items()
        if writes.count(parameter) < getattr(parameter, "weight_loader_numel", parameter.numel())
    ]
    if missing:
        raise _phub.SettingsError(
            f"no tensor fills {_few(missing)} of the engine's model; give `names`, which maps the job's keys to the names in the "
            "engine's checkpoint, or start the engine with the job's model"
        )


class _Writes(TorchDispatchMode):  # type: ignore[misc]
    """A record of the parts that were written in each storage."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: Dict[int, Set[Tuple[int, Tuple[int, ...]]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.is_mutable and args and isinstance(args[0], torch.Tensor) and args[0].is_meta:
            to = args[0]
            if func is _torch.ops.aten.copy_.default:
                _check_copy(to, args[1])
            self._parts.setdefault(_storage(to), set()).add((to.storage_offset(), tuple(to.shape)))
        return func(*args, **(kwargs or {}))

    def count(self, tensor: torch.Tensor) -> int:
        """Returns the number of elements that were written to a tensor."""
        return sum(_product(shape) for _, shape in self._parts.get(_storage(tensor), ()))


def _check_copy(to: torch.Tensor, values: torch.Tensor) -> None:
    if to.numel() != values.numel():
        raise ValueError(f"a tensor of the shape {tuple(values.shape)} does not fit the parameter's shape {tuple(to.shape)}")
    if to.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"the engine's parameter has the type {to.dtype}; a hub gives only float32, bfloat16 and float16")


def _storage(tensor: torch.Tensor) -> int:
    # Before torch 2.0 there is only the typed storage.
    storage: Any = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
    return int(storage._cdata)


def _short(error: Exception) -> str:
    # The text is cut, because an engine's error may list all names of its model.
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= 300 else f"{text[:300]} ..."


def _product(shape: Tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product
