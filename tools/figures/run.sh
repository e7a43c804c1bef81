#!/bin/sh
# Runs experiments on links of a limited rate, between network namespaces: P3's experiments without arguments, as for `make
# figures` (docs/figures/schedules.md), iBatch's experiments by `run.sh ibatch`, experiments with levels of hubs by `run.sh
# levels` and `run.sh racks` (docs/figures/levels.md), and PHub's experiments by `run.sh phub` (docs/figures/phub.md). `run.sh
# --help` lists the options. Needs root. Pictures need matplotlib, which this script installs in a virtual environment under
# target/.
#
# The script runs in its own network, mount and process namespaces. When it ends, also by Ctrl-C or SIGKILL, the kernel removes
# everything that it made.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."

measure=$here/figures.py tell=$here/report.py draw=$here/plot.py
if [ "${1:-}" = ibatch ]; then
    measure=$here/ibatch/measure.py tell=$here/ibatch/model.py draw=$here/ibatch/plot.py
    shift
fi
if [ "${1:-}" = levels ] || [ "${1:-}" = racks ]; then
    case $1 in levels) measure=$here/levels/measure.py ;; racks) measure=$here/levels/racks.py ;; esac
    tell=
    shift
    set -- --no-pictures "$@"
fi
if [ "${1:-}" = phub ]; then
    measure=$here/phub/box.py tell='' draw=$here/phub/draw.py
    shift
fi
case " $* " in *" --help "* | *" -h "*) exec python3 -B "$measure" --help ;; esac
sh "$here/../rig/ready.sh" || exit 1
if [ -z "${PHUB_FIGURES_BINARIES:-}" ]; then
    # shellcheck disable=SC2046
    cargo build --release --bins $(sh tools/setup.sh features)
fi
set -- --binaries "${PHUB_FIGURES_BINARIES:-${CARGO_TARGET_DIR:-target}/release}" "$@"

# shellcheck disable=SC2016
setpriv --pdeathsig KILL unshare --net --mount --pid --fork --kill-child --mount-proc sh -c '
    mount -t tmpfs none /run/netns && exec python3 "$@"' figures "$measure" "$@"
if [ -n "$tell" ]; then python3 -B "$tell" "$@"; fi
case " $* " in *" --no-pictures "*) exit 0 ;; esac
venv=target/figures-venv
if ! "$venv/bin/python" -c "import matplotlib" 2>/dev/null; then
    echo "figures: installing matplotlib in $venv" >&2
    if ! { python3 -m venv "$venv" && "$venv/bin/pip" install --quiet "matplotlib>=3.8,<4"; }; then
        echo "figures: no matplotlib, so no pictures, only the CSV. Needs Debian's python3-venv and PyPI" >&2
        exit 1
    fi
fi
"$venv/bin/python" "$draw" "$@"
