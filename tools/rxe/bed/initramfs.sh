#!/bin/bash
# Builds the initramfs of the guests: `initramfs.sh DIRECTORY INIT`. DIRECTORY has the kernel that setup.sh unpacked. The
# initramfs has busybox, the program INIT, the modules, and a list of the order in which to load the modules.
set -eu -o pipefail
rxe_dir=$1
init=$2
version=$(cat "$rxe_dir/kernel/version")
# Without crc32_generic `rdma link add` fails with "No such file or directory".
modules="virtio_pci 9p 9pnet_virtio overlay virtio_console virtio_net veth crc32_generic ib_uverbs rdma_ucm rdma_rxe"

tree=$(mktemp -d "$rxe_dir/initramfs.XXXXXX")
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree/bin" "$tree/modules"
cp /bin/busybox "$tree/bin/busybox"
cp "$init" "$tree/init"
chmod 755 "$tree/init" "$tree/bin/busybox"
for module in $modules; do
    # The lines are "insmod PATH". The lines of modules that are built into the kernel begin with another word, and are skipped.
    modprobe -C /dev/null -d "$rxe_dir/kernel" -S "$version" --show-depends "$module" | sed -n 's/^insmod //p'
done | awk '!seen[$1]++ { print $1 }' >"$tree/list"
while read -r path; do
    cp "$path" "$tree/modules/"
    basename "$path" >>"$tree/modules/order"
done <"$tree/list"
rm "$tree/list"
# The archive is not compressed: an emulated processor takes longer to unpack it than to read it.
(cd "$tree" && find . | cpio -o -H newc --quiet) >"$tree.cpio"
mv "$tree.cpio" "$rxe_dir/initramfs"
