"""The examples with real frameworks train under torchrun, also after a killed worker.

`make frameworks` installs all of them. The test of a framework that is missing is skipped.
"""

import ast
import importlib.metadata
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 4):
    pytest.skip(f"phub.c10d needs torch 2.4 or later, and this is {torch.__version__}", allow_module_level=True)

EXAMPLES = Path(__file__).parent.parent / "examples"
LIMIT_S = 120
RANK = re.compile(r"^rank (\d+): weights (\S+), calls (\{.*\})$", re.MULTILINE)
LOSS = re.compile(r"^(?:step|epoch) \d+: loss (\S+)$", re.MULTILINE)


def launch(tmp_path, example, *arguments, options=(), workers=2):
    # Each run uses its own ports, and a hub that its rank 0 starts.
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(workers), "--standalone", *options]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PHUB_")}
    environment.update(PYTHONUNBUFFERED="1", OMP_NUM_THREADS="1")
    return subprocess.Popen(
        [*command, str(EXAMPLES / example), *arguments],
        cwd=tmp_path,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def rest_of(process):
    """Returns the output of a process up to its end. If the process hangs, it is ended with its workers, and the test fails."""
    try:
        return process.communicate(timeout=LIMIT_S)[0]
    except subprocess.TimeoutExpired:
        process.terminate()
        raise AssertionError(f"it hangs: {process.communicate()[0]}") from None


def check_ranks(said, workers=2):
    """Asserts that all ranks ended with the same weights, and that all ranks used the hub. Returns the number of each rank's
    all-reduces at the hub."""
    ranks = {rank: (weights, ast.literal_eval(calls)) for rank, weights, calls in RANK.findall(said)}
    assert sorted(ranks) == [str(rank) for rank in range(workers)], said
    assert len({weights for weights, _ in ranks.values()}) == 1, said
    assert all(calls["hub"]["allreduce"] > 0 for _, calls in ranks.values()), said
    return [calls["hub"]["allreduce"] for _, calls in ranks.values()]


@pytest.mark.parametrize(
    "example, package, calls",
    [("ddp.py", "torch", 30), ("with_accelerate.py", "accelerate", 45), ("with_lightning.py", "lightning", 75),
     ("with_transformers.py", "transformers", 40)],
)  # fmt: skip
def test_example(tmp_path, example, package, calls):
    pytest.importorskip(package)
    process = launch(tmp_path, example)
    said = rest_of(process)
    assert process.returncode == 0, said
    losses = [float(loss) for loss in LOSS.findall(said)]
    assert losses[-1] < 0.6 * losses[0], said
    # DDP has one bucket, so there is one call for each step, and one call for each mean of the loss.
    assert check_ranks(said) == [calls, calls], said
    print(f"{package} {importlib.metadata.version(package)}: losses {losses}")


def test_replicas_of_shards(tmp_path):
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(getattr(fsdp, "FSDPModule", None), "set_all_reduce_hook"):
        pytest.skip(f"FSDP's set_all_reduce_hook needs torch 2.7 or later, and this is {torch.__version__}")
    process = launch(tmp_path, "with_fsdp.py", workers=4)
    said = rest_of(process)
    assert process.returncode == 0, said
    losses = [float(loss) for loss in LOSS.findall(said)]
    assert losses[-1] < 0.6 * losses[0], said
    assert check_ranks(said, workers=4) == [30] * 4, said


def test_elastic_training_goes_on_after_a_kill(tmp_path):
    process = launch(tmp_path, "elastic.py", str(tmp_path / "checkpoint"), options=["--max_restarts", "1"])
    said = ""
    for line in process.stdout:
        said += line
        if line.startswith("rank 1 step 10:"):
            os.kill(int(line.split()[-1]), signal.SIGKILL)
            break
    said += rest_of(process)
    assert process.returncode == 0, said
    went_on = [int(step) for step in re.findall(r"continues at step (\d+)", said)]
    assert len(went_on) == 2 and went_on[0] == went_on[1] and 10 <= went_on[0] < 40, said
    check_ranks(said)
