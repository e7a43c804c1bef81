#!/bin/bash
# Builds one program of the workspace on the host and prints its path, for guests to run:
#
#     tools/rxe/binary.sh bin phub-server phub-server       a program
#     tools/rxe/binary.sh example benches train             an example
#     tools/rxe/binary.sh test fabric conformance_verbs     a test binary of tests/
#     tools/rxe/binary.sh lib fabric fabric                 the unit tests of a library
#
# Cargo's own messages name the file, so that it does not matter where the target directory is. PHUB_RXE_FEATURES
# takes the place of the flags that tools/setup.sh finds.
set -eu -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
if [ $# -ne 3 ]; then
    echo "binary.sh: wants KIND PACKAGE NAME; see the head of $here/binary.sh" >&2
    exit 2
fi
kind=$1 package=$2 name=$3
case $kind in
bin) build=(build --release --bin "$name") ;;
example) build=(build --release --example "$name") ;;
test) build=(test --release --no-run --test "$name") ;;
lib) build=(test --release --no-run --lib) ;;
*)
    echo "binary.sh: '$kind' is none of bin, example, test, lib" >&2
    exit 2
    ;;
esac
cd "$here/../.."
features=${PHUB_RXE_FEATURES-$(sh tools/setup.sh features)}
# shellcheck disable=SC2086
messages=$("${CARGO:-cargo}" "${build[@]}" --quiet --package "$package" $features --message-format json)
# One JSON object a line; the one of the program has its name and an "executable".
path=$(sed -n "/\"name\":\"$name\"/s/.*\"executable\":\"\([^\"]*\)\".*/\1/p" <<<"$messages" | tail -n 1)
if [ -z "$path" ]; then
    echo "binary.sh: cargo built no $kind called $name in package $package" >&2
    exit 1
fi
echo "$path"
