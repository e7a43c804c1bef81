"""One model's exchange with the hub: gradients leave as the backward pass computes them, weights come as the forward
pass needs them, and wherever else a parameter is read."""

from __future__ import annotations

import warnings
import weakref
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import torch
from torch.nn.modules import module as torch_module

from .._phub import OrderError
from .._session import Session
from ._coverage import Coverage
from ._pending import mark_new, mark_pending
from ._settings import Settings, by_key
from ._windows import windows

# Whether torch.compile (torch 2.1) reads this code. It would compile the hook, and a compiled module has waited before.
_is_compiling: Callable[[], bool] = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)


class Exchange:
    """Parameters by key, with hooks in the backward and the forward pass."""

    def __init__(
        self,
        session: Session,
        parameters: Dict[str, torch.nn.Parameter],
        groups: List[Dict[str, Any]],
        settings: Settings,
        passes: int,
        clip_value: Optional[float],
        overlap: bool,
    ) -> None:
        self.session = session
        self.parameters = parameters
        self._groups, self._settings = groups, settings
        self._passes, self._clip_value, self._overlap = passes, clip_value, overlap
        self._windows = windows(session, next(iter(parameters.values())).device)
        # In this round: how often gradients were accumulated, and what was sent, as (gradient, its version).
        self._counts: Dict[str, int] = {}
        self._sent: Dict[str, Tuple[Optional[torch.Tensor], int]] = {}
        self._open: Set[str] = set()  # sent, and not waited for yet
        self._keys = {id(parameter): key for key, parameter in parameters.items()}
        self._coverage = Coverage(self._keys)
        self._uncovered: List[str] = []
        self._learns_layers = session.pull is not None
        self._handles: List[Any] = []

    # ---- the start

    def start(self) -> None:
        """Gives every worker rank 0's parameters, moves them into the windows, and installs the hooks."""
        for key, parameter in self.parameters.items():
            self._windows.write(key, parameter.data)
        if next(iter(self.parameters.values())).is_cuda:
            torch.cuda.synchronize()
        self.session.broadcast()
        this = weakref.ref(self)
        for key, parameter in self.parameters.items():
            self._windows.adopt(key, parameter)
            self._handles.append(_after_accumulation(parameter, _calls(this, key)))

        def before_forward(module: torch.nn.Module, _inputs: Any) -> None:
            exchange = None if _is_compiling() else this()
            if exchange is not None:
                exchange._before_forward(module)

        handle = torch_module.register_module_forward_pre_hook(before_forward)
        self._handles.append(handle)
        weakref.finalize(self, handle.remove)

    # ---- gradients

    def accumulated(self, key: str) -> None:
        """The backward pass has added to a parameter's gradient."""
        if key in self._sent:
            raise OrderError(
                f"parameter {key!r} got another gradient after it went out: more than one backward pass in a step (say "
                f"backward_passes_per_step), a missing optimizer.step(), or a part of the model that is computed anew "
                f"in the backward pass and shared (then overlap cannot be had)"
            )
        count = self._counts[key] = self._counts.get(key, 0) + 1
        if count == self._passes:
            self._send(key)

    def _send(self, key: str) -> None:
        if not self._sent:
            self._begin_round()
        parameter = self.parameters[key]
        gradient = parameter.grad
        if gradient is not None and gradient.is_sparse:
            raise OrderError(f"parameter {key!r} has a sparse gradient; the hub takes dense ones (sparse=False)")
        if gradient is not None and self._clip_value is not None:
            gradient.clamp_(-self._clip_value, self._clip_value)
        if key in self._open:
            self._wait(key)  # nobody has read it since the last step
        self._windows.write(key, gradient)
        self._windows.push(key)
        self._open.add(key)
        mark_pending(parameter, self._read)
        self._sent[key] = (gradient, -1 if gradient is None else gradient._version)

    def _begin_round(self) -> None:
        if self._learns_layers and self._coverage.layers:
            # Each worker learns by itself: workers need not pull the same batches.
            self.synchronize()
            self.session.pull_by(self._coverage.layers)
            self._learns_layers = False
        change = self._settings.changed(self._groups)
        if change is None:
            return
        self.synchronize()
        # One call is enough: no round ends without rank 0, which has not begun this round.
        if self.session.rank == 0:
            keys = None if change.groups is None else by_key(change.groups, self._groups, self.parameters)
            self.session.set_optimizer(change.optimizer, keys)

    def step(self) -> None:
        """The end of a round: sends what was not sent, and waits for parameters that no module waits for."""
        for key in self.parameters:
            if key not in self._sent:
                self._send(key)  # a parameter without a gradient counts as if it were zeros
        for key, (gradient, version) in self._sent.items():
            if gradient is not None and gradient._version != version and self.parameters[key].grad is gradient:
                raise OrderError(
                    f"the gradient of parameter {key!r} was changed after it went out in the backward pass, so the "
                    f"change has no effect: clip with clip_value, not with torch.nn.utils.clip_grad_*"
                )
        if self._settings.differs(self._groups):
            warnings.warn(
                "the learning rate, or another setting, was changed between backward and step: gradients were out already, "
                "so it holds from the next step on",
                stacklevel=4,
            )
        self._sent, self._counts = {}, {}
        if self._coverage.is_learning:
            self._uncovered = self._coverage.learn()
        if self._overlap:
            self._wait_for(self._uncovered)
        else:
            self.synchronize()

    # ---- weights

    def _before_forward(self, module: torch.nn.Module) -> None:
        if self._open or self._coverage.is_learning:
            self._wait_for(self._coverage.called(module))

    def _wait_for(self, keys: Any) -> None:
        for key in keys:
            if key in self._open:
                self._wait(key)

    def _wait(self, key: str) -> None:
        self._windows.wait(key)
        self._arrived(key)

    def _read(self, parameter: torch.nn.Parameter) -> None:
        """A parameter that is on its way is read, and not by a module that waits for its own."""
        self._settle(self._keys[id(parameter)])

    def _settle(self, key: str) -> None:
        self._windows.settle(key)
        self._arrived(key)

    def _arrived(self, key: str) -> None:
        self._open.discard(key)
        mark_new(self.parameters[key])

    def synchronize(self) -> None:
        """Waits for all parameters, outside of a forward pass."""
        for key in list(self._open):
            self._settle(key)

    def groups_are(self, groups: List[Dict[str, Any]]) -> None:
        """The optimizer has new lists of its groups."""
        self._groups = groups

    # ---- the end

    def leave(self) -> None:
        """Waits for all, and leaves the job. Parameters keep their values. The script may write them again, also where
        new values cannot come, which is an error here."""
        try:
            self.synchronize()
        finally:
            for key in list(self._open):
                self._arrived(key)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._windows.close()
        self.session.leave()


def _calls(this: "weakref.ref[Exchange]", key: str) -> Callable[..., None]:
    def hook(*_gradients: Any) -> None:
        exchange = this()
        if exchange is not None:
            exchange.accumulated(key)

    return hook


def _after_accumulation(parameter: torch.nn.Parameter, hook: Callable[..., None]) -> Any:
    """Calls `hook` each time when the backward pass has added to the parameter's gradient."""
    if hasattr(parameter, "register_post_accumulate_grad_hook"):  # torch 2.1
        return parameter.register_post_accumulate_grad_hook(hook)
    with torch.enable_grad():
        view: Any = parameter.expand_as(parameter)
    node: Any = view.grad_fn.next_functions[0][0]
    handle = node.register_hook(hook)
    handle.node = node  # a hook lives as long as its node
    return handle
