#!/bin/bash
# Installs the package of `tools/dist/deb.sh` in a fresh Debian, which debootstrap makes in target/dist/root. Runs the package's
# service as systemd would, trains with a worker, and removes the package. Needs root for the chroot. Without root, debootstrap or
# Debian's packages, the script says so and exits with status 3.
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=$PWD/target/dist
root=$dir/root

not_had() {
    echo "dist: the Debian package was NOT INSTALLED: $1" >&2
    exit 3
}

[ "$(id -u)" = 0 ] || not_had "this needs root"
[ -z "${TARGET:-}" ] || [ "${TARGET%%-*}" = "$(uname -m)" ] || not_had "this machine does not run programs for $TARGET"
command -v debootstrap >/dev/null || sh tools/install.sh dist debootstrap || not_had "no debootstrap"
# shellcheck disable=SC2016
read -r mirror release < <(apt-get indextargets --format '$(REPO_URI) $(ORIGIN) $(CODENAME)' 2>/dev/null |
    awk '$2 == "Debian" && $3 !~ /-/ { print $1, $3; exit }') || true
[ -n "${release:-}" ] || not_had "apt-get on this machine gets nothing from Debian"

if [ "${1:-}" != in-namespace ]; then
    rm -rf "$root"
    debootstrap --variant=minbase --include=procps "$release" "$root" "$mirror" >"$dir/debootstrap.log" || not_had "see $dir/debootstrap.log"
    # In a separate network and process tree, the hub's port is free, and no process is left behind.
    exec unshare --net --pid --fork --mount-proc --kill-child bash "$0" in-namespace
fi
ip link set lo up
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
inside() { chroot "$root" "$@"; }
cp "$dir"/phub_*_"$(dpkg --print-architecture)".deb "$root/tmp/phub.deb"
inside dpkg -i /tmp/phub.deb
inside dpkg --verify phub
[ "$(inside stat -c '%U %a' /etc/phub/secret)" = "phub 600" ]

unit=$root/lib/systemd/system/phub-server.service
if command -v systemd-analyze >/dev/null; then
    systemd-analyze verify --root="$root" --man=no --recursive-errors=no "$unit"
fi
as_service() {
    # shellcheck disable=SC2046
    inside setpriv --reuid phub --regid phub --clear-groups env -i $(grep -v '^#' "$root/etc/phub/hub.env") "$@"
}
# shellcheck disable=SC2046
as_service $(sed -n 's/^ExecStartPre=//p' "$unit") | tee "$dir/doctor.log"
# dpkg did not install libibverbs, because the package only recommends it.
grep -q '^note *libibverbs.*cannot be loaded' "$dir/doctor.log"
# shellcheck disable=SC2046
as_service $(sed -n 's/^ExecStart=//p' "$unit") &
for _ in $(seq 200); do
    (exec 3<>/dev/tcp/127.0.0.1/7077) 2>/dev/null && break
    sleep 0.1
done
# With --hub-wait-s the run is no trial, so the hub writes a checkpoint.
PHUB_TOKEN_FILE=$root/etc/phub/secret "$root/usr/bin/phub-probe" --hub 127.0.0.1:7077 --rank 0 --workers 1 --rounds 5 --model googlenet --hub-wait-s 10
pkill -TERM -x phub-server
wait
[ -n "$(ls "$root/var/lib/phub")" ] || { echo "dist: the service has written no checkpoint" >&2; exit 1; }
inside dpkg --purge phub
[ ! -e "$root/etc/phub" ] && [ ! -e "$root/usr/bin/phub-server" ] && [ -n "$(ls "$root/var/lib/phub")" ]
echo "dist: the package installs, serves and goes; checkpoints stay"
