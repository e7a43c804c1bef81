#!/bin/sh
# Trains with real frameworks from PyPI over the backend "phub", with Ray Train, and in the idioms of tests/truth. Runs all tests of
# PyTorch with PyPI's newest PyTorch: `tools/frameworks.sh`. Arguments go to pytest. The environment is in target/frameworks (or
# PHUB_FRAMEWORKS_DIR). It takes 6 GB, because PyPI's PyTorch includes CUDA. TORCH='torch==2.4.0' chooses another version.
set -eu
cd "$(dirname "$0")/.."
root=$PWD
dir=${PHUB_FRAMEWORKS_DIR:-$root/target/frameworks}
python=${PHUB_PYTHON:-/usr/bin/python3}

mkdir -p "$dir"
[ -x "$dir/venv/bin/python" ] || "$python" -m venv "$dir/venv"
export PATH="$dir/venv/bin:$PATH"
python -m pip install -q --disable-pip-version-check "${TORCH:-torch>=2.4}" numpy lightning accelerate transformers 'ray[train]' pytest \
    scikit-learn 'maturin>=1.9,<2'
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$root/target}"
python -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps --force-reinstall \
    "$root/worker-shim/python"
# The tests run from a directory without the sources, so that they use the installed package.
cd "$dir"
# OpenMP's threads spin while they wait. On busy cores they took most of the time of these tests.
export OMP_NUM_THREADS=1
python -m pip list --disable-pip-version-check 2>/dev/null | grep -E '^(torch|lightning|accelerate|transformers|ray|phub) '
tests=$root/worker-shim/python/tests
python -m pytest -q -c "$root/worker-shim/python/pyproject.toml" --rootdir "$root/worker-shim/python" \
    -p no:cacheprovider "$tests"/test_c10d*.py "$tests"/test_torch_*.py "$tests/test_frameworks.py" "$tests/test_ray.py" \
    "$tests/truth" "$@"
