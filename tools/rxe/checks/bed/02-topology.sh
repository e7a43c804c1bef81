#!/bin/bash
# `phub-server topology` shows a PBox correctly: two nodes, and each NIC on the node that sysfs names. The
# plan of a job gives every core NICs of its own node, and uses all NICs.
# guest: one --numa --nics 4
# guest: one --numa --nics 10
# build: bin phub-server
# ci
numactl -H | tee /tmp/numactl
grep -q "available: 2 nodes" /tmp/numactl
phub-server topology --model resnet50 | tee /tmp/topology

# sysfs shows the true nodes. An RDMA device in software has no PCI parent, but its network interface has a PCI parent.
for ((i = 0; i < PHUB_RXE_NICS; i++)); do
    net=$(cat "/sys/class/infiniband/rxe$i/ports/1/gid_attrs/ndevs/0")
    pci=$(readlink -f "/sys/class/net/$net/device/..")
    echo "rxe$i $net $(basename "$pci") $(cat "$pci/numa_node")"
done | sort >/tmp/truth
awk '/^    NUMA node/ { sub(":", "", $3); node = $3 }
     /^      NIC/     { gsub("[:,] ", " "); print $2, $(NF - 2), $NF, node }' /tmp/topology | sort >/tmp/seen
echo "sysfs and the hub's view:"
diff -y /tmp/truth /tmp/seen
[ "$(awk '$4 == 0' /tmp/seen | wc -l)" = $((PHUB_RXE_NICS / 2)) ]

# A row of the plan is "slot cpu node NIC... runs bytes ...". Each NIC must be on the core's node, and no NIC
# may be missing.
awk 'NR == FNR { node[$1] = $4; next }
     /^  slot/ { rows = 1; next }
     rows && NF == 0 { rows = 0 }
     rows { for (i = 4; $i in node; i++) { used[$i] = 1; if (node[$i] != $3) { print "core", $2, "of node", $3, "has", $i, "of node", node[$i]; wrong = 1 } } }
     END { for (nic in node) if (!(nic in used)) { print nic, "has no core"; wrong = 1 }; exit wrong }' /tmp/truth /tmp/topology
echo "every NIC has cores of its own node"
