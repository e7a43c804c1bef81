#!/bin/sh
# Runs each fuzz target for SECONDS, one after the other, and stops at the first crash: `tools/fuzz.sh SECONDS [TARGET...]`.
# New inputs go to fuzz/corpus-grown, which git ignores.
set -eu
cd "$(dirname "$0")/.."
seconds=$1
shift
if ! cargo fuzz --version >/dev/null 2>&1; then
    echo "fuzz: no cargo-fuzz; install it (cargo install cargo-fuzz) and a nightly compiler (rustup toolchain install nightly)" >&2
    exit 1
fi
[ $# -gt 0 ] || set -- $(cargo +nightly fuzz list --fuzz-dir fuzz)
cargo +nightly fuzz build --fuzz-dir fuzz --features libfuzzer
for target in "$@"; do
    echo "fuzz: $target for $seconds s" >&2
    mkdir -p "fuzz/corpus-grown/$target"
    cargo +nightly fuzz run --fuzz-dir fuzz --features libfuzzer "$target" "fuzz/corpus-grown/$target" "fuzz/corpus/$target" -- \
        -max_total_time="$seconds" -timeout=25 -rss_limit_mb=4096 -print_final_stats=1
done
