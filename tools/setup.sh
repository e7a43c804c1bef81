#!/bin/sh
# Installs missing packages on Debian or Ubuntu: `tools/setup.sh`. It does not fail if hwloc is missing. `tools/setup.sh features`
# prints the flag to build with hwloc, if hwloc is there.
set -u

# The bindings need hwloc 2.8; Debian 12 and Ubuntu 24.04 have it.
has_hwloc() { pkg-config --atleast-version=2.8 hwloc 2>/dev/null && pkg-config --exists libudev; }

if [ "${1:-}" = features ]; then
    ! has_hwloc || echo "--features hwloc"
    exit 0
fi

if ! command -v cargo >/dev/null; then
    echo "setup: no cargo on this machine; install Rust 1.95 or later (https://rustup.rs), then run this again" >&2
    exit 1
fi

missing=""
command -v cc >/dev/null || missing="$missing gcc libc6-dev"
command -v pkg-config >/dev/null || missing="$missing pkg-config"
has_hwloc || missing="$missing libhwloc-dev libudev-dev"
command -v objdump >/dev/null || missing="$missing binutils" # tests look at machine code
command -v strace >/dev/null || missing="$missing strace"    # and at system calls
[ -z "$missing" ] && exit 0

# shellcheck disable=SC2086
sh "$(dirname "$0")/install.sh" setup $missing || true
has_hwloc || echo "setup: no hwloc 2.8 or later: building without it; the topology comes from sysfs" >&2
command -v cc >/dev/null || { echo "setup: a C compiler (cc) is needed to link" >&2; exit 1; }
