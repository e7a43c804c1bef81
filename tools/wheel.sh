#!/bin/sh
# Builds the Python package as its users do, and installs it in a virtual environment: `tools/wheel.sh`. The environment is in
# target/python (or PHUB_PYTHON_DIR). `tools/wheel.sh environment` only makes the environment. tools/pytest.sh runs the tests in it.
#
# PyTorch, scikit-learn and NumPy are the system's. PHUB_PYTHON names another interpreter, for example of an environment with a
# newer PyTorch.
set -eu
cd "$(dirname "$0")/.."
root=$PWD
dir=${PHUB_PYTHON_DIR:-$root/target/python}
python=${PHUB_PYTHON:-/usr/bin/python3}

missing=""
for package in venv numpy pytest sklearn torch; do
    "$python" -c "import $package" 2>/dev/null || missing="$missing python3-$package"
done
"$python" -c "import ensurepip" 2>/dev/null || missing="$missing python3-venv python3-pip"
if [ -n "$missing" ] && [ -z "${PHUB_PYTHON:-}" ]; then
    # shellcheck disable=SC2086
    sh tools/install.sh python $missing || echo "python: tests that need them are skipped" >&2
fi
if ! "$python" -c "import ensurepip, numpy, pytest" 2>/dev/null; then
    echo "python: NOT RUN: $python lacks venv, numpy or pytest, and this script could not install them" >&2
    exit 0
fi

mkdir -p "$dir"
export PATH="$dir/venv/bin:$PATH"
[ -x "$dir/venv/bin/python" ] || "$python" -m venv --system-site-packages "$dir/venv"
python -m pip install -q --disable-pip-version-check 'maturin>=1.9,<2' 'mypy>=1.8' 'prometheus-client>=0.20' 'pytest-xdist>=3.5,<4'
[ "${1:-}" != environment ] || exit 0
# The features are those of the programs. So cargo builds the common crates only once for all tests.
MATURIN_PEP517_ARGS=$(sh "$root/tools/setup.sh" features)
export MATURIN_PEP517_ARGS
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$root/target}"
python -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps --force-reinstall \
    "$root/worker-shim/python"
