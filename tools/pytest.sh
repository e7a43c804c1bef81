#!/bin/sh
# Checks the types of the Python package that tools/wheel.sh has installed, and runs its tests: `tools/pytest.sh`. Arguments go to
# pytest. Tests that need a missing package are skipped, with a message.
set -eu
cd "$(dirname "$0")/.."
root=$PWD
dir=${PHUB_PYTHON_DIR:-$root/target/python}
if [ ! -x "$dir/venv/bin/python" ]; then
    echo "python: NOT RUN: no environment in $dir/venv, see tools/wheel.sh" >&2
    exit 0
fi
export PATH="$dir/venv/bin:$PATH"
# The tests run from a directory without the sources, so that they use the installed package.
cd "$dir"
mypy --config-file "$root/worker-shim/python/pyproject.toml" -p phub
python -m mypy.stubtest --ignore-disjoint-bases phub._phub
# OpenMP's threads spin while they wait. On busy cores they took most of the time of these tests.
export OMP_NUM_THREADS=1
# More processes than cores, because most tests wait for something.
python -m pytest -q -n "$((2 * $(nproc) + 1))" -c "$root/worker-shim/python/pyproject.toml" --rootdir "$root/worker-shim/python" \
    -p no:cacheprovider "$root/worker-shim/python/tests" "$@"
