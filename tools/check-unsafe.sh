#!/bin/sh
# Fails when a source file uses `unsafe` and docs/unsafe.md does not list it, or the other way round.
set -eu
cd "$(dirname "$0")/.."
used=$(git ls-files '*.rs' | xargs grep -lE '\bunsafe (\{|fn|impl)|unsafe fn\(' | sort)
listed=$(grep -oE '`[a-z-]+/[a-z0-9_/-]+\.rs`' docs/unsafe.md | tr -d '`' | sort -u)
if [ "$used" != "$listed" ]; then
    echo "docs/unsafe.md and the sources differ (< used, > listed):" >&2
    printf '%s\n' "$used" >.unsafe-used && printf '%s\n' "$listed" | diff .unsafe-used - >&2 || true
    rm -f .unsafe-used
    exit 1
fi
