"""The pushes of gradients to a job. The bytes of a gradient are sent as soon as the backward pass has made it. The bytes count
at the push if the gradient has not changed since.

There are two jobs. In the optimizer's own job the hub makes the step. The other job gives the mean of all workers' gradients to a
script that uses gradients before `step()`.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Set

import torch

from .._follow import repeats_elements
from .._keys import Key
from .._phub import Error
from .._session import Session
from ._errors import GradientError, MeanError
from ._held import unasked
from ._script import is_within, line
from ._watched import is_exposed, is_watched
from ._windows import Windows
from ._windows import tensor as window

SCALES = "scaler/scales"
"""A key of the job that makes means. It has the loss scale of each worker, by rank."""

Made = Mapping[str, Optional[torch.Tensor]]
"""Gradients by key; `None` for a parameter that has no gradient."""


class _Sent(NamedTuple):
    """A gradient whose bytes were sent."""

    gradient: torch.Tensor
    version: int
    times: float


class Pushes:
    """The gradients of one round of a job."""

    def __init__(self, session: Session, windows: Windows, overlap: bool, clip_value: Optional[float]) -> None:
        """Args:
            overlap: whether bytes are sent before the push, for keys for which this saves time.
            clip_value: the bound of each sent element: elements are clipped to the range from minus this value to this value.
                The gradient itself is not clipped.
        """
        self._session, self._windows, self._clip_value = session, windows, clip_value
        ahead = session.keys if windows.crosses_a_bus else session.leaves_ahead()
        self.ahead = frozenset(ahead if overlap else ())
        """Keys whose bytes may be sent before the push."""
        self._sent: Dict[str, _Sent] = {}
        self.left: Set[str] = set()
        """Keys whose bytes were sent since the last push, even if the gradient has changed since."""

    def send_ahead(self, gradients: Mapping[str, torch.Tensor], times: float = 1.0) -> None:
        """Sends the bytes of gradients, multiplied by `times`. The gradients count only from the push on."""
        self._windows.write(gradients, times, self._clip_value)
        self._windows.do(list(gradients), self._session.send_ahead)
        for key, gradient in gradients.items():
            self._sent[key] = _Sent(gradient, gradient._version, times)
        self.left.update(gradients)

    def changed(self, key: str) -> None:
        """Notes that the gradient has changed since its bytes were sent."""
        self._sent.pop(key, None)

    def unsent(self, gradients: Made, times: float = 1.0) -> Dict[str, torch.Tensor]:
        """Returns the gradients whose current bytes were not sent.

        Raises:
            GradientError: a gradient among them is sparse.
        """
        found = {key: each for key, each in gradients.items() if each is not None}
        if self._sent:
            found = {key: each for key, each in found.items() if not self._has_left(key, each, times)}
        check(found)
        return found

    def _has_left(self, key: str, gradient: torch.Tensor, times: float) -> bool:
        sent = self._sent.get(key)
        if sent is None or sent.gradient is not gradient or sent.times != times or gradient._version != sent.version:
            return False
        # Torch does not count a write to an exposed gradient through a view.
        return is_watched(gradient) or (is_exposed(gradient) and self._windows.has(key, gradient, times, self._clip_value))

    def push(self, gradients: Made, unsent: Mapping[str, torch.Tensor], means: Iterable[str] = ()) -> None:
        """Ends the round with all gradients. First writes the gradients of `unsent`, without clipping gradients of `means`, which
        each worker has clipped."""
        clipped = {key: unsent[key] for key in means if key in unsent}
        own = {key: each for key, each in unsent.items() if key not in clipped} if clipped else unsent
        self._windows.write(own, clip_value=self._clip_value)
        self._windows.write(clipped)
        rewritten = self.left.intersection(unsent)
        made = [key for key, gradient in gradients.items() if gradient is not None]
        self._windows.do([key for key in made if key not in rewritten], self._session.push)
        self._windows.do([key for key in made if key in rewritten], self._push_rewritten)
        self._windows.do([key for key, gradient in gradients.items() if gradient is None], self._session.push_nothing)
        self.replaced()

    def _push_rewritten(self, *keys: str) -> None:
        self._session.push(*keys, rewritten=True)

    def all_changed(self) -> None:
        """Notes that all gradients that were sent ahead are out of date."""
        self._sent.clear()

    def replaced(self) -> None:
        """Forgets the bytes that were sent, because a push has replaced or counted them."""
        self._sent.clear()
        self.left.clear()


class Mean:
    """The mean of all workers' gradients, for scripts that use gradients before `step()`. Its job is joined at the first use."""

    pushes: Optional[Pushes] = None
    """The pushes to the job that makes means; `None` before its join."""

    def __init__(self, join: Callable[[], Session], windows: Callable[[Session], Windows], pushes: Callable[..., Pushes]) -> None:
        """Stores three functions: `join` joins the job, `windows` makes its windows, and `pushes` makes its pushes."""
        self._join, self._make_windows, self._make_pushes = join, windows, pushes
        self._session: Optional[Session] = None
        self.missed: Set[str] = set()
        """Keys whose gradient the script has read as `None`."""

    def send_ahead(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Sends the bytes of gradients. The hub sums gradients when the bytes of all workers have arrived.

        Raises:
            MeanError: the bytes cannot be sent.
        """
        assert self.pushes is not None
        with _says_where():
            self.pushes.send_ahead(gradients)

    def replace(
        self, gradients: Dict[str, Any], parameters: Dict[str, torch.nn.Parameter], factor: Optional[torch.Tensor] = None
    ) -> None:
        """Puts the mean of all workers into each gradient. A parameter without a gradient on this worker gets the mean if
        another worker has a gradient. `factor` is the number by which a scaler is about to multiply the means.

        Raises:
            MeanError: not all workers reached this line, or their scalers have different scales.
        """
        with _says_where(), torch.inference_mode(False), torch.no_grad():
            if self._session is None:
                self._session = self._join()
                _advise(self._session.rank)
                self._windows = self._make_windows(self._session)
                self.pushes = self._make_pushes(self._session, self._windows)
            session, windows, pushes = self._session, self._windows, self.pushes
            assert pushes is not None
            with unasked():
                scales = {SCALES: _own_scale(session, factor)}
                pushes.push({**scales, **gradients}, {**pushes.unsent(scales), **pushes.unsent(gradients)}, [SCALES])
                windows.settle(SCALES)
                if not session.was_left_alone(SCALES):
                    _check_scales(session)
                for key, gradient in gradients.items():
                    windows.settle(key)
                    if session.was_left_alone(key):
                        continue
                    if gradient is None and key in self.missed:
                        raise MeanError(
                            f"{line()}: gradients are used here, and parameter {key!r} has a gradient on another worker only. The script has "
                            f"seen None on this worker before, where DDP has the mean: use the parameter on all workers, or let the "
                            f"hub clip (clip_norm=) and unscale (skip_nonfinite=True)"
                        )
                    if gradient is None or repeats_elements(gradient):
                        gradient = parameters[key].grad = torch.empty_like(parameters[key], requires_grad=False)
                    windows.take([key], [torch.Tensor.detach(gradient)])

    def leave(self) -> None:
        """Leaves the job, if it was joined."""
        session, self._session, self.pushes = self._session, None, None
        if session is not None:
            self._windows.close()
            session.leave()


def scales_key(session: Session) -> Key:
    """Returns the key for the scales of the workers' scalers. The key has a place for each rank, if ranks count all workers.
    Three more places are for sums over all workers: of ones, of scales, and of squares of scales."""
    return Key((_ranks(session) + 3,))


def _ranks(session: Session) -> int:
    # Machines may have different numbers of workers, but all machines need the same key.
    return 0 if session.has_local_rank else session.world_size


def _own_scale(session: Session, factor: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
    """Returns this worker's part of the key. All other places are zero."""
    if factor is None:
        return None
    scale = 1 / (factor.item() or math.inf)
    scales = torch.zeros(_ranks(session) + 3)
    if not session.has_local_rank:
        scales[session.rank] = scale
    scales[-3:] = torch.tensor([1.0, scale, scale * scale])
    return scales


def _check_scales(session: Session) -> None:
    """Checks that all workers' scalers have the same scale. A worker may have no scaler.

    Raises:
        MeanError: two scales differ.
    """
    *scales, ones, sum_, squares = torch.mul(window(session, SCALES, "weights"), session.world_size).tolist()
    of_ranks = {rank: scale for rank, scale in enumerate(scales) if scale}
    advice = (
        "gradients with different scales have no mean. Give all ranks the same init_scale, load_state_dict() and update(), or wrap with "
        "skip_nonfinite=True and do not call scaler.unscale_(): each rank then divides its gradients by its own scale"
    )
    first, scale = next(iter(of_ranks.items()), (0, 0.0))
    for rank, other in of_ranks.items():
        if not math.isclose(scale, other, rel_tol=1e-5):
            raise MeanError(
                f"{line()}: the GradScaler of rank {first} has the scale {scale:g}, and the GradScaler of rank {rank} has the scale {other:g}: {advice}"
            )
    if ones * squares > sum_ * sum_ * (1 + 1e-5):  # equal only if all scales are equal
        raise MeanError(
            f"{line()}: the GradScalers of workers on different machines have different scales, whose mean is {sum_ / ones:g}: {advice}"
        )


def check(gradients: Mapping[str, torch.Tensor]) -> None:
    """Checks that the hub can take gradients.

    Raises:
        GradientError: a gradient is sparse.
    """
    sparse = next((key for key, each in gradients.items() if each.is_sparse), None)
    if sparse is not None:
        raise GradientError(f"parameter {sparse!r} has a sparse gradient; the hub takes only dense gradients: make its module with sparse=False")


def _advise(rank: int) -> None:
    if rank == 0 and is_within("clip_grad_norm_"):
        warnings.warn(
            f"{line()}: clip_grad_norm_ needs the mean of all workers' gradients before step(). This mean costs one more exchange of all "
            f"gradients in each step. DistributedOptimizer(..., clip_norm=1.0) clips by the 2-norm without this exchange. Then "
            f"leave clip_grad_norm_ out: optimizer.grad_norm is the norm",
            UserWarning,
            stacklevel=2,
        )


@contextlib.contextmanager
def _says_where() -> Iterator[None]:
    try:
        yield
    except MeanError:
        raise
    except Error as error:
        raise MeanError(
            f"{line()}: gradients are used here, where DDP would have the mean of all workers; the hub's mean did not arrive: "
            f"{error}. Use gradients at the same line on all workers, or read them after leave()"
        ) from error


__all__: List[str] = ["Made", "Mean", "Pushes", "check"]
