#!/bin/sh
# Measures steps with the hub, and with DDP over gloo, on links of a limited rate. Four workers have 1 Gbit/s each, and the hub
# has four times that rate. The hub and each worker are network namespaces of this machine. Needs root, a release build of
# phub-server and `make python`.
#
#     sudo worker-shim/python/benches/links.sh [options of steps.py]
#
# The script runs in its own network and process namespaces, which the kernel removes when the script ends.
set -eu
if [ "${PHUB_LINKS:-}" != inside ]; then
    [ "$(id -u)" = 0 ] || { echo "links: needs root, to make network namespaces" >&2; exit 1; }
    PHUB_LINKS=inside exec unshare --net --mount --pid --fork --kill-child "$0" "$@"
fi
root=$(cd "$(dirname "$0")/../../.." && pwd)
python=${PHUB_PYTHON_VENV:-$root/target/python/venv}/bin/python
server=${PHUB_SERVER:-$root/target/release/phub-server}
[ -x "$python" ] || { echo "links: no $python: make python, or set PHUB_PYTHON_VENV" >&2; exit 1; }
[ -x "$server" ] || { echo "links: no $server: cargo build --release, or set PHUB_SERVER" >&2; exit 1; }
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
logs=$(mktemp -d)

# Makes a machine, with this name, address, and rate in both directions.
machine() {
    ip netns add "$1"
    ip link add "port-$1" type veth peer name eth0 netns "$1"
    ip link set "port-$1" master switch up
    ip -n "$1" addr add "$2/24" dev eth0
    ip -n "$1" link set eth0 up
    ip -n "$1" link set lo up
    tc qdisc add dev "port-$1" root tbf rate "$3" latency 50ms burst 1mb
    ip netns exec "$1" tc qdisc add dev eth0 root tbf rate "$3" latency 50ms burst 1mb
}
ip link add switch type bridge
ip link set switch up
machine hub 10.0.0.9 4gbit
ip netns exec hub "$server" serve --listen 10.0.0.9:7077 --idle sleep >"$logs/hub" 2>&1 &
for rank in 0 1 2 3; do machine "worker$rank" "10.0.0.$((rank + 1))" 1gbit; done
for rank in 3 2 1 0; do
    env RANK=$rank LOCAL_RANK=0 WORLD_SIZE=4 LOCAL_WORLD_SIZE=1 MASTER_ADDR=10.0.0.1 MASTER_PORT=29511 \
        PHUB_JOB=steps PHUB_HUB=10.0.0.9:7077 GLOO_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=1 \
        ip netns exec "worker$rank" "$python" "$root/worker-shim/python/benches/steps.py" "$@" >"$logs/$rank" 2>"$logs/$rank.err" &
    last=$!
done
wait "$last" || { cat "$logs/0" "$logs/0.err" >&2; rm -r "$logs"; exit 1; }
cat "$logs/0"
rm -r "$logs"
