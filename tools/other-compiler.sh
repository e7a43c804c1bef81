#!/bin/sh
# Gets the rustc of Debian unstable, and runs the unit tests of fabric and pbox-core with it, in the release profile:
# `tools/other-compiler.sh`.
#
# It installs nothing: it unpacks the packages (100 MB) in target/other-compiler, and runs them there with their own C
# library. It needs Debian's apt, but no root. If it cannot get the packages, it says so and exits with status 3.
set -eu
cd "$(dirname "$0")/.."
dir=$PWD/target/other-compiler
root=$dir/root

not_had() {
    echo "other-compiler: NOT RUN: $1" >&2
    exit 3
}

command -v python3 >/dev/null || not_had "this machine has no python3"
if ! [ -x "$dir/rustc" ]; then
    command -v apt-get >/dev/null || not_had "this machine has no apt-get"
    # shellcheck disable=SC2016
    mirror=$(apt-get indextargets --format '$(REPO_URI) $(ORIGIN) $(RELEASE)' 2>/dev/null |
        awk '$2 == "Debian" && $3 !~ /-/ { print $1; exit }')
    [ -n "$mirror" ] || not_had "apt-get on this machine gets nothing from Debian"
    rm -rf "$dir"
    mkdir -p "$root" "$dir/packages" "$dir/apt/lists/partial" "$dir/apt/cache/archives/partial"
    : >"$dir/apt/status"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror unstable main" >"$dir/apt/sources.list"
    cat >"$dir/apt/apt.conf" <<END
Dir::Etc::sourcelist "$dir/apt/sources.list";
Dir::Etc::sourceparts "-";
Dir::State::lists "$dir/apt/lists";
Dir::State::status "$dir/apt/status";
Dir::Cache "$dir/apt/cache";
APT::Sandbox::User "";
END
    export APT_CONFIG="$dir/apt/apt.conf"
    apt-get update -qq >&2 || not_had "Debian unstable cannot be reached"
    # What the compiler and its libraries need to run. The C compiler is the machine's.
    libraries=$(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
        --no-enhances libstd-rust-dev | grep '^[a-z]' | sort -u)
    # shellcheck disable=SC2086
    (cd "$dir/packages" && apt-get download -qq rustc $libraries >&2) || not_had "its packages cannot be downloaded"
    for package in "$dir"/packages/*.deb; do dpkg-deb -x "$package" "$root"; done
    loader=$(find "$root" -name 'ld-linux-*.so.*' | head -n 1)
    # Not a shell script: sh drops variables with a hyphen in their names, and cargo gives such variables to the compiler.
    cat >"$dir/rustc" <<END
#!$(python3 -c 'import sys; print(sys.executable)')
import os, sys
os.execv("$loader", ["$loader", "--library-path", "$(dirname "$loader")", "$root/usr/bin/rustc",
                     "--sysroot", "$root/usr", *sys.argv[1:]])
END
    chmod +x "$dir/rustc"
fi

export RUSTC="$dir/rustc" CARGO_TARGET_DIR="$dir/target"
"$RUSTC" --version || not_had "its compiler does not start on this machine"
# shellcheck disable=SC2046
python3 tools/miscompiled.py $(sh tools/setup.sh features)
"${CARGO:-cargo}" test --release --lib -p fabric -p pbox-core
