#!/bin/sh
# Checks docs/kubernetes.yaml by Kubernetes' own schemas: `make kubernetes`. It uses the oldest and the newest version that PyPI's
# kubernetes-validate has, and needs no cluster.
set -eu
cd "$(dirname "$0")/.."
venv=target/kubernetes-venv
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/pip" install -q --disable-pip-version-check 'kubernetes-validate>=1.30'
"$venv/bin/kubernetes-validate" --strict -k 1.25 docs/kubernetes.yaml
"$venv/bin/kubernetes-validate" --strict docs/kubernetes.yaml
