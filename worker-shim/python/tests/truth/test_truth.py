"""Each idiom gives the same numbers with the hub as with torch, from the first step on. The idioms in `errors.py` give their
error."""

import pytest

pytest.importorskip("torch")

import phub  # noqa: E402

from .errors import ERRORS, MOST, PROMISED  # noqa: E402
from .idiom import idioms  # noqa: E402
from .judge import Judge, cases  # noqa: E402


@pytest.fixture(scope="module")
def judge():
    with phub.serve(cores=1, idle="sleep", heartbeat_limit_s=30) as hub:
        judge = Judge(hub.address)
        yield judge
        judge.stop()


def test_errors_are_few():
    assert len(ERRORS) <= MOST
    assert set(ERRORS) <= set(idioms())
    assert not [name for name in ERRORS if name.split(".")[0] in PROMISED]


@pytest.mark.parametrize("case", cases(), ids=str)
def test_truth(judge, case):
    outcome = judge.outcome(case)
    if outcome.word == "skipped":
        pytest.skip(outcome.text)
    assert outcome.passes, f"{outcome}\n{outcome.details}"
