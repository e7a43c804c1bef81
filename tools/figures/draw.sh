#!/bin/sh
# Draws what tools/figures/run.sh has measured, with matplotlib in a virtual environment under target/.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
venv=target/figures-venv
if ! "$venv/bin/python" -c "import matplotlib" 2>/dev/null; then
    echo "figures: installing matplotlib in $venv" >&2
    if ! { python3 -m venv "$venv" && "$venv/bin/pip" install --quiet "matplotlib>=3.8,<4"; }; then
        echo "figures: no matplotlib, so no pictures, only the CSV. Needs Debian's python3-venv and PyPI" >&2
        exit 1
    fi
fi
program=plot
[ "${1:-}" != ibatch ] || { program=ibatch_plot && shift; }
"$venv/bin/python" "$here/$program.py" "$@"
