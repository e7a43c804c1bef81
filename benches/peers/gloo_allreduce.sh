#!/usr/bin/env bash
# Runs the gloo peer on this machine, with the first Python that has PyTorch. Each rank is a worker. Prints one JSON object, and
# installs nothing.
set -euo pipefail

usage() {
    cat <<'END_OF_USAGE'
usage: gloo_allreduce.sh [--ready] [OPTION...]

  --ready           only say whether the peer can run here, and what is missing
  --workers N       ranks                                               (4)
  --elements N      f32 elements of the gradient                        (25557032: ResNet-50)
  --piece N         elements in one all-reduce; 6553600 is DistributedDataParallel's 25 MiB
                                                                        (all: one flat call)
  --rounds N        measured rounds; the median counts                  (20)
  --warmup N        rounds before the measured ones                     (3)
  --interfaces N    number of connections between two ranks: gloo gets the loopback interface N times (1)
  --clip            clip gradients by their norm before the step, as clip_grad_norm_ does
  --threads N       torch threads of a rank                             (cores / ranks, at least 1)

For ranks on several machines, run the same command on each machine, with:
  --here N          ranks on this machine                               (all)
  --first RANK      the first rank on this machine                      (0)
  --store FILE      a file that all machines see, and that does not exist yet
  --interface NAME  the network interface                               (lo)
END_OF_USAGE
}

case ${1:-} in -h | --help)
    usage
    exit
    ;;
esac

python=
for candidate in /usr/bin/python3 python3; do
    # `find_spec` only looks whether torch is there: an import would take seconds.
    if "$candidate" -c 'import sys, importlib.util as i; sys.exit(not i.find_spec("torch"))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [[ -z $python ]]; then
    echo "gloo_allreduce.sh: no python3 here has PyTorch; install python3-torch (named as in Debian)" >&2
    exit 3
fi
if [[ ${1:-} == --ready ]]; then exit; fi

# -B: Python writes no bytecode into the source tree.
exec "$python" -B "$(dirname "${BASH_SOURCE[0]}")/gloo_allreduce.py" "$@"
