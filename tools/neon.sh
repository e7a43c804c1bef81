#!/bin/sh
# Builds the tests of kernels and codecs for 64-bit Arm, and runs them with qemu. Needs Debian's packages gcc-aarch64-linux-gnu,
# libc6-dev-arm64-cross and qemu-user, and Rust's standard library for the target (rustup target add).
set -eu
cd "$(dirname "$0")/.."
target=aarch64-unknown-linux-gnu
for program in aarch64-linux-gnu-gcc qemu-aarch64; do
    if ! command -v "$program" >/dev/null; then
        echo "tools/neon.sh: $program is missing; on Debian or Ubuntu:" >&2
        echo "    apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user" >&2
        exit 1
    fi
done
if ! [ -d "$(rustc --print sysroot)/lib/rustlib/$target" ]; then
    echo "tools/neon.sh: no standard library for $target; run: rustup target add $target" >&2
    exit 1
fi
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
exec "${CARGO:-cargo}" test --release -p pbox-core --lib --target "$target" -- kernels codec
