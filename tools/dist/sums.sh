#!/bin/sh
# Writes target/dist/SHA256SUMS, with the sums of all files of a release, for each target that was built. It is the last step of
# `make dist`. A user checks files by `sha256sum --check --ignore-missing SHA256SUMS`.
set -eu
cd "$(dirname "$0")/../../target/dist"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' ../../Cargo.toml | head -n 1)
# Files of other versions are left out. If a glob matches no file, the shell passes the glob itself on, and sha256sum fails.
sha256sum phub-"$version"-*.whl phub_"$version"_*.deb phub-"$version"-*.cdx.json phub-"$version"-*-licences.txt >SHA256SUMS.new
mv SHA256SUMS.new SHA256SUMS
sed 's/^/dist: /' SHA256SUMS
