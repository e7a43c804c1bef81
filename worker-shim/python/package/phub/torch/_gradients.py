"""The gradients of a round: bytes leave as the backward pass makes them, and count when `step()` finds them unchanged.

```
   backward   gradient made -> in a bucket -> written to the window -> sent ahead, watched
   p.grad     a gradient that has not left is watched from here on
   step()     the same tensor, not written since?  yes: pushed, without bytes again    no: written and pushed
              no gradient?                         pushed as nothing
```

The gradients that `step()` finds count; bytes that left before are only a start. With several workers a script that
touches its gradients before `step()` finds the mean of all workers there, as with DDP. Owned by the thread of the script.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set

import torch

from .._phub import Error
from .._session import Session
from ._errors import GradientError, MeanError
from ._held import gradient_of, unasked
from ._script import line
from ._watched import is_exposed, is_watched, release, unwatch, watch
from ._windows import Windows

_ENGINE: Any = torch.autograd.Variable._execution_engine  # type: ignore[attr-defined]

# The size from which gradients leave without waiting for more. 64 KiB take half a millisecond at 1 Gbit/s, and the first layers
# may wait for this long.
_BUCKET_BYTES = 64 * 1024


def _no_gradient() -> Optional[torch.Tensor]:
    return None


class _Sent(NamedTuple):
    """A gradient whose bytes have left."""

    gradient: torch.Tensor
    version: int
    times: float

    def is_still(self, gradient: torch.Tensor, times: float) -> bool:
        """Whether this is still the parameter's gradient, not written since it was sent, and sent with this factor."""
        return gradient is self.gradient and gradient._version == self.version and times == self.times and is_watched(gradient)


class Gradients:
    """The gradients of a model's parameters by key."""

    def __init__(
        self,
        session: Session,
        parameters: Dict[str, torch.nn.Parameter],
        windows: Windows,
        overlap: bool,
        clip_value: Optional[float],
        passes: int,
        begin: Callable[[], None],
        lend: Callable[[Sequence[str]], None],
        mean: Optional["Mean"],
    ) -> None:
        """Args:
            overlap: whether bytes leave in the backward pass, for the keys for which that gains something.
            passes: the backward passes of the first step; the later ones have as many as the one before.
            begin: is called before bytes leave, once a round.
            lend: lets the hub write the windows of keys.
            mean: the mean over several workers; None with one.
        """
        self._session, self._parameters, self._windows = session, parameters, windows
        self._clip_value, self._begin, self._lend, self._mean = clip_value, begin, lend, mean
        ahead = session.keys if windows.crosses_a_bus else session.leaves_ahead()
        self._ahead = frozenset(ahead if overlap else ())
        self._bucket: Dict[str, torch.Tensor] = {}
        self._in_bucket = 0
        self._sent: Dict[str, _Sent] = {}
        self._left: Set[str] = set()
        """Keys with bytes that have left in this round, of any gradient."""
        # The number of backward passes that have added to a gradient since the last step, and before it. The second number
        # shows which pass is the last.
        self._passes: Dict[str, int] = {}
        self._expected: Dict[str, int] = {}
        self._last: Dict[str, "weakref.ref[torch.Tensor]"] = {}
        self._hooks: Dict[str, Any] = {}
        self._touched_at = ""
        self._is_touched = self._was_touched = False  # in this round, and in the last one: then bytes ahead would be lost
        self._ends_backward = False
        self._passes_of_first = passes
        self._times = 1.0
        """The factor of gradients in the last step; bytes that leave ahead have it, too."""
        self._expects_search = False
        self._unanswered: List[torch.Tensor] = []
        self._is_apart = False  # in no_sync()
        self._keys = {id(parameter): key for key, parameter in parameters.items()}
        for key, parameter in parameters.items():
            if parameter.grad is not None:
                parameter.grad._phub_is_exposed = True  # type: ignore[attr-defined]
            if parameter.grad is not None or key in self._ahead:
                self._follow(key)

    def _follow(self, key: str) -> None:
        """Adds a hook to the backward pass that watches a parameter's gradients: those that leave there, and those that the
        script may hold before the backward pass."""
        parameter = self._parameters[key]
        is_asked = self._mean is not None or key in self._ahead
        if is_asked and parameter.requires_grad and key not in self._hooks:
            self._hooks[key] = _after_accumulation(parameter, _calls(weakref.ref(self), key))

    def handed_out(self, parameter: torch.nn.Parameter, gradient: torch.Tensor) -> None:
        """Notes that the script has got a gradient, which it may keep and change from now on."""
        key = self._keys[id(parameter)]
        if self._is_apart:
            self._follow(key)
        elif self._mean is not None and key not in self._hooks and not is_watched(gradient) and not is_exposed(gradient):
            watch(gradient, self)

    def given(self, parameter: torch.nn.Parameter) -> None:
        """Notes that the script has given a parameter a gradient, which it may keep and change."""
        self._follow(self._keys[id(parameter)])

    def arrange(self, keys: Iterable[str]) -> None:
        """Pushes keys in this order, the order of the forward pass, because an idle link takes the key that comes first."""
        self._parameters = {key: self._parameters[key] for key in keys}

    # ---- the backward pass

    def accumulated(self, key: str) -> None:
        """Notes that the backward pass has added to a parameter's gradient."""
        gradient = gradient_of(self._parameters[key])
        if gradient is None:
            return  # another hook has taken it
        self._sent.pop(key, None)
        self._bucket.pop(key, None)
        if gradient is not self._last.get(key, _no_gradient)():
            self._last[key] = weakref.ref(gradient)
            self._passes[key] = 0  # the script has taken the former one away, with the passes that it had
        passes = self._passes[key] = self._passes.get(key, 0) + 1
        if self._is_apart:
            release(gradient)
            return
        if is_exposed(gradient):
            self._average_after_backward()
            return  # it can change without a trace, so that it leaves in step()
        leaves = key in self._ahead and not self._was_touched and passes == self._expected.get(key, self._passes_of_first)
        if leaves or self._mean is not None:
            watch(gradient, self)
        if leaves:
            self._check(key, gradient)
            is_called_back = bool(self._bucket) or self._call_back()
            self._bucket[key] = gradient
            self._in_bucket += gradient.numel() * gradient.element_size()
            if self._in_bucket >= _BUCKET_BYTES or not is_called_back:
                self._send_bucket()

    def _send_bucket(self) -> None:
        """Sends the gradients in the bucket, except those that the script has touched or replaced."""
        is_there = lambda key, gradient: is_watched(gradient) and gradient_of(self._parameters[key]) is gradient  # noqa: E731
        bucket = {key: gradient for key, gradient in self._bucket.items() if is_there(key, gradient)}
        self._bucket, self._in_bucket = {}, 0
        if not bucket:
            return
        if not self._left:
            self._begin()
        for gradient in bucket.values():
            release(gradient)
        self._clip(bucket.values())
        keys = list(bucket)
        self._lend(keys)
        self._windows.write(bucket, self._times)
        self._windows.do(keys, self._session.send_ahead)
        for key, gradient in bucket.items():
            watch(gradient, self)
            self._sent[key] = _Sent(gradient, gradient._version, self._times)
        self._left.update(keys)

    def _call_back(self) -> bool:
        """Registers a callback for the end of the backward pass that runs on this thread. Returns whether one runs."""
        try:
            _ENGINE.queue_callback(self._backward_ended)
        except RuntimeError:
            return False
        return True

    def _backward_ended(self) -> None:
        """Sends the remaining gradients. Computes the means before the script continues, because it may have views of
        gradients."""
        self._send_bucket()
        if self._ends_backward:
            self._ends_backward = False
            self._average()

    def _average_after_backward(self) -> bool:
        """Has the means computed at the end of the backward pass that runs on this thread, if one does."""
        if self._mean is None or not self._call_back():
            return False
        self._ends_backward = True
        return True

    # ---- between the backward pass and the next one

    def touched(self) -> None:
        """Prepares for a script that is about to read or write a gradient that was watched."""
        self._is_touched = True
        if self._mean is not None and not self._average_after_backward():
            self._average()

    def zeroed_by_script(self, gradient: torch.Tensor) -> None:
        """Notes that the script has set a gradient to zero, which it may keep. A hook watches additions by the next backward
        pass."""
        for key, parameter in self._parameters.items():
            if gradient_of(parameter) is gradient:
                self._follow(key)

    def _average(self) -> None:
        """Replaces all gradients by the means of all workers."""
        assert self._mean is not None
        self._touched_at = line()
        gradients = {}
        for key, parameter in self._parameters.items():
            gradient = gradients[key] = gradient_of(parameter)
            if gradient is not None:
                self._check(key, gradient)
                if key not in self._left:
                    self._clip([gradient])
                unwatch(gradient)
                self._follow(key)
        self._sent.clear()
        self._mean.replace(gradients, self._parameters)

    # ---- a scaler

    def expect_search(self) -> None:
        """Notes that torch's `GradScaler` searches the gradients next, and then has the optimizer make its step."""
        self._expects_search = self._mean is not None

    def puts_off(self, found: torch.Tensor) -> bool:
        """Leaves a search by the scaler to the hub, which finds values that are not finite in the mean of all workers."""
        if self._expects_search and not any(each is found for each in self._unanswered):
            self._unanswered.append(found)
        return self._expects_search

    @property
    def is_asked(self) -> bool:
        """Whether a search was postponed."""
        return bool(self._unanswered)

    def take_unanswered(self) -> List[torch.Tensor]:
        """Takes the tensors of postponed searches. The scaler reads the results in them."""
        unanswered, self._unanswered = self._unanswered, []
        return unanswered

    def unscale(self, times: float) -> None:
        """Multiplies all gradients by a number, as the script finds them after a step with a scaler."""
        if times != 1.0:
            gradients = [gradient_of(parameter) for parameter in self._parameters.values()]
            with unasked(), torch.no_grad():
                torch._foreach_mul_([each for each in gradients if each is not None], times)

    # ---- the step

    def push(self, times: float = 1.0) -> None:
        """Ends the round: the hub steps with the gradients of the parameters, times a number."""
        sent: List[str] = []
        rewritten: List[str] = []
        nothing: List[str] = []
        written: Dict[str, torch.Tensor] = {}
        with unasked():
            for key, parameter in self._parameters.items():
                gradient = gradient_of(parameter)
                if gradient is None:
                    nothing.append(key)
                    continue
                was_sent = self._sent.get(key)
                if was_sent is not None and was_sent.is_still(gradient, times):
                    sent.append(key)
                    continue
                if gradient.is_sparse:
                    self._check(key, gradient)
                written[key] = gradient
                (rewritten if key in self._left else sent).append(key)
            if not self._touched_at:
                self._clip(gradient for key, gradient in written.items() if key not in self._left)
            self.unscale(times)
            self._windows.write(written)
        self._windows.do(sent, self._session.push)
        self._windows.do(rewritten, self._push_rewritten)
        self._windows.do(nothing, self._session.push_nothing)
        self._expected, self._passes, self._touched_at = self._passes, {}, ""
        self._was_touched, self._is_touched = self._is_touched, False
        self._times, self._expects_search = times, False
        self.nothing()

    def _push_rewritten(self, *keys: str) -> None:
        self._session.push(*keys, rewritten=True)

    def zeroed(self) -> None:
        """Forgets the backward passes of this round, whose sums the script has dropped, if it has not made a step. Gradients that
        are zeros are the mean at all workers, and need not be watched."""
        self._passes.clear()
        self._expects_search = False
        self._unanswered.clear()
        self._release()

    def _release(self) -> None:
        """Ends the watch of all gradients. The script may keep the gradients that it has got, so hooks watch later
        additions."""
        for key, parameter in self._parameters.items():
            gradient = gradient_of(parameter)
            if gradient is not None and (is_watched(gradient) or is_exposed(gradient)):
                release(gradient)
                self._follow(key)

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """Returns a context in which backward passes add to this worker's own gradients."""
        was_apart, self._is_apart = self._is_apart, True
        self._release()
        try:
            yield
        finally:
            self._is_apart = was_apart

    def nothing(self) -> None:
        """Forgets the bytes that were sent in this round, because another push has replaced them."""
        self._bucket.clear()
        self._sent.clear()
        self._left.clear()

    def _clip(self, gradients: Iterable[torch.Tensor]) -> None:
        if self._clip_value is not None:
            with unasked(), torch.no_grad():
                for gradient in gradients:
                    gradient.clamp_(-self._clip_value, self._clip_value)

    def _check(self, key: str, gradient: torch.Tensor) -> None:
        if gradient.is_sparse:
            raise GradientError(f"parameter {key!r} has a sparse gradient; the hub takes dense ones (sparse=False)")

    def leave(self) -> None:
        """Removes the hooks, and makes all gradients ordinary tensors."""
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()
        for parameter in self._parameters.values():
            gradient = gradient_of(parameter)
            if gradient is not None:
                unwatch(gradient)
        if self._mean is not None:
            self._mean.leave()


class Mean:
    """The mean of all workers' gradients, for scripts that touch gradients before `step()`: a separate job, which is joined
    at its first use."""

    def __init__(self, join: Callable[[], Session], windows: Callable[[Session], Windows]) -> None:
        self._join, self._make_windows = join, windows
        self._session: Optional[Session] = None

    def replace(self, gradients: Dict[str, Any], parameters: Dict[str, torch.nn.Parameter]) -> None:
        """Puts the mean of all workers into each gradient. A parameter without a gradient on this worker gets one if another
        worker has one.

        Raises:
            MeanError: not all workers came to this line.
        """
        try:
            if self._session is None:
                self._session = self._join()
                self._windows = self._make_windows(self._session)
            session, windows = self._session, self._windows
            made = [key for key, gradient in gradients.items() if gradient is not None]
            with unasked():
                windows.write({key: gradients[key] for key in made})
                windows.do(made, session.push)
                windows.do([key for key, gradient in gradients.items() if gradient is None], session.push_nothing)
                for key, gradient in gradients.items():
                    windows.settle(key)
                    if session.was_left_alone(key):
                        continue
                    if gradient is None:
                        gradient = parameters[key].grad = torch.empty_like(parameters[key], requires_grad=False)
                    windows.take([key], [torch.Tensor.detach(gradient)])
        except Error as error:
            raise MeanError(
                f"{line()}: gradients are used here, where DDP would have the mean of all workers; the hub's mean did not arrive: "
                f"{error}. Touch gradients at the same line of all workers, or read them after leave()"
            ) from error

    def leave(self) -> None:
        """Leaves the job, if it was joined."""
        session, self._session = self._session, None
        if session is not None:
            self._windows.close()
            session.leave()


def _calls(this: "weakref.ref[Gradients]", key: str) -> Callable[..., None]:
    def hook(*_gradients: Any) -> None:
        gradients = this()
        if gradients is not None:
            gradients.accumulated(key)

    return hook


def _after_accumulation(parameter: torch.nn.Parameter, hook: Callable[..., None]) -> Any:
    """Calls `hook` each time when the backward pass has added to the parameter's gradient."""
    if hasattr(parameter, "register_post_accumulate_grad_hook"):  # torch 2.1
        return parameter.register_post_accumulate_grad_hook(hook)
    with torch.enable_grad(), unasked():
        view: Any = parameter.expand_as(parameter)
    node: Any = view.grad_fn.next_functions[0][0]
    handle = node.register_hook(hook)
    handle.node = node  # a hook lives as long as its node
    return handle


__all__: List[str] = ["Gradients", "Mean"]
