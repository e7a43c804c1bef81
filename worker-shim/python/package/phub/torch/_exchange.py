"""One model's exchange with the hub, round by round. Gradients are pushed at `step()`; their bytes may be sent earlier. The new
weights are copied into a parameter when the forward pass needs them, or when the script reads the parameter.

A `step()` is one round. If the script has written to parameters since the last step, another round comes first. In that
round the hub takes the written values.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from typing import Any, Callable, ContextManager, Dict, Iterable, Iterator, List, Mapping, Optional, Set

import torch
from torch.nn.modules import module as torch_module

from .._keys import Array
from .._phub import Error, LeftError
from .._session import Session
from ._asleep import Asleep
from ._coverage import Coverage
from ._errors import GradientError, StateError, WrapError
from ._gradients import Gradients
from ._model import Model
from ._pushes import Mean, Pushes
from ._scaler import Found
from ._settings import Settings, UnsupportedOptimizerError, by_key
from ._tensors import Broadcast
from ._weights import Weights
from ._windows import windows

# Whether torch.compile (torch 2.1) traces this code. The hook then does nothing, because the caller of a compiled module has
# already waited.
_is_compiling: Callable[[], bool] = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)


class Exchange:
    """A model's parameters by key, with hooks in the backward and the forward pass."""

    def __init__(
        self,
        session: Session,
        model: Model,
        settings: Settings,
        join_mean: Callable[[], Session],
        buffers: Optional[Broadcast],
        clip_value: Optional[float],
        passes: int,
        overlap: bool,
    ) -> None:
        self.session, self._model, self._buffers = session, model, buffers
        self.parameters = parameters = model.trained
        self._settings, self._overlap, self._clip_value, self._passes = settings, overlap, clip_value, passes
        device = next(iter(parameters.values())).device
        self._windows = windows(session, device)
        self._pushes = Pushes(session, self._windows, overlap, clip_value)
        self._mean: Optional[Mean] = None
        if not session.is_alone:
            of_mean = lambda joined, its_windows: Pushes(joined, its_windows, overlap, clip_value)  # noqa: E731
            self._mean = Mean(join_mean, lambda joined: windows(joined, device), of_mean)
        self._weights = Weights(parameters, self._windows)
        self._coverage = Coverage({id(parameter): key for key, parameter in parameters.items()})
        self._uncovered: List[str] = []
        self._learns_layers = session.pull is not None
        self._handles: List[Any] = []
        self._buffers_are_old = False
        self._resets: Set[str] = set()
        self._has_left = False
        self._averaged = 0  # contexts in which the parameters have averages
        self._groups: List[Dict[str, Any]] = []  # of torch's optimizer, once there was a step
        self._found: Optional[Found] = None
        """The inf/NaN check that a scaler has left to the last step."""
        self.asleep: Optional[Asleep] = None
        """The parameters of the model that the job does not have; `None` with one worker."""
        self.has_stepped = session.next_round > 1
        """Whether the hub may have other weights than the initial weights."""

    def start(self) -> None:
        """Gives every worker rank 0's parameters, and installs the hooks."""
        if self.session.rank == 0 and self.session.next_round == 0:
            self._windows.write(self.parameters)
        if next(iter(self.parameters.values())).is_cuda:
            torch.cuda.synchronize()
        self.session.broadcast()
        self._gradients = Gradients(
            self._pushes,
            self.parameters,
            self._passes,
            self._backward_begins,
            self._weights.lend,
            self._mean,
        )
        self._weights.begin(weakref.ref(self._gradients))
        this = weakref.ref(self)

        def before_forward(module: torch.nn.Module, _inputs: Any) -> None:
            exchange = None if _is_compiling() else this()
            if exchange is not None:
                exchange._before_forward(module)

        handle = torch_module.register_module_forward_pre_hook(before_forward)
        self._handles.append(handle)
        weakref.finalize(self, handle.remove)

    def step(self, groups: List[Dict[str, Any]], times: float = 1.0) -> None:
        """Sends parameters that the script has written. Then makes a round: pushes the gradients, multiplied by `times`, and
        the hub steps with the settings of `groups`."""
        if self._has_left:
            self.session.members()  # raises the error of a session that is over
            raise LeftError(f"step(): this optimizer has left job {self.session.job!r}: make another optimizer of torch's own")
        self._check_unscaling(times)
        if self.is_apart and not self.session.is_alone:
            raise StateError(
                "step() within no_sync(): with DDP each worker would step here by its own gradients, but the hub steps by the mean of "
                "all workers. Leave the block before step(); if each worker shall make its own steps, use a phub.Session, as for DiLoCo"
            )
        self._gradients.meet()  # before any round: another worker may wait for it before its step
        self._weights.free_all()
        self._answer()
        self._put_written()
        self._follow_settings(groups)
        unanswered = self._gradients.take_unanswered()
        if unanswered:
            self._found = Found(unanswered, self._search_of_this_round())
        without = self._gradients.push(times)
        self._weights.stepped(without if self.session.is_alone else ())  # another worker may have a gradient
        if self._coverage.is_learning:
            self._uncovered = self._coverage.learn()
            self._follow_order([key for layer in self._coverage.layers for key in layer])
        if self._overlap:
            self._weights.settle(self._uncovered)
        else:
            self._weights.settle_all()
        self.has_stepped = self._buffers_are_old = True

    def _follow_order(self, keys: List[str]) -> None:
        """Sends keys in the observed order of the forward pass. Workers need not have observed the same order."""
        if keys != list(self.parameters):
            self.session.need(*keys)
            self._weights.arrange(keys)
            self._gradients.arrange(keys)

    # ---- torch's scaler

    def expect_search(self) -> None:
        """Notes that torch's scaler is about to check the gradients for inf/NaN. The hub makes this check in its next round."""
        self._gradients.expect_search()

    def unscale(self, times: float) -> None:
        """Multiplies all gradients by a number. After a step with a scaler, the script finds them unscaled."""
        self._gradients.unscale(times)

    @property
    def is_asked(self) -> bool:
        """Whether the scaler's inf/NaN check is left to the hub's next round."""
        return self._gradients.is_asked

    def _check_unscaling(self, times: float) -> None:
        if times == 1.0:
            return
        if self._clip_value is not None:
            raise GradientError(
                f"clip_value={self._clip_value} clips gradients in the backward pass, while a GradScaler's scale is in them: use clip_norm, "
                f"which clips the mean after the hub has unscaled it"
            )
        half = [key for key, parameter in self.parameters.items() if parameter.dtype == torch.float16]
        if half:
            raise GradientError(
                f"parameter {half[0]!r} has float16 gradients, which underflow where a GradScaler unscales them: keep parameters in "
                f"float32, and compute in float16 by torch.autocast"
            )

    def _search_of_this_round(self) -> Callable[[], bool]:
        """Returns a function, which waits for weights, key by key, until the norm of this round has arrived. The function returns
        whether the hub skipped the round because its norm was not finite."""
        number, skipped = self.session.next_round, self.session.skipped

        def search() -> bool:
            for key in self.parameters:
                self._windows.settle(key)
                norm = self.session.norm
                if norm is not None and norm.round >= number:
                    break
            norm = self.session.norm  # that of a spike is finite: the scale is not to blame
            return self.session.skipped > skipped and not (norm is not None and math.isfinite(norm.value))

        return search

    def _answer(self) -> None:
        """Answers the scaler's search of the last step, before the next norm is known."""
        found, self._found = self._found, None
        if found is not None:
            found.answer()

    # ---- changes by the script

    def _put_written(self) -> None:
        """Sends the hub the parameters that the script has written, in a separate round."""
        written = self._weights.written()
        if not written:
            return
        self._weights.settle_all()
        self._gradients.nothing()
        self._windows.write({key: torch.Tensor.detach(self.parameters[key]) for key in written})
        self._windows.do(written, self.session.push_weights)
        put = set(written)
        self._windows.do([key for key in self.parameters if key not in put], self.session.push_nothing)
        self._weights.stepped()
        self._weights.settle_all()

    def _backward_begins(self) -> None:
        """Sends the hub the current hyperparameters before the backward pass, because the hub may step gradients before `step()`.
        Usually `step()` finds the same hyperparameters."""
        try:
            if self._groups and self._settings.differs(self._groups):
                self._weights.free_all()  # hyperparameters change between rounds
                self._tell(self._groups, set())
        except UnsupportedOptimizerError:
            pass  # `step()` says so

    def _follow_settings(self, groups: List[Dict[str, Any]]) -> None:
        self._groups = groups
        if self._learns_layers and self._coverage.layers:
            # Each worker has its own order: workers need not pull the same batches.
            self.session.pull_by(self._coverage.layers)
            self._learns_layers = False
        resets, self._resets = self._resets, set()
        self._tell(groups, resets)

    def _tell(self, groups: List[Dict[str, Any]], resets: Set[str]) -> None:
        change = self._settings.changed(groups)
        # A call by rank 0 alone is enough: the hub ends no round without rank 0's pushes, and rank 0 has not begun this round.
        if (change is not None or resets) and self.session.is_first:
            has_keys = change is not None and change.groups is not None
            keys = by_key(self._settings.groups, groups, self.parameters) if has_keys else None
            others = self._settings.others(groups, self.parameters)
            self.session.set_optimizer(self._settings.optimizer, keys, sorted(resets), others)

    def _before_forward(self, module: torch.nn.Module) -> None:
        if self._buffers is not None and self._buffers_are_old and self._model.is_whole(module):
            self._buffers_are_old = False
            self._buffers.again(self._model.buffers)
        self._gradients.forward_begins()
        if self._weights.pending or self._coverage.is_learning:
            self._weights.wait(self._coverage.called(module))
            if self._coverage.is_learning and not self.session.is_alone and not self._model.is_known:
                self._check_rest(module)

    def _check_rest(self, module: torch.nn.Module) -> None:
        """Raises `WrapError` if the module has parameters or buffers besides the wrapped ones: each worker would keep its own
        values."""
        rest = self._model.rest_of(module)
        if rest and len(rest) < len(list(module.named_parameters())) + len(list(module.named_buffers())):
            raise WrapError(
                f"{type(module).__name__} has {rest[0]!r}, which DistributedOptimizer does not know: each worker would keep "
                f"its own values; wrap the optimizer with the model, DistributedOptimizer(optimizer, model)"
            )

    def apart(self) -> ContextManager[None]:
        """Returns a context in which backward passes add to this worker's own gradients."""
        return self._gradients.apart()

    @property
    def is_apart(self) -> bool:
        """Whether the script is in `no_sync()`."""
        return self._gradients.is_apart

    def continue_from(self, former: "Exchange") -> None:
        """Takes over the gradients that the script has made in the previous job."""
        self._gradients.continue_from(former._gradients)

    def zeroed(self) -> None:
        """Notes that the script has dropped all gradients, or set them to zero."""
        self._gradients.zeroed()

    def reset(self, parameters: Iterable[torch.Tensor]) -> None:
        """Sets the optimizer state of these parameters to zero before the next step."""
        ours = {id(parameter) for parameter in parameters}
        self._resets |= {key for key, parameter in self.parameters.items() if id(parameter) in ours}

    def is_reset(self, key: str) -> bool:
        """Whether the optimizer state of a key is set to zero before the next step."""
        return key in self._resets

    def averages(self) -> Optional[Mapping[str, Array]]:
        """Fetches the averages by key, if the hub keeps some."""
        self.synchronize()
        return self.session.state().ema if self.session.keeps_ema else None

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Returns a context in which the parameters have the hub's averages."""
        self.synchronize()
        averages = {key: torch.from_numpy(values) for key, values in self.session.ema().items()}
        self._averaged += 1
        try:
            with self._weights.replaced(averages):
                yield
        finally:
            self._averaged -= 1

    def check_own(self, what: str) -> None:
        """Checks that the parameters have their own values.

        Raises:
            StateError: the parameters have averages.
        """
        if self._averaged:
            raise StateError(f"{what} within averaged(): the parameters have averages there; leave the context first")

    def synchronize(self) -> None:
        """Waits for all parameters, for a caller that is not a forward pass."""
        self._weights.settle_all()

    @property
    def is_settled(self) -> bool:
        """Whether `leave` waits for no other worker, because the last values have arrived or can never arrive."""
        try:
            return self.session.is_alone or all(self.session.is_ready(key) for key in self._weights.pending)
        except Error:
            return True

    def leave(self) -> None:
        """Waits for all keys, and leaves the job. Parameters keep their values, and the script may write them again. This also
        holds after an error of the wait, when no new values can arrive."""
        try:
            self._answer()
            self._weights.settle_all()
        finally:
            self._has_left = True
            self._weights.leave()
            if self.asleep is not None:
                self.asleep.leave()
            for handle in self._handles:
                handle.remove()
            self._handles.clear()
            self._gradients.leave()
            # If the only Python reference to a gradient is in garbage, Python's garbage collection deletes the gradient's
            # attributes, although the parameter still has the gradient.
            self._pushes.replaced()
        self._windows.close()
        if self._buffers is not None:
            self._buffers.leave()
        self.session.leave()
