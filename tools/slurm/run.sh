#!/bin/sh
# Runs the README's training under a real Slurm of two machines: `make slurm` (docs/launchers.md). The machines are network
# namespaces, which the kernel removes when this script ends, for any reason. Needs root. Run `make python` before.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
sh tools/rig/ready.sh || exit 1
missing=""
for program in munged:munge slurmctld:slurmctld slurmd:slurmd srun:slurm-client; do
    PATH=$PATH:/usr/sbin command -v "${program%%:*}" >/dev/null || missing="$missing ${program##*:}"
done
# shellcheck disable=SC2086
[ -z "$missing" ] || sh tools/install.sh slurm $missing
venv=${PHUB_PYTHON_DIR:-target/python}/venv
if ! "$venv/bin/python" -c "import phub.torch, sklearn" 2>/dev/null; then
    echo "slurm: $venv lacks phub, torch or scikit-learn: run \`make python\` first" >&2
    exit 1
fi
PATH=$(cd "$venv/bin" && pwd):$PATH:/usr/sbin
export PATH
# shellcheck disable=SC2016
exec setpriv --pdeathsig KILL unshare --net --mount --pid --fork --kill-child --mount-proc sh -c '
    mount -t tmpfs none /run/netns && exec python3 -B "$@"' slurm "$here/slurm.py"
