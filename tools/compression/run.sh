#!/bin/sh
# Measures the accuracy of each method by rounds and by time, on links of a limited rate (docs/figures/compression.md). Needs
# root, a release build, and a Python with the package phub, NumPy and scikit-learn (make python; PHUB_PYTHON_VENV). `--help`
# lists the options. `run.sh saved` measures the communication time that a method saves, and needs no Python package. `run.sh
# length` trains until accuracy is flat, over shared memory, and needs no root.
#
# The script runs in its own network, mount and process namespaces. When it ends, also by Ctrl-C or SIGKILL, the kernel removes
# everything that it made.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
python=${PHUB_PYTHON_VENV:-target/python/venv}/bin/python script=run.py
if [ "${1:-}" = saved ]; then python=python3 script=saved.py && shift; fi
command -v "$python" >/dev/null || {
    echo "compression: no $python: make python, or set PHUB_PYTHON_VENV" >&2
    exit 1
}
case " $* " in *" --help "* | *" -h "*) exec "$python" -B "$here/$script" "$@" ;; esac
if [ "${1:-}" = length ]; then exec "$python" -B "$here/$script" "$@"; fi
sh "$here/../rig/ready.sh" || exit 1
# shellcheck disable=SC2016
exec setpriv --pdeathsig KILL unshare --net --mount --pid --fork --kill-child --mount-proc sh -c '
    mount -t tmpfs none /run/netns && exec "$@"' compression "$python" -B "$here/$script" "$@"
