#!/bin/bash
# Prints the accelerator with which QEMU runs guests (virtual machines) here, `kvm` or `tcg`: `accelerator.sh DIRECTORY`. If this
# machine is itself virtual, /dev/kvm may exist but not work. So this script boots a guest with KVM one time, and keeps the result
# in DIRECTORY/accelerator.
set -eu -o pipefail
rxe_dir=$1
if ! [ -s "$rxe_dir/accelerator" ]; then
    found=tcg
    if [ -w /dev/kvm ] && timeout -k 1 20 qemu-system-x86_64 -M q35 -accel kvm -cpu host -m 512 -nic none -display none \
        -vga none -no-reboot -serial stdio -kernel "$rxe_dir/kernel/boot/vmlinuz-$(cat "$rxe_dir/kernel/version")" \
        -initrd "$rxe_dir/initramfs" -append "console=ttyS0 quiet panic=-1 phub.probe" </dev/null 2>&1 |
        grep "init: the guest is up" >/dev/null; then
        found=kvm
    fi
    echo "rxe setup: guests run by $found" >&2
    echo "$found" >"$rxe_dir/accelerator"
fi
cat "$rxe_dir/accelerator"
