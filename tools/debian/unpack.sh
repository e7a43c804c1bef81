#!/bin/sh
# Unpacks packages of Debian unstable in a folder: `tools/debian/unpack.sh FOLDER ARCHITECTURE [PACKAGE...] [-- PACKAGE...]`.
# Packages before the two hyphens are unpacked with their dependencies, and packages after them without.
#
# The script installs nothing. It needs Debian's apt, but no root. If it cannot download the packages, it says so and exits with
# status 3.
set -eu
folder=$1
architecture=$2
shift 2

not_had() {
    echo "debian: $architecture packages: NOT AVAILABLE: $1" >&2
    exit 3
}

command -v apt-get >/dev/null || not_had "this machine has no apt-get"
# shellcheck disable=SC2016
mirror=$(apt-get indextargets --format '$(REPO_URI) $(ORIGIN) $(RELEASE)' 2>/dev/null |
    awk '$2 == "Debian" && $3 !~ /-/ { print $1; exit }')
[ -n "$mirror" ] || not_had "apt-get on this machine gets nothing from Debian"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$folder" "$work/packages" "$work/lists/partial" "$work/cache/archives/partial"
: >"$work/status"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror unstable main" >"$work/sources.list"
cat >"$work/apt.conf" <<CONF
APT::Architecture "$architecture";
APT::Architectures { "$architecture"; };
Dir::Etc::sourcelist "$work/sources.list";
Dir::Etc::sourceparts "-";
Dir::State::lists "$work/lists";
Dir::State::status "$work/status";
Dir::Cache "$work/cache";
APT::Sandbox::User "";
CONF
export APT_CONFIG="$work/apt.conf"
apt-get update -qq >&2 || not_had "Debian unstable cannot be reached"
whole=
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    whole="$whole $1"
    shift
done
[ $# = 0 ] || shift
if [ -n "$whole" ]; then
    # shellcheck disable=SC2086
    whole=$(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
        --no-enhances $whole | grep '^[a-z]' | sort -u)
fi
# shellcheck disable=SC2086
(cd "$work/packages" && apt-get download -qq "$@" $whole >&2) || not_had "they cannot be downloaded"
for package in "$work"/packages/*.deb; do dpkg-deb -x "$package" "$folder"; done
