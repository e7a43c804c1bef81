#!/bin/bash
# Installs the packages and files that guests (virtual machines) with soft-RoCE need: `tools/rxe/bed/setup.sh`. The script
# installs packages by apt-get, and puts Debian's plain kernel, and an initramfs with the guests' modules, under target/rxe (or
# PHUB_RXE_DIR). It tests whether KVM works on this machine. A second run finds everything and does nothing.
set -eu -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
rxe_dir=${PHUB_RXE_DIR:-$here/../../../target/rxe}
mkdir -p "$rxe_dir/logs"
rxe_dir=$(cd "$rxe_dir" && pwd)

say() { echo "rxe setup: $*" >&2; }
die() {
    say "$@"
    exit 1
}

# Programs for the host and for the guests, whose root is the host's root.
install_packages() {
    local missing=""
    command -v qemu-system-x86_64 >/dev/null || missing="$missing qemu-system-x86"
    command -v modprobe >/dev/null || missing="$missing kmod"
    [ -x /bin/busybox ] && ! ldd /bin/busybox >/dev/null 2>&1 || missing="$missing busybox-static"
    command -v cpio >/dev/null || missing="$missing cpio"
    command -v rdma >/dev/null || missing="$missing iproute2"
    command -v rdma-ndd >/dev/null || missing="$missing rdma-core"
    [ -n "$(find /etc/libibverbs.d -name rxe.driver 2>/dev/null)" ] || missing="$missing ibverbs-providers"
    command -v ibv_devinfo >/dev/null || missing="$missing ibverbs-utils"
    command -v ib_write_bw >/dev/null || missing="$missing perftest"
    command -v numactl >/dev/null || missing="$missing numactl"
    command -v strace >/dev/null || missing="$missing strace"
    command -v jq >/dev/null || missing="$missing jq"
    [ -z "$missing" ] && return
    # shellcheck disable=SC2086
    sh "$here/../../install.sh" "rxe setup" $missing || exit 1
}

# Gets the plain kernel, because Debian's cloud kernel has no rxe. Debian's package linux-image-amd64 depends on the newest
# plain kernel.
get_kernel() {
    local package
    [ -e "$rxe_dir/kernel/version" ] && return
    package=$(apt-cache depends linux-image-amd64 2>/dev/null |
        sed -n 's/.*Depends: \(linux-image-[0-9.+~a-z-]*-amd64\)$/\1/p' | sort -V | tail -n 1)
    [ -n "$package" ] || die "apt-cache knows no package linux-image-amd64; on Debian 12: apt-get update." \
        "Elsewhere put a kernel with rdma_rxe into $rxe_dir/kernel (boot/vmlinuz-V, lib/modules/V, and V in a" \
        "file named version)"
    say "getting $package"
    rm -rf "$rxe_dir/kernel" "$rxe_dir/download"
    mkdir -p "$rxe_dir/download"
    (cd "$rxe_dir/download" && apt-get download -qq -o APT::Sandbox::User=root "$package" >&2) ||
        die "apt-get download $package failed; is the index fresh? Try apt-get update"
    dpkg-deb -x "$rxe_dir"/download/*.deb "$rxe_dir/kernel"
    rm -r "$rxe_dir/download"
    depmod -b "$rxe_dir/kernel" "${package#linux-image-}"
    echo "${package#linux-image-}" >"$rxe_dir/kernel/version"
}

# A lock: if two guests start at the same time, only one of their scripts installs, and the other waits.
exec 9>"$rxe_dir/lock"
flock 9
install_packages
get_kernel
# Build the initramfs again if its sources have changed.
if ! [ "$rxe_dir/initramfs" -nt "$rxe_dir/kernel/version" ] || ! [ "$rxe_dir/initramfs" -nt "$here/init" ] ||
    ! [ "$rxe_dir/initramfs" -nt "$here/initramfs.sh" ]; then
    bash "$here/initramfs.sh" "$rxe_dir" "$here/init"
fi
bash "$here/accelerator.sh" "$rxe_dir" >/dev/null
