#!/usr/bin/env bash
# Runs MXNet's KVStore on this machine, for its row in docs/figures/one-machine.md. MXNet's last release needs an older
# Python and numpy: --install puts them into a virtual environment beside what cargo builds. Prints one JSON object.
#
#     tools/figures/mxnet/kvstore.sh --install
#     for run in 1 2 3 4 5; do target/release/phub-probe --json --workers 4; tools/figures/mxnet/kvstore.sh --tuned; done
set -euo pipefail

usage() {
    cat <<'END_OF_USAGE'
usage: kvstore.sh [--install] [--tuned] [OPTION...]

  --install         make the virtual environment (PyPI's mxnet 1.9.1 and numpy 1.23.5), and end
  --tuned           with the settings that gave most; without it, MXNet as shipped with one server
  --workers N       workers                                             (4)
  --tensors N,N,... f32 elements of each key                            (ResNet-50's)
  --rounds N        measured rounds; the median counts                  (20)
  --warmup N        rounds before them                                  (3)
  --servers N       server processes                                    (1)
END_OF_USAGE
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
environment=${CARGO_TARGET_DIR:-$here/../../../target}/peers/mxnet
complete=$environment/complete # written last

# The first Python that wheels of both packages are for, and that can make an environment with pip.
find_python() {
    local candidate
    for candidate in python3.{11,10,9} /usr/bin/python3 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.{11,10,9}.*/bin/python3; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 9) <= sys.version_info < (3, 12))' \
            2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "kvstore.sh: no Python from 3.9 to 3.11 with venv here; install python3.11-venv (named as in" \
        "Debian 12), or such a Python with pyenv" >&2
    exit 3
}

case ${1:-} in
-h | --help)
    usage
    exit
    ;;
--install)
    if [[ -e $complete ]]; then exit; fi
    python=$(find_python)
    "$python" -m venv --clear "$environment"
    "$environment/bin/pip" install --quiet --disable-pip-version-check mxnet==1.9.1 numpy==1.23.5
    "$environment/bin/python" -c 'import mxnet; print("installed MXNet", mxnet.__version__)'
    touch "$complete"
    exit
    ;;
esac

if [[ ! -e $complete ]]; then
    echo "kvstore.sh: MXNet is not installed; run tools/figures/mxnet/kvstore.sh --install, which" \
        "puts some 250 MB beside what cargo builds" >&2
    exit 3
fi

if [[ ${1:-} == --tuned ]]; then
    # One thread for each process's operators, and Unix sockets: where processes share few cores, OpenMP's
    # teams are in each other's way. docs/testing.md says what else was tried.
    export OMP_NUM_THREADS=1 DMLC_LOCAL=1
    shift
fi

# No bytecode: it would lie in the tree.
PYTHONPATH="$here/../../../benches/peers" exec "$environment/bin/python" -B "$here/kvstore.py" "$@"
