#!/bin/sh
# Runs the unit tests of fabric and pbox-core with the rustc of Debian unstable, in the release profile:
# `tools/other-compiler.sh`. If the compiler cannot be downloaded or does not run, the script says so and exits with status 3.
set -eu
cd "$(dirname "$0")/.."
RUSTC=$(sh tools/debian/rustc.sh)
export RUSTC CARGO_TARGET_DIR="$PWD/target/other-compiler/target"
# shellcheck disable=SC2046
python3 tools/miscompiled.py $(sh tools/setup.sh features)
"${CARGO:-cargo}" test --release --lib -p fabric -p pbox-core
