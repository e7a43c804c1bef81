"""The gradients of a round. Their bytes are sent during the backward pass, and count if `step()` finds the gradients unchanged.

```
   backward   gradient made -> in a bucket -> written to the window (memory that the hub reads) -> sent ahead, watched
   p.grad     a gradient that was not sent is watched from here on
   step()     the same tensor, not written since?  yes: pushed, without bytes again    no: written and pushed
              no gradient?                         pushed as nothing
```

The gradients that `step()` finds count. Earlier bytes count only if their gradient is unchanged. With several workers
a script that touches its gradients before `step()` finds the mean of all workers there, as with DDP. In the next backward pass
after such a step, bytes are sent to the job that makes means. Owned by the thread of the script.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Set

import torch

from ._errors import MeanError
from ._held import eager, gradient_of, in_compiled_backward, unasked
from ._pushes import Mean, Pushes, check
from ._script import line
from ._watched import is_exposed, is_watched, release, unwatch, watch

_ENGINE: Any = torch.autograd.Variable._execution_engine  # type: ignore[attr-defined]

# The size from which a bucket of gradients is sent at once. 64 KiB take half a millisecond at 1 Gbit/s, and the first layers may
# wait for this long.
_BUCKET_BYTES = 64 * 1024


def _no_gradient() -> Optional[torch.Tensor]:
    return None


class Gradients:
    """The gradients of a model's parameters by key."""

    def __init__(
        self,
        pushes: Pushes,
        parameters: Dict[str, torch.nn.Parameter],
        passes: int,
        begin: Callable[[], None],
        lend: Callable[[Sequence[str]], None],
        mean: Optional[Mean],
    ) -> None:
        """Args:
            pushes: the pushes to the optimizer's own job.
            passes: the number of backward passes before the first step. Each later step expects the number of the previous step.
            begin: a function that is called once a round, before bytes are sent to the optimizer's own job.
            lend: a function that lets the hub write its answers for keys before `step()`.
            mean: the mean over several workers; None with one worker.
        """
        self._own, self._parameters = pushes, parameters
        self._begin, self._lend, self._mean = begin, lend, mean
        self._bucket: Dict[str, torch.Tensor] = {}
        self._in_bucket = 0
        # The number of backward passes that have added to a gradient: since the last step (`_passes`), and for the last step
        # (`_expected`). `_expected` shows which pass is the last before the next step.
        self._passes: Dict[str, int] = {}
        self._expected: Dict[str, int] = {}
        self._last: Dict[str, "weakref.ref[torch.Tensor]"] = {}
        self._hooks: Dict[str, Any] = {}
        self._followed: Set[str] = set()  # only the gradients of these may be exposed
        self._is_touched = self._was_touched = False  # in this round, and in the last one: then the script uses means
        self._is_zeroed = False  # by `zero_grad` in this round
        self._means: Dict[str, "weakref.ref[torch.Tensor]"] = {}
        """Gradients that are means of all workers, to which no backward pass has added since."""
        self._ends_backward = False
        self._passes_of_first = passes
        self._times = 1.0
        """The factor of gradients in the last step. Bytes that are sent ahead are multiplied by this factor."""
        self._expects_search = False
        self._unanswered: List[torch.Tensor] = []
        self._factor: Optional[torch.Tensor] = None
        """The number by which the scaler is about to multiply the means."""
        self._blocks: List[None] = []
        """An element for each `no_sync()` in which the script is. A later job has the same list."""
        self._keys = {id(parameter): key for key, parameter in parameters.items()}
        for key, parameter in parameters.items():
            gradient = gradient_of(parameter)
            if gradient is not None:
                release(gradient)
                gradient._phub_is_exposed = True  # type: ignore[attr-defined]
            if gradient is not None or key in self._own.ahead:
                self._follow(key)

    def _follow(self, key: str) -> None:
        """Adds a hook that the backward pass calls for a parameter's gradient, if bytes of the gradient are sent in the pass,
        or if the job makes means and the script may hold the gradient."""
        parameter = self._parameters[key]
        self._followed.add(key)
        is_asked = self._mean is not None or key in self._own.ahead
        if is_asked and parameter.requires_grad and key not in self._hooks:
            self._hooks[key] = _after_accumulation(parameter, _calls(weakref.ref(self), key))

    def handed_out(self, parameter: torch.nn.Parameter, gradient: torch.Tensor) -> None:
        """Notes that the script has got a gradient, which it may keep and change from now on."""
        key = self._keys[id(parameter)]
        if self.is_apart:
            self._follow(key)
        elif self._mean is not None and key not in self._hooks and not is_watched(gradient) and not is_exposed(gradient):
            watch(gradient, self)

    def missed(self, parameter: torch.nn.Parameter) -> None:
        """Notes that the script has seen that a parameter has no gradient. If another worker has a gradient of it, the script has
        missed the mean."""
        if self._mean is not None and not self.is_apart:
            self._mean.missed.add(self._keys[id(parameter)])

    def forward_begins(self) -> None:
        """Forgets, before a forward pass, which parameters the script has seen without a gradient."""
        if self._mean is not None and self._mean.missed:
            self._mean.missed.clear()

    def given(self, parameter: torch.nn.Parameter) -> None:
        """Notes that the script has given a parameter a gradient, which it may keep and change."""
        gradient = gradient_of(parameter)
        if gradient is not None and gradient._is_view():
            gradient._phub_is_exposed = True  # type: ignore[attr-defined]  # by the tensor of which it is a view
        self._follow(self._keys[id(parameter)])

    def moved(self, parameter: torch.nn.Parameter) -> None:
        """Notes that a parameter has other memory. If its type has changed, torch before 2.1 has lost its hook."""
        key = self._keys[id(parameter)]
        if key in self._hooks and not hasattr(parameter, "register_post_accumulate_grad_hook") and parameter.requires_grad:
            self._hooks.pop(key).remove()
            self._follow(key)

    def arrange(self, keys: Iterable[str]) -> None:
        """Sets the order of pushes: the order of the forward pass, because an idle link takes the key that comes first."""
        self._parameters = {key: self._parameters[key] for key in keys}

    # ---- the backward pass

    def accumulated(self, key: str) -> None:
        """Notes that the backward pass has added to a parameter's gradient."""
        gradient = gradient_of(self._parameters[key])
        if gradient is None:
            return  # another hook has taken it
        pushes = self._receiver
        if pushes is not None:
            pushes.changed(key)
        self._bucket.pop(key, None)
        self._means.pop(key, None)
        if gradient is not self._last.get(key, _no_gradient)():
            self._last[key] = weakref.ref(gradient)
            self._passes[key] = 0  # the script has taken the former one away, with the passes that it had
        passes = self._passes[key] = self._passes.get(key, 0) + 1
        if self.is_apart:
            release(gradient)
            return
        leaves = pushes is not None and key in pushes.ahead and passes == self._expected.get(key, self._passes_of_first)
        if is_exposed(gradient):  # it can change without a trace
            if self._mean is not None and in_compiled_backward():
                raise MeanError(
                    f"{line()}: a compiled backward pass adds to the gradient of {key!r}, which the script may have used: its mean is "
                    f"possible only after a pass that is not compiled (torch._dynamo.config.compiled_autograd = False), or if "
                    f"zero_grad(set_to_none=True) comes before each pass"
                )
            self._average_after_backward()
            leaves = leaves and pushes is not self._own
        elif leaves or self._mean is not None:
            watch(gradient, self)
        if leaves:
            check({key: gradient})
            is_called_back = bool(self._bucket) or self._call_back()
            self._bucket[key] = gradient
            self._in_bucket += gradient.numel() * gradient.element_size()
            if self._in_bucket >= _BUCKET_BYTES or not is_called_back:
                self._send_bucket()

    @property
    def _receiver(self) -> Optional[Pushes]:
        """The job to which bytes are sent in the backward pass. After a step whose gradients the script has used, it is the
        job that makes means, if there is one."""
        if not self._was_touched:
            return self._own
        return None if self._mean is None else self._mean.pushes

    def _send_bucket(self) -> None:
        """Sends the gradients in the bucket, except those that the script has touched or replaced."""
        is_own = self._receiver is self._own
        bucket, self._bucket, self._in_bucket = self._bucket, {}, 0
        for key, gradient in list(bucket.items()):
            may_leave = is_watched(gradient) or (is_exposed(gradient) and not is_own)
            if not may_leave or gradient_of(self._parameters[key]) is not gradient:
                del bucket[key]
        if not bucket:
            return
        if is_own:
            if not self._own.left:
                self._begin()
            self._lend(list(bucket))
        watched = [gradient for gradient in bucket.values() if is_watched(gradient)]
        for gradient in watched:
            release(gradient)
        if is_own:
            self._own.send_ahead(bucket, self._times)
        elif self._mean is not None:
            self._mean.send_ahead(bucket)
        for gradient in watched:
            watch(gradient, self)

    def _call_back(self) -> bool:
        """Registers a callback for the end of the backward pass that runs on this thread. Returns whether it is registered."""
        if in_compiled_backward():
            return False  # torch would drop the callback
        try:
            _ENGINE.queue_callback(self._backward_ended)
        except RuntimeError:
            return False
        return True

    @eager
    def _backward_ended(self) -> None:
        """Sends the remaining gradients. Computes scheduled means before the script continues, because the script may have views
        of gradients."""
        self._send_bucket()
        if self._ends_backward:
            self._ends_backward = False
            self._average()

    def _average_after_backward(self) -> bool:
        """Schedules the means for the end of the backward pass that runs on this thread. Returns whether they are scheduled."""
        if self._mean is None or not self._call_back():
            return False
        self._ends_backward = True
        return True

    # ---- between the backward pass and the next one

    def touched(self, gradient: torch.Tensor) -> None:
        """Prepares for a script that is about to read or write a gradient that was watched.

        Raises:
            MeanError: the gradient belongs to no parameter any more, so the workers cannot compute its mean.
        """
        if self._mean is not None and all(each is not gradient for each in self._current().values()):
            raise MeanError(
                f"{line()}: a gradient is used here that was kept after its parameter had got another gradient, or none. With DDP the "
                f"kept gradient would be the mean of all workers; with the hub it is this worker's own. Use gradients before zero_grad(), or keep "
                f"copies: p.grad.clone()"
            )
        self._is_touched = True
        if self._mean is not None and not self._average_after_backward():
            self._average()

    def zeroed_by_script(self, gradient: torch.Tensor) -> None:
        """Notes that the script has set a gradient to zero. The script may keep the gradient, so a hook watches additions by the
        next backward pass."""
        for key, parameter in self._parameters.items():
            if gradient_of(parameter) is gradient:
                self._follow(key)

    def _average(self) -> None:
        """Replaces all gradients by the means of all workers."""
        assert self._mean is not None
        self._is_touched = True
        factor, self._factor = self._factor, None
        self._mean.replace(self._current(), self._parameters, factor)
        for key, gradient in self._current().items():
            if gradient is not None:
                self._means[key] = weakref.ref(gradient)
                unwatch(gradient)
                self._follow(key)
        self._own.all_changed()

    def _current(self) -> Dict[str, Optional[torch.Tensor]]:
        return {key: gradient_of(parameter) for key, parameter in self._parameters.items()}

    # ---- a scaler

    def expect_search(self) -> None:
        """Notes that torch's `GradScaler` next checks the gradients for inf/NaN, and then calls `step()`."""
        self._expects_search = self._mean is not None

    def puts_off(self, found: torch.Tensor, factor: torch.Tensor) -> bool:
        """Leaves the scaler's search for inf/NaN to the hub, which searches the mean of all workers, if possible. Otherwise
        the scaler multiplies the means by `factor`, which must be the same at all workers."""
        self._factor = factor
        if self._expects_search and not any(each is found for each in self._unanswered):
            self._unanswered.append(found)
        return self._expects_search

    @property
    def is_asked(self) -> bool:
        """Whether a search was postponed."""
        return bool(self._unanswered)

    def take_unanswered(self) -> List[torch.Tensor]:
        """Takes the tensors in which the scaler reads the results of postponed searches."""
        unanswered, self._unanswered = self._unanswered, []
        return unanswered

    def unscale(self, times: float) -> None:
        """Multiplies all gradients by a number. After a step with a scaler, the script finds them unscaled."""
        if times != 1.0:
            with unasked(), torch.no_grad():
                torch._foreach_mul_([each for each in self._current().values() if each is not None], times)

    # ---- the step

    def meet(self) -> None:
        """Computes the means of gradients that the script may hold and has zeroed, if this round has no means yet. For a worker
        without inputs: the workers with inputs compute these means in their backward pass, and wait there for its `step()`."""
        if self._mean is not None and self._is_zeroed and not self._is_touched:
            if any(is_exposed(gradient_of(self._parameters[key])) for key in self._followed):
                self._average()

    def push(self, times: float = 1.0) -> List[str]:
        """Ends the round: the hub makes a step with the parameters' gradients times `times`. Returns the keys that have no
        gradient at this worker."""
        with unasked():
            gradients = self._current()
            unsent = self._own.unsent(gradients, times)
            self.unscale(times)
            means = [key for key, mean in self._means.items() if mean() is gradients[key]]
            self._own.push(gradients, unsent, means)
        if self._mean is not None and self._mean.pushes is not None:
            self._mean.pushes.all_changed()
        self._bucket.clear()
        self._expected, self._passes = self._passes, {}
        self._was_touched, self._is_touched, self._is_zeroed = self._is_touched, False, False
        self._times, self._expects_search, self._factor = times, False, None
        return [key for key, gradient in gradients.items() if gradient is None]

    def zeroed(self) -> None:
        """Forgets the backward passes since the last step, because the script has zeroed or dropped their gradients. Zeros
        are also the mean over all workers, so gradients need not be watched."""
        self._passes.clear()
        self._is_zeroed = True
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

    def continue_from(self, former: "Gradients") -> None:
        """Takes over the gradients that the script has made in the previous job. They are this worker's own, except means. The
        script may be in `no_sync()`."""
        self._blocks = former._blocks
        if self._mean is None:
            return
        if self.is_apart:
            self._follow_all()
            return
        for key, gradient in self._current().items():
            if gradient is not None and gradient is former._means.get(key, _no_gradient)():
                self._means[key] = weakref.ref(gradient)
            elif gradient is not None:
                watch(gradient, self)

    @property
    def is_apart(self) -> bool:
        """Whether the script is in `no_sync()`."""
        return bool(self._blocks)

    def _follow_all(self) -> None:
        for key in self._parameters:
            self._follow(key)  # the script may hold gradients of `no_sync()` when it ends

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """Returns a context in which backward passes add to this worker's own gradients."""
        if self._mean is not None:
            self._follow_all()
        self._blocks.append(None)
        self._release()
        try:
            yield
        finally:
            self._blocks.pop()

    def nothing(self) -> None:
        """Forgets the bytes that were sent in this round, because another push has replaced them."""
        self._bucket.clear()
        self._own.replaced()

    def leave(self) -> None:
        """Removes the hooks, and makes all gradients ordinary tensors."""
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()
        self._begin = lambda: None  # the former function refers to the owner of this object, and so would keep the windows
        for parameter in self._parameters.values():
            gradient = gradient_of(parameter)
            if gradient is not None:
                unwatch(gradient)
        if self._mean is not None:
            self._mean.leave()


def _calls(this: "weakref.ref[Gradients]", key: str) -> Callable[..., None]:
    @eager
    def hook(*_gradients: Any) -> None:
        gradients = this()
        if gradients is not None:
            gradients.accumulated(key)

    return hook


def _after_accumulation(parameter: torch.nn.Parameter, hook: Callable[..., None]) -> Any:
    """Calls `hook` each time when the backward pass has added to the parameter's gradient."""
    if hasattr(parameter, "register_post_accumulate_grad_hook"):  # torch 2.1
        return parameter.register_post_accumulate_grad_hook(hook)
    with torch.inference_mode(False), torch.enable_grad(), unasked():
        view: Any = parameter.expand_as(parameter)
    node: Any = view.grad_fn.next_functions[0][0]
    handle = node.register_hook(hook)
    handle.node = node  # a hook lives as long as its node
    return handle


__all__: List[str] = ["Gradients"]
