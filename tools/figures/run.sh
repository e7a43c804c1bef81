#!/bin/sh
# `make figures` runs this: P3's experiments on links of a limited rate, between network namespaces
# (docs/figures/schedules.md). Needs root. `tools/figures/run.sh --help` lists the options. `run.sh ibatch` runs iBatch's.
#
# It runs in its own network, mount and process namespaces. When this script ends, also by Ctrl-C or SIGKILL, the kernel
# removes everything that it made.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."

program=figures
[ "${1:-}" != ibatch ] || { program=ibatch && shift; }
case " $* " in *" --help "* | *" -h "*) exec python3 "$here/$program.py" --help ;; esac
sh "$here/../rig/ready.sh" || exit 1
if [ -z "${PHUB_FIGURES_BINARIES:-}" ]; then
    # shellcheck disable=SC2046
    cargo build --release --bins $(sh tools/setup.sh features)
fi
binaries=${PHUB_FIGURES_BINARIES:-${CARGO_TARGET_DIR:-target}/release}

# shellcheck disable=SC2016
setpriv --pdeathsig KILL unshare --net --mount --pid --fork --kill-child --mount-proc sh -c '
    mount -t tmpfs none /run/netns && exec python3 "$@"' figures \
    "$here/$program.py" --binaries "$binaries" "$@"
if [ "$program" = ibatch ]; then
    python3 -B "$here/ibatch_model.py" --binaries "$binaries" "$@"
    case " $* " in *" --no-pictures "*) ;; *) sh "$here/draw.sh" ibatch "$@" ;; esac
    exit 0
fi
python3 -B "$here/report.py" "$@"
case " $* " in *" --no-pictures "*) ;; *) sh "$here/draw.sh" "$@" ;; esac
