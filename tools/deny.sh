#!/bin/sh
# Checks dependencies by deny.toml: `make deny`. cargo-deny comes into target/deny if this machine has none, which takes minutes.
# Where the database of advisories cannot be fetched, that is said, the rest has to pass, and the status is 3.
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
