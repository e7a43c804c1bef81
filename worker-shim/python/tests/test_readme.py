"""The README's example, run as printed."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

README = Path(__file__).parents[3] / "README.md"


def test_the_example_runs_and_its_loss_falls(tmp_path):
    section = README.read_text().split("## Train with PyTorch")[1]
    script = tmp_path / "train.py"
    script.write_text(section.split("```python\n")[1].split("```")[0])
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    rank, loss = run.stdout.split(": loss ")
    assert rank == "rank 0" and float(loss) < 0.5, "2.3 is a guess"
