#!/bin/sh
# Installs the wheel of `tools/dist/wheel.sh` as a user without Rust does, in a new virtual environment of each Python from
# 3.9 on that this machine has (PHUB_PYTHONS names other Pythons). Then it uses the wheel: the commands, a session of two workers,
# and the probe. For a wheel of another machine (TARGET) it runs tools/dist/check-emulated.sh.
set -eu
cd "$(dirname "$0")/../.."
dir=$PWD/target/dist
host=$(rustc -vV | sed -n 's/host: //p')
target=${TARGET:-$host}
wheel=$(echo "$dir"/phub-*_"${target%%-*}".whl)
[ -f "$wheel" ] || { echo "dist: no wheel in $dir; run: make dist" >&2; exit 1; }
"$dir/venv/bin/auditwheel" show "$wheel"
"$dir/venv/bin/abi3audit" --strict "$wheel"
[ "$target" = "$host" ] || exec sh tools/dist/check-emulated.sh "$wheel"

# A path without Rust and other compilers of the user.
PATH=/usr/bin:/bin
export PATH
pythons=${PHUB_PYTHONS:-$(find /usr/bin /usr/local/bin "$HOME"/.pyenv/versions/*/bin -name 'python3.[0-9]*' 2>/dev/null |
    grep -E 'python3\.[0-9]+$' | sort -u)}
tried=
for python in $pythons; do
    "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 9))' 2>/dev/null || continue
    rm -rf "$dir/clean"
    "$python" -m venv "$dir/clean"
    "$dir/clean/bin/pip" install -q --disable-pip-version-check --only-binary :all: "$wheel"
    for file in licenses/phub-*-licences.txt sboms/phub-*.cdx.json; do
        set -- "$dir"/clean/lib/python*/site-packages/phub-*.dist-info/$file
        [ -s "$1" ] || { echo "dist: $wheel has no $file in its dist-info: see tools/dist/wheel.sh" >&2; exit 1; }
    done
    (cd "$dir/clean" && PATH=$dir/clean/bin:$PATH && phub-server --version && phub-probe --version && python "$OLDPWD/tools/dist/use.py")
    tried="$tried $("$python" -V | cut -d' ' -f2)"
done
[ -n "$tried" ] || { echo "dist: this machine has no Python from 3.9 on with venv and pip" >&2; exit 1; }
"$dir/clean/bin/phub-probe" --workers 2 --rounds 3
rm -rf "$dir/clean"
echo "dist: the wheel works with Python$tried"
