#!/bin/sh
# Makes a Debian package of the commands that `tools/dist/wheel.sh` has built, with a systemd unit: `make dist`. The package is
# in target/dist, and can be installed on Debian 10, Ubuntu 20.04 and later.
set -eu
cd "$(dirname "$0")/../.."
target=${TARGET:-$(rustc -vV | sed -n 's/host: //p')}
dir=$PWD/target/dist
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
case $target in
x86_64-*) architecture=amd64 ;;
aarch64-*) architecture=arm64 ;;
*) echo "dist: no name for Debian's packages of $target" >&2 && exit 1 ;;
esac
tree=$dir/deb
rm -rf "$tree" "$dir"/phub_*_$architecture.deb
mkdir -p "$tree/DEBIAN" "$tree/usr/share/doc/phub"
for program in phub-server phub-probe; do
    install -D -m 755 "$dir/$target/$program" "$tree/usr/bin/$program"
done
install -D -m 644 -t "$tree/lib/systemd/system" tools/dist/debian/phub-server.service
install -D -m 644 -t "$tree/etc/phub" tools/dist/debian/hub.env
install -m 755 -t "$tree/DEBIAN" tools/dist/debian/postinst tools/dist/debian/prerm tools/dist/debian/postrm
echo /etc/phub/hub.env >"$tree/DEBIAN/conffiles"
cat >"$tree/usr/share/doc/phub/copyright" <<END
Apache License 2.0, see /usr/share/common-licenses/Apache-2.0
The crates in the programs have licences of their own, see /usr/share/doc/phub/licences.gz
END
made=$dir/phub-$version-${target%%-*}
gzip -9n <"$made-licences.txt" >"$tree/usr/share/doc/phub/licences.gz"
gzip -9n <"$made.cdx.json" >"$tree/usr/share/doc/phub/phub.cdx.json.gz"
cat >"$tree/DEBIAN/control" <<END
Package: phub
Version: $version
Architecture: $architecture
Maintainer: the developers of Parameter Hub <nobody@example.org>
Installed-Size: $(du -sk "$tree" | cut -f1)
Depends: libc6 (>= 2.28), passwd, procps
Recommends: libibverbs1, ibverbs-providers
Section: net
Priority: optional
Description: parameter server for training on many machines
 A hub sums the gradients of all workers of a training job, steps the
 optimizer and returns the new weights, over shared memory, TCP or RDMA.
 .
 The service phub-server is started with: systemctl enable --now phub-server
END
dpkg-deb --root-owner-group --build "$tree" "$dir" >/dev/null
rm -rf "$tree"
du -h --apparent-size "$dir"/phub_*_$architecture.deb | sed 's/^/dist: /'
