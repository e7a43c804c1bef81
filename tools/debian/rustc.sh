#!/bin/sh
# Downloads the rustc of Debian unstable and prints its path: `tools/debian/rustc.sh [TARGET]`. This rustc compiles for this
# machine, and for TARGET if it is given.
#
# The compiler (100 MB of packages) is in target/other-compiler, and uses its own C library. The C compiler is this machine's. If
# the compiler cannot be downloaded or does not run, the script says so and exits with status 3.
set -eu
cd "$(dirname "$0")/../.."
target=${1:-}
dir=$PWD/target/other-compiler
root=$dir/root

not_had() {
    echo "rustc of Debian unstable: NOT AVAILABLE: $1" >&2
    exit 3
}

command -v python3 >/dev/null || not_had "this machine has no python3"
command -v dpkg >/dev/null || not_had "this machine has no dpkg"
case $target in
"") architecture= ;;
aarch64-unknown-linux-gnu) architecture=arm64 ;;
*) not_had "no Debian architecture is known for $target" ;;
esac
if ! [ -x "$dir/rustc" ] || ! [ -d "$root/usr/lib/rustlib/$target" ]; then
    # Both folders are made again, because a standard library fits only the compiler of its own version.
    rm -rf "$dir/rustc" "$root"
    sh tools/debian/unpack.sh "$root" "$(dpkg --print-architecture)" libstd-rust-dev -- rustc
    [ -z "$architecture" ] || sh tools/debian/unpack.sh "$root" "$architecture" -- libstd-rust-dev
    loader=$(find "$root" -name 'ld-linux-*.so.*' | head -n 1)
    # The wrapper is not a shell script, because sh drops environment variables with a hyphen in their names. Cargo passes such
    # variables to the compiler.
    cat >"$dir/rustc" <<PYTHON
#!$(python3 -c 'import sys; print(sys.executable)')
import os, sys
os.execv("$loader", ["$loader", "--library-path", "$(dirname "$loader")", "$root/usr/bin/rustc",
                     "--sysroot", "$root/usr", *sys.argv[1:]])
PYTHON
    chmod +x "$dir/rustc"
fi
"$dir/rustc" --version >&2 || not_had "it does not start on this machine"
echo "$dir/rustc"
