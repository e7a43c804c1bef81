"""The test of truth finds the fault of each broken idiom, names it, and continues with the next idiom."""

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

import phub  # noqa: E402

from . import broken  # noqa: E402
from .judge import Case, Judge  # noqa: E402
from .records import Records, difference  # noqa: E402


@pytest.fixture(scope="module")
def judge():
    with phub.serve(cores=1, idle="sleep", heartbeat_limit_s=30) as hub:
        judge = Judge(hub.address)
        yield judge
        judge.stop()


WRONG = [
    (broken.WRONG_NUMBER, "DIFFERS", "by 5e-06: loss (its number 2)"),
    (broken.ONE_VALUE_MORE, "DIFFERS", "2 values were recorded, by torch 1"),
    (broken.HANG, "FAILED", "Hang at `threading.Event().wait()`"),
    (broken.DEATH, "FAILED", "status 3"),
    (broken.ERROR_OF_PYTHON, "FAILED", 'KeyError at `{}["missing"]`'),
    (broken.ERROR_OF_THE_HUB, "error", 'OrderError at `raise phub.OrderError("out of order")`: out of order'),
    (broken.ERROR_OF_TORCH, "FAILED", "no error: torch raises RuntimeError"),
    (broken.UNEXPECTED_ERROR_OF_TORCH, "FAILED", "torch itself: RuntimeError: torch refuses it"),
]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("idiom, word, text", WRONG, ids=lambda each: getattr(each, "name", None))
def test_what_is_wrong_is_named_and_the_next_idiom_runs(judge, idiom, word, text, workers):
    outcome = judge.outcome(Case(idiom, workers, "tcp"))
    assert outcome.word == word and text in outcome.text, outcome
    assert not outcome.passes
    after = judge.outcome(Case(broken.RIGHT, workers, "tcp"))
    assert after.word == "equal" and after.passes, after


def records(**values):
    found = Records(reads_modules=True)
    found.add((), values)
    return found.values


def test_tensors_are_measured_by_their_largest_value():
    ours = records(weight=torch.tensor([100.0, 1.0]))
    assert difference(ours, records(weight=torch.tensor([100.0, 1.5])))[0] == pytest.approx(0.005)
    assert difference(ours, records(weight=torch.tensor([100.0, float("nan")])))[0] == np.inf
    assert difference(ours, records(weight=torch.ones(3)))[0] == np.inf
    nan = records(weight=torch.tensor([float("nan"), 1.0]))
    assert difference(nan, nan)[0] == 0.0
    assert difference(records(zero=torch.zeros(2)), records(zero=torch.full((2,), 1e-9)))[0] == np.inf


def test_labels_and_text_must_be_equal():
    assert difference(records(name="SGD", empty=None), records(name="SGD", empty=None))[0] == 0.0
    assert difference(records(name="SGD"), records(name="Adam"))[0] == np.inf
    assert difference(records(loss=1.0), records(norm=1.0))[0] == np.inf
