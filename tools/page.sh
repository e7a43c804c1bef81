#!/bin/sh
# Tests the hub's page in a headless Chromium, with a real hub and real workers: `tools/page.sh [DIR]` (`make page`). With a
# directory it leaves pictures of the page there.
#
# It needs Debian's chromium or chromium-headless-shell, python3 with venv, and installs websocket-client from PyPI in
# target/page. Without them it says so and exits with status 3.
set -eu
cd "$(dirname "$0")/.."
dir=target/page

not_had() {
    echo "page: NOT RUN: $1" >&2
    exit 3
}

browser=$(sh tools/chromium.sh) || not_had "there is no Chromium (apt-get install chromium-headless-shell)"
if ! "$dir/bin/python" -c "import websocket" 2>/dev/null; then
    { python3 -m venv "$dir" && "$dir/bin/pip" -q install websocket-client; } ||
        not_had "python3 lacks venv, or websocket-client could not be installed"
fi
cargo build --release -p phub-server -p benches --bin phub-server --bin phub-probe
exec "$dir/bin/python" tests/browser/page.py --browser "$browser" ${1:+--pictures "$1"}
