#!/bin/sh
# Prints where a Chromium is, for tests of pages; fails without.
for name in chromium-headless-shell chromium chromium-browser google-chrome; do
    command -v "$name" && exit 0
done
exit 1
