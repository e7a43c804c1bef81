#!/bin/sh
# Checks that this machine can run the rig of namespaces. If something is missing, the script names it and exits with status 1.
set -u

lacks() { echo "rig: $1" >&2 && exit 1; }

[ "$(id -u)" = 0 ] || lacks "needs root for network namespaces: run it as root or with sudo"
for program in ip tc unshare setpriv python3 sysctl; do
    command -v "$program" >/dev/null || lacks "no \`$program\`; on Debian: apt-get install iproute2 util-linux procps python3"
done
mkdir -p /run/netns
# shellcheck disable=SC2016
said=$(unshare --net --mount --pid --fork --kill-child --mount-proc sh -c '
    mount -t tmpfs none /run/netns && ip netns add trial && ip link add trial type veth peer name eth0 netns trial &&
    ip link add switch type bridge && tc qdisc add dev trial root tbf rate 1mbit latency 50ms burst 10kb' 2>&1) ||
    lacks "this kernel or container does not allow namespaces, veth, bridge or tbf: $said"
