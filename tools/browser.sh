#!/bin/sh
# Runs a test of tests/browser in a headless Chromium, with real hubs and workers: `tools/browser.sh TEST PACKAGES [ARGUMENTS]`
# (`make page`, `make perfetto`). ARGUMENTS go to the test.
#
# The script needs Debian's chromium or chromium-headless-shell, and python3 with venv. It installs PACKAGES and websocket-client
# from PyPI in target/TEST. If something is missing, it says so and exits with status 3.
set -eu
cd "$(dirname "$0")/.."
test=$1
packages="websocket-client $2"
shift 2
dir=target/$test

not_had() {
    echo "$test: NOT RUN: $1" >&2
    exit 3
}

for name in chromium-headless-shell chromium chromium-browser google-chrome; do
    if browser=$(command -v "$name"); then break; fi
done
[ -n "$browser" ] || not_had "there is no Chromium (apt-get install chromium-headless-shell)"
[ -x "$dir/bin/python" ] || python3 -m venv "$dir" || not_had "python3 lacks venv"
# shellcheck disable=SC2086
"$dir/bin/pip" -q install --disable-pip-version-check $packages || not_had "PyPI's packages could not be installed: $packages"
cargo build --release -p phub-cli -p benches --bin phub-server --bin phub-probe
exec "$dir/bin/python" "tests/browser/$test.py" --browser "$browser" "$@"
