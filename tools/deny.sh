#!/bin/sh
# Checks dependencies by the rules of deny.toml: `make deny`. If this machine has no cargo-deny, the script builds it in
# target/deny, which takes minutes. If the database of advisories cannot be fetched, the script says so, makes all other checks,
# and exits with status 3.
set -eu
cd "$(dirname "$0")/.."
PATH=$PWD/target/deny/bin:$PATH
command -v cargo-deny >/dev/null || cargo install --quiet --locked --root target/deny --target-dir target/deny/build 'cargo-deny@^0.20'
cargo deny --workspace --locked check licenses bans sources
if ! cargo deny --workspace --locked fetch db; then
    echo "deny: advisories were NOT CHECKED: the database could not be fetched, see above" >&2
    exit 3
fi
cargo deny --workspace --locked --offline check advisories
