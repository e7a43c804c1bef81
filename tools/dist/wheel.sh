#!/bin/sh
# Builds the wheel whose users need no Rust: `make dist`. The wheel has the Python package and the commands phub-server and
# phub-probe, and runs on Linux with glibc 2.28 (2018) or later and Python 3.9 or later. The wheel is in target/dist. The
# commands and their debug information are there, too, in a folder with the name of the target.
#
# Zig's linker knows the symbols of old C libraries, so the machine that builds the wheel may be new. Zig, maturin and the tools
# that check the wheel come from PyPI, into an environment in target/dist. TARGET=aarch64-unknown-linux-gnu builds for 64-bit Arm.
# If this machine's rustc has no standard library for the target (rustup target add), the rustc of Debian unstable is used.
set -eu
cd "$(dirname "$0")/../.."
host=$(rustc -vV | sed -n 's/host: //p')
target=${TARGET:-$host}
sysroot=$(rustc --print sysroot)
glibc=2.28
dir=$PWD/target/dist
python=${PHUB_PYTHON:-python3}

if ! [ -d "$sysroot/lib/rustlib/$target" ]; then
    RUSTC=$(sh tools/debian/rustc.sh "$target") || {
        echo "dist: no standard library for $target; run: rustup target add $target" >&2
        exit 1
    }
    export RUSTC
fi
mkdir -p "$dir"
[ -x "$dir/venv/bin/python" ] || "$python" -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q --disable-pip-version-check 'maturin>=1.9,<2' 'ziglang>=0.13' 'cargo-zigbuild>=0.20' \
    'wheel>=0.43' 'auditwheel>=6' 'abi3audit>=0.0.20' 'cyclonedx-python-lib[json-validation]>=9'
PATH=$dir/venv/bin:$PATH

# Two files list the contents of the release and the licences. They are also in the packages.
made=$dir/phub-*-${target%%-*}
# shellcheck disable=SC2086
rm -f $made.cdx.json $made-licences.txt
python tools/dist/bom.py "$target" "$dir"
# shellcheck disable=SC2086
python tools/dist/bom.py --check $made.cdx.json

# Maturin and cargo-zigbuild would each use a C compiler at another path. Cargo would then build all crates with C, and the crates
# that depend on them, once for each path. So both get the programs that `zig` makes here: a compiler that also links, and an
# archiver.
mkdir -p "$dir/zig"
zig() {
    printf '#!/bin/sh\nexec cargo-zigbuild zig %s -- %s "$@"\n' "$1" "$3" > "$dir/zig/$2"
    chmod +x "$dir/zig/$2"
    echo "$dir/zig/$2"
}
of_target=$(echo "$target" | tr - _)
compiler=$(zig cc "cc-$target" "-g -fno-sanitize=all -target ${target%%-*}-linux-gnu.$glibc")
archiver=$(zig ar "ar-$target" "")
export "CC_$of_target=$compiler" "AR_$of_target=$archiver"
export "CARGO_TARGET_$(echo "$of_target" | tr a-z A-Z)_LINKER=$compiler"
# Line tables do not change the code. They are for people who examine a crash.
export CARGO_PROFILE_RELEASE_DEBUG=line-tables-only
# Maturin must not strip: it would use another profile, for which cargo would build everything again.
wheels=$dir/phub-*_${target%%-*}.whl
# shellcheck disable=SC2086
rm -f $wheels
maturin build -q --release --zig --target "$target" --compatibility "manylinux_$(echo $glibc | tr . _)" --auditwheel check \
    --locked --manifest-path worker-shim/python/Cargo.toml --out "$dir"
cargo zigbuild --release --locked --target "$target.$glibc" -p phub-cli -p benches \
    --bin phub-server --bin phub-probe

# The commands are added to the wheel unchanged. Pip installs the files of `scripts` on the user's path.
rm -rf "$dir/unpacked"
# shellcheck disable=SC2086
wheel unpack -d "$dir/unpacked" $wheels
package=$(echo "$dir"/unpacked/*)
scripts=$package/$(basename "$package").data/scripts
mkdir -p "$scripts"
mkdir -p "$dir/$target"
# The machine's own objcopy can handle only programs for this machine. LLVM's objcopy, which is a part of Rust, can handle
# programs for all machines.
objcopy() {
    if [ "$target" = "$host" ]; then
        command objcopy "$@"
    else
        LD_LIBRARY_PATH=$sysroot/lib "$sysroot/lib/rustlib/$host/bin/rust-objcopy" "$@"
    fi
}
strip_to() {
    objcopy --only-keep-debug --compress-debug-sections=zlib "$1" "$2.debug"
    objcopy --strip-unneeded --add-gnu-debuglink="$2.debug" "$1" "$2"
}
for program in phub-server phub-probe; do
    strip_to "target/$target/release/$program" "$dir/$target/$program"
    cp "$dir/$target/$program" "$scripts"
done
extension=$package/phub/_phub.abi3.so
strip_to "$extension" "$dir/$target/_phub.abi3.so"
mv "$dir/$target/_phub.abi3.so" "$extension"
# The places for licences and bills of materials in Python's packages (PEP 639, PEP 770).
info=$(echo "$package"/*.dist-info)
mkdir -p "$info/licenses" "$info/sboms"
# shellcheck disable=SC2086
cp $made-licences.txt "$info/licenses" && cp $made.cdx.json "$info/sboms"
wheel pack -d "$dir" "$package"
rm -rf "$dir/unpacked"
du -h --apparent-size "$dir"/*.whl "$dir/$target"/* | sed 's/^/dist: /'
