#!/bin/sh
# Builds the wheel that needs no Rust: `make dist`. It has the Python package and the commands phub-server and phub-probe,
# and runs on Linux with glibc 2.28 (2018) or later and Python 3.9 or later. It is written to target/dist. The debug
# information of the commands is next to them, in a folder of the target's name.
#
# Zig's linker knows the symbols of old C libraries, so that the machine that builds may be new. Zig, maturin and the tool
# that checks the wheel come from PyPI, into an environment in target/dist. TARGET=aarch64-unknown-linux-gnu builds for
# 64-bit Arm, with the rustc of Debian unstable if this machine's has no standard library for it (rustup target add).
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

# The contents of the release, and their licences. Both files go into the packages, too.
made=$dir/phub-*-${target%%-*}
# shellcheck disable=SC2086
rm -f $made.cdx.json $made-licences.txt
python tools/dist/bom.py "$target" "$dir"
# shellcheck disable=SC2086
python tools/dist/bom.py --check $made.cdx.json

# Maturin and cargo-zigbuild each use a C compiler by a path of their own. For each path, cargo builds all crates with C in
# them, and those above them, once. So both get this one. Under the name of the C compiler it compiles and links, as ar it
# makes archives.
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
# The code is the same; the line tables are for people who look at an end that nobody expected.
export CARGO_PROFILE_RELEASE_DEBUG=line-tables-only
# maturin does not strip: that would be another profile, and cargo would build all twice.
wheels=$dir/phub-*_${target%%-*}.whl
# shellcheck disable=SC2086
rm -f $wheels
maturin build -q --release --zig --target "$target" --compatibility "manylinux_$(echo $glibc | tr . _)" --auditwheel check \
    --locked --manifest-path worker-shim/python/Cargo.toml --out "$dir"
cargo zigbuild --release --locked --target "$target.$glibc" -p phub-cli -p benches \
    --bin phub-server --bin phub-probe

# The commands go into the wheel unchanged: pip puts the files in `scripts` on the user's path.
rm -rf "$dir/unpacked"
# shellcheck disable=SC2086
wheel unpack -d "$dir/unpacked" $wheels
package=$(echo "$dir"/unpacked/*)
scripts=$package/$(basename "$package").data/scripts
mkdir -p "$scripts"
mkdir -p "$dir/$target"
# The machine's knows only programs for it. LLVM's, which is part of Rust, knows all.
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
# Where Python's packages keep them (PEP 639, PEP 770).
info=$(echo "$package"/*.dist-info)
mkdir -p "$info/licenses" "$info/sboms"
# shellcheck disable=SC2086
cp $made-licences.txt "$info/licenses" && cp $made.cdx.json "$info/sboms"
wheel pack -d "$dir" "$package"
rm -rf "$dir/unpacked"
du -h --apparent-size "$dir"/*.whl "$dir/$target"/* | sed 's/^/dist: /'
