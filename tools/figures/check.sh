#!/bin/sh
# Runs the tests of tools/figures and of the tables of tools/compression, a part of `make test`: first the tests that only
# compute, then small runs on the rig if this machine can run the rig.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
if ! command -v python3 >/dev/null; then
    echo "figures: SKIPPED: no python3 on this machine, so tools/figures is not tested" >&2
    exit 0
fi
if ! sh "$here/../rig/ready.sh"; then
    echo "figures: SKIPPED: the rig is not tested, only its pure parts" >&2
elif [ -z "${PHUB_FIGURES_BINARIES:-}" ]; then
    # shellcheck disable=SC2046
    cargo build --release --bins $(sh tools/setup.sh features)
    export PHUB_FIGURES_BINARIES="${CARGO_TARGET_DIR:-target}/release"
fi
cd "$here"
python3 -B -m unittest -v test_figures test_rig
cd ibatch
python3 -B -m unittest -v test_ibatch
cd ../levels
python3 -B -m unittest -v test_levels
cd ../traffic
python3 -B -m unittest -v test_traffic
cd ../phub
python3 -B -m unittest -v test_phub
cd ../../compression
python3 -B -m unittest -v test_tables
