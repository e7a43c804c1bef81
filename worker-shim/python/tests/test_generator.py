"""The example of a generator: it writes with the weights of a job that trains, also after it was killed."""

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

EXAMPLE = Path(__file__).parent.parent / "examples" / "generator.py"
LINE = re.compile(r"round (\d+): loss ([0-9.]+)")
VERSIONS = 4


@contextlib.contextmanager
def running(tmp_path, *arguments, rank=0, **environment):
    """Runs the example, and kills it in the end. Yields the process. Its stderr is shown if the test fails."""
    ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLE), *arguments],
        cwd=tmp_path,
        env={**os.environ, **ranks, **environment},
        text=True,
        stdout=subprocess.PIPE,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def losses(process, count):
    """Returns the losses of the next lines of a process, by round."""
    found = [LINE.match(process.stdout.readline()) for _ in range(count)]
    assert all(found), f"the process ended with {process.wait()}"
    return {int(each[1]): float(each[2]) for each in found}


def test_a_generator_has_the_loss_of_each_round_of_its_trainers_also_after_it_was_killed(hub, tmp_path):
    train = ["train", "--rounds", "1000000", "--print-each", "1"]
    by_hub = {"PHUB_HUB": hub.address}
    with running(tmp_path, *train, **by_hub) as trainer, running(tmp_path, *train, rank=1, **by_hub):
        trained = losses(trainer, 1)
        written = []
        for _ in range(2):
            with running(tmp_path, "write", hub.address) as generator:
                written.append(losses(generator, VERSIONS))
        before, after = written
        assert max(before) < min(after)
        while max(trained) < max(after):
            trained.update(losses(trainer, 1))
    for number, loss in {**before, **after}.items():
        assert loss == pytest.approx(trained[number], rel=1e-5), f"round {number}"
    assert trained[max(after)] < trained[min(trained)]
