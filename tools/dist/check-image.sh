#!/bin/bash
# Builds the image of tools/dist/Containerfile with buildah, on a Debian that debootstrap makes. Runs the image as its user: the
# doctor, the hub, its health check, a worker, and the stop. Run `tools/dist/deb.sh` before. Needs root. Without root, buildah,
# debootstrap or Debian's packages, the script says so and exits with status 3.
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=$PWD/target/dist

not_had() {
    echo "dist: the container image was NOT BUILT: $1" >&2
    exit 3
}

[ "$(id -u)" = 0 ] || not_had "this needs root"
[ -z "${TARGET:-}" ] || [ "${TARGET%%-*}" = "$(uname -m)" ] || not_had "this machine does not run programs for $TARGET"
for program in debootstrap buildah; do
    command -v "$program" >/dev/null || sh tools/install.sh dist "$program" || not_had "no $program"
done
# shellcheck disable=SC2016
read -r mirror < <(apt-get indextargets --format '$(REPO_URI) $(ORIGIN) $(CODENAME)' 2>/dev/null |
    awk '$2 == "Debian" && $3 !~ /-/ { print $1; exit }') || true
[ -n "${mirror:-}" ] || not_had "apt-get on this machine gets nothing from Debian"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Images are plain directories, and commands run by chroot, so that the script works in a container, too.
builder() { buildah --storage-driver vfs --root "$work/storage" --runroot "$work/run" "$@"; }
debootstrap --variant=minbase bookworm "$work/root" "$mirror" >"$dir/debootstrap.log" || not_had "see $dir/debootstrap.log"
base=$(builder from scratch)
builder copy -q "$base" "$work/root" / >/dev/null
builder commit -q "$base" base >/dev/null
builder rm "$base" >/dev/null
rm -rf "$work/root"
builder bud -q --isolation chroot --format docker --from base --tag phub --file tools/dist/Containerfile . >/dev/null
image=$(builder from phub)
root=$(builder mount "$image")
[ ! -e "$root/etc/phub/secret" ] || { echo "dist: the image has a secret" >&2; exit 1; }
du -sh "$root" | sed "s/^\(\S*\).*/dist: container image: \1 unpacked/"
settings() { builder inspect --type container --format "{{.Docker.Config.$1}}" "$image"; }
[ "$(settings User)" = phub ]
# In a separate network and process tree, the hub's port is free, and no process is left behind.
export root env="$(builder inspect --type container --format '{{range .Docker.Config.Env}}{{.}} {{end}}' "$image")"
export health="$(builder inspect --type container --format '{{index .Docker.Config.Healthcheck.Test 3}}' "$image")"
unshare --net --mount --pid --fork --mount-proc --kill-child bash -euo pipefail -c '
ip link set lo up
mount -t proc proc "$root/proc" && mount --rbind /sys "$root/sys" && mount --rbind /dev "$root/dev"
token=$("$root/usr/bin/phub-server" token --new)
inside() { chroot --userspec=phub:phub "$root" env -i $env PHUB_TOKEN="$token" "$@"; }
inside phub-server doctor
inside phub-server serve &
for _ in $(seq 200); do
    inside bash -c "$health" 2>/dev/null && healthy=1 && break
    sleep 0.1
done
[ -n "${healthy:-}" ] || { echo "dist: the container is not healthy" >&2; exit 1; }
# With --hub-wait-s the run is no trial, so the hub writes a checkpoint.
PHUB_TOKEN=$token "$root/usr/bin/phub-probe" --hub 127.0.0.1:7077 --rank 0 --workers 1 --rounds 5 --model googlenet --hub-wait-s 10
pkill -TERM -x phub-server
wait
[ -n "$(ls "$root/var/lib/phub")" ] || { echo "dist: the container has written no checkpoint" >&2; exit 1; }
'
echo "dist: the image is built, is healthy, serves and stops"
