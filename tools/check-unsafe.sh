#!/bin/sh
# Fails if docs/unsafe.md does not list exactly those source files that use `unsafe`.
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
