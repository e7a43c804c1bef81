#!/bin/sh
# Uses a wheel for 64-bit Arm on a machine of another kind: `tools/dist/check-emulated.sh WHEEL`. Debian's Python for 64-bit Arm
# imports the package, and starts the hub and a session of two workers. All run in qemu's user mode. check-wheel.sh calls this
# script.
#
# qemu, Python and the C library are packages of Debian unstable, which are unpacked in target/dist/arm64. NumPy is from PyPI. If
# the packages cannot be downloaded, the script says so and exits with status 3.
set -eu
cd "$(dirname "$0")/../.."
wheel=$1
dir=$PWD/target/dist/arm64
root=$dir/root
case $wheel in *_aarch64.whl) ;; *)
    echo "dist: the wheel was NOT USED: no emulator is known for $wheel" >&2
    exit 3
    ;;
esac
if ! [ -x "$dir/bin/python3" ]; then
    rm -rf "$dir"
    sh tools/debian/unpack.sh "$dir/qemu" "$(dpkg --print-architecture)" -- qemu-user
    sh tools/debian/unpack.sh "$root" arm64 python3 libstdc++6
    [ -e "$root/lib" ] || ln -s usr/lib "$root/lib"
    mkdir "$dir/bin"
fi
# Makes a wrapper that runs a program in the emulator, for programs that are started by other programs.
emulated() {
    printf '#!/bin/sh\nexec "%s" -L "%s" "%s" "$@"\n' "$dir/qemu/usr/bin/qemu-aarch64" "$root" "$1" >"$dir/bin/$2"
    chmod +x "$dir/bin/$2"
}
emulated "$(readlink -f "$root/usr/bin/python3")" python3
version=$("$dir/bin/python3" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
rm -rf "$dir/site"
"$dir/../venv/bin/pip" install -q --disable-pip-version-check --target "$dir/site" --only-binary :all: \
    --platform manylinux_2_28_aarch64 --implementation cp --python-version "$version" --abi "cp$(echo "$version" | tr -d .)" --abi abi3 "$wheel"
for program in phub-server phub-probe; do emulated "$dir/site/bin/$program" "$program"; done
PATH=$dir/bin:$PATH
phub-server --version
phub-probe --version
# The probe only prints its version here. To measure, the probe would start itself again, and the kernel cannot start a program
# for another machine.
PYTHONPATH=$dir/site python3 tools/dist/use.py
echo "dist: the wheel works with Python $version on an emulated 64-bit Arm"
