#!/bin/bash
# An interface on top of the NIC's own interface is in another network namespace, like the namespace of a pod, and has the NIC's
# only IPv4 address. Hub and worker cannot have a socket there, so they take the IPv6 address of their own interface. A job runs
# by RDMA. Then the NIC's own interface also has IPv4, and in the pod the doctor names the pod's address.
# guest: one
# build: bin phub-server
# build: bin phub-probe
# seconds: 90
modprobe -d "${PHUB_RXE_DIR:-target/rxe}/kernel" macvlan
model 300000
has() { grep -q "$1" /sys/class/infiniband/rxe0/ports/1/gids/*; }
has_no() { ! has "$1"; }
ip address flush dev nic0 scope global
within 20 has_no "ffff:0a4d:0001" # 10.77.0.1
ip netns add pod
ip link add net1 link nic0 netns pod type macvlan mode bridge
ip -netns pod address add 10.99.0.2/24 dev net1
ip -netns pod link set net1 up
within 20 has "ffff:0a63:0002" # 10.99.0.2
ip address add fd77::1/64 dev nic0 nodad
within 20 has "fd77:0000"
serve --transports verbs --listen 127.0.0.1:7077
phub-probe --hub 127.0.0.1:7077 --transport verbs --manifest /tmp/model --workers 1 --rank 0 --rounds 3 --json >/tmp/report 2>/tmp/worker.0
jq -e '.checked and .transport == "verbs"' /tmp/report
grep -F "fd77::1" /tmp/hub
end_hub
# The following checks need this address.
ip address delete fd77::1/64 dev nic0
ip address add 10.77.0.1/24 dev nic0
within 20 has "ffff:0a4d:0001"
ip netns exec pod phub-server doctor >/tmp/doctor || true
grep -E "GID rxe0 .*10\.99\.0\.2" /tmp/doctor
ip netns delete pod
