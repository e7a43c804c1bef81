"""The handling of errors while memory is pinned, with an imitated CUDA runtime. The tests need no GPU."""

import pytest

torch = pytest.importorskip("torch")

from phub.torch._windows import pin, unpin  # noqa: E402

CPU = torch.device("cpu")
NOT_PERMITTED = 800


class Runtime:
    """An imitated CUDA runtime. Like the real runtime, it keeps the last error for the next caller that asks for the error."""

    def __init__(self, refused):
        self.refused, self.pinned, self.last = refused, [], 0

    def _answer(self, address):
        if address in self.refused:
            self.last = NOT_PERMITTED
            return NOT_PERMITTED
        return 0

    def cudaHostRegister(self, address, bytes_, flags):
        self.pinned.append((address, bytes_, flags))
        return self._answer(address)

    def cudaHostUnregister(self, address):
        return self._answer(address)


@pytest.fixture
def runtime(monkeypatch):
    runtime = Runtime(refused=set())
    ones = torch.ones

    def launch(*shape, **options):
        last, runtime.last = runtime.last, 0
        if last:
            raise RuntimeError(f"CUDA error: {last}")
        return ones(*shape, **options)

    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch, "ones", launch)
    return runtime


def test_a_window_that_cannot_be_pinned_leaves_no_error_for_the_script(runtime):
    first, empty, second = torch.zeros(4), torch.zeros(0), torch.zeros(2)
    runtime.refused.add(first.data_ptr())
    assert pin([first, empty, second], CPU) == [second.data_ptr()]
    assert runtime.pinned == [(first.data_ptr(), 16, 0), (second.data_ptr(), 8, 0)]
    torch.ones(1)  # would raise an error that was left behind


def test_a_window_that_cannot_be_unpinned_leaves_no_error_either(runtime):
    window = torch.zeros(4)
    runtime.refused.add(window.data_ptr())
    unpin([window.data_ptr()], CPU)
    torch.ones(1)
