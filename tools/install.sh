#!/bin/sh
# Installs packages by apt-get, as root or with sudo: `tools/install.sh WHO PACKAGE...`. If the packages cannot be installed,
# the script prints an error that begins with WHO, and fails.
set -u
who=$1
shift
as_root=""
[ "$(id -u)" = 0 ] || as_root=sudo
if ! command -v apt-get >/dev/null || ! command -v ${as_root:-sh} >/dev/null; then
    echo "$who: missing: $*; install them (this script can on Debian and Ubuntu, as root or with sudo)" >&2
    exit 1
fi
echo "$who: installing $*" >&2
$as_root apt-get update -qq >&2
DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends "$@" >&2 || {
    echo "$who: not all of $* could be installed" >&2
    exit 1
}
