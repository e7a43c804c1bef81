#!/bin/bash
# Builds one program of the workspace on the host and prints its path, for guests to run:
#
#     tools/rxe/binary.sh bin phub-server               a program
#     tools/rxe/binary.sh example train                 an example
#     tools/rxe/binary.sh test conformance_verbs        a test program of tests/
#     tools/rxe/binary.sh lib fabric                    the unit tests of a library
#     tools/rxe/binary.sh interposer libibverbs.so.1    the library that behaves like hardware, like_hardware/
#
# The script builds the whole workspace in the release profile, as `make test` does, so that both use the same results. It finds
# the file in cargo's messages, so any target directory will do. PHUB_RXE_FEATURES replaces the flags that tools/setup.sh prints.
set -eu -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
if [ $# -ne 2 ]; then
    echo "binary.sh: usage: KIND NAME; see the head of $here/binary.sh" >&2
    exit 2
fi
kind=$1 name=$2
case $kind in
bin) build=(build --bin "$name") ;;
example) build=(build --example "$name") ;;
test) build=(test --no-run --test "$name") ;;
lib) build=(test --no-run --lib) ;;
interposer)
    mkdir -p "$here/../../target/rxe"
    out=$(cd "$here/../../target/rxe" && pwd)/$name
    "${RUSTC:-rustc}" --edition 2024 --crate-type cdylib -O -o "$out" "$here/like_hardware/lib.rs"
    echo "$out"
    exit 0
    ;;
*)
    echo "binary.sh: '$kind' is not one of bin, example, test, lib, interposer" >&2
    exit 2
    ;;
esac
cd "$here/../.."
features=${PHUB_RXE_FEATURES-$(sh tools/setup.sh features)}
# shellcheck disable=SC2086
messages=$("${CARGO:-cargo}" "${build[@]}" --release --quiet $features --message-format json)
# Cargo prints one JSON object in a line. The object of the program has its name and an "executable".
path=$(sed -n "/\"name\":\"$name\"/s/.*\"executable\":\"\([^\"]*\)\".*/\1/p" <<<"$messages" | tail -n 1)
if [ -z "$path" ]; then
    echo "binary.sh: cargo built no $kind called $name" >&2
    exit 1
fi
echo "$path"
