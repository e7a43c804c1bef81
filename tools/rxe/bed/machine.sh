# shellcheck shell=bash disable=SC2034,SC2154
# The machine of a guest, as arguments for QEMU. guest.sh sets the variables that this file reads, and sources it. A plain machine
# has one socket. With --numa it is a PBox: two sockets, each with its own memory and NICs:
#
#     pcie.0 -+- pxb-pcie of node 0 -+- root port - virtio-net 0
#             |                      +- root port - virtio-net 1
#             +- pxb-pcie of node 1 -+- root port - virtio-net 2
#             |                      +- root port - virtio-net 3
#             +- 9p of the root, 9p of the run, the port for the output

# machine_arguments: fills the array `machine`.
machine_arguments() {
    local accelerator
    accelerator=$(bash "$here/accelerator.sh" "$rxe_dir")
    if [ "$accelerator" = kvm ]; then
        machine=(-accel kvm -cpu host)
    else
        machine=(-accel "tcg,thread=multi" -cpu max)
    fi
    # The wires are the only network: -nic none removes QEMU's default NIC.
    machine+=(-M q35 -m "${memory}M" -nic none -display none -vga none -no-reboot -monitor none)
    machine+=(-kernel "$rxe_dir/kernel/boot/vmlinuz-$(cat "$rxe_dir/kernel/version")" -initrd "$rxe_dir/initramfs")
    # After a panic the guest ends at once, without a result. With no_timer_check the kernel does not check its timer at the
    # boot. The check would panic unless the timer ticks ten times within some milliseconds, which fails for an emulated
    # processor on a busy host.
    machine+=(-append "console=ttyS0 loglevel=6 panic=-1 net.ifnames=0 no_timer_check" -serial "file:$run/console")
    machine+=(-fsdev "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap")
    machine+=(-device "virtio-9p-pci,fsdev=root,mount_tag=root")
    machine+=(-fsdev "local,id=run,path=$run,security_model=none")
    machine+=(-device "virtio-9p-pci,fsdev=run,mount_tag=run")
    machine+=(-chardev "file,id=output,path=$run/pipe" -device virtio-serial-pci)
    machine+=(-device "virtserialport,chardev=output,name=output")
    if [ "$numa" = yes ]; then two_sockets; else machine+=(-smp "$cpus"); fi
    local nic
    for ((nic = 0; nic < nics; nic++)); do add_nic "$nic"; done
}

two_sockets() {
    local half=$((cpus / 2)) node
    machine+=(-smp "$cpus,sockets=2,cores=$half")
    for node in 0 1; do
        machine+=(-object "memory-backend-ram,id=memory$node,size=$((memory / 2))M")
        machine+=(-numa "node,nodeid=$node,cpus=$((node * half))-$((node * half + half - 1)),memdev=memory$node")
        machine+=(-device "pxb-pcie,id=socket$node,bus=pcie.0,bus_nr=$((64 + 64 * node)),numa_node=$node")
    done
}

# The first half of the NICs is on node 0. With --wires NIC i is on wire i, and with --join on a wire inside the guest. Without
# these two options the NIC is connected to nothing.
add_nic() {
    local nic=$1 bus="" end other=$((3 - side))
    end="hubport,id=wire$nic,hubid=$((joined[nic]))"
    if [ -n "$wires" ]; then
        end="dgram,id=wire$nic,local.type=unix,local.path=$wires/$nic-$side"
        end="$end,remote.type=unix,remote.path=$wires/$nic-$other"
    fi
    if [ "$numa" = yes ]; then
        machine+=(-device "pcie-root-port,id=port$nic,bus=socket$((nic * 2 / nics)),chassis=$((nic + 1)),slot=$nic")
        bus=",bus=port$nic"
    fi
    machine+=(-netdev "$end" -device "virtio-net-pci,netdev=wire$nic,mac=$(printf '52:54:00:77:%02x:%02x' "$side" "$nic")$bus")
}
