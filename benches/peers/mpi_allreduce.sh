#!/usr/bin/env bash
# Builds the Open MPI peer, and runs it on this machine or on several. Each rank is a worker. Prints one JSON object, and installs
# nothing.
set -euo pipefail

usage() {
    cat <<'END'
usage: mpi_allreduce.sh [--ready] [OPTION...]

  --ready        only say whether the peer can run here, and what is missing
  --workers N    ranks                                               (4)
  --elements N   f32 elements of the gradient                        (25557032: ResNet-50)
  --piece N      elements in one MPI_Allreduce; 262144 is the fastest that we know
                                                                     (all: one flat call)
  --rounds N     measured rounds; the median counts                  (20)
  --warmup N     rounds before the measured ones                     (3)
  --tuned        use the shared-memory collective with 512 KiB fragments; without it, Open MPI as shipped
  --ring         use the ring, which sends the fewest bytes; without it, Open MPI chooses

For ranks on several machines, by TCP, run the command on the first machine, with:
  --hosts LIST      address:ranks of each machine, with commas between them, in the order of the ranks
  --agent PROGRAM   the program that starts a command on a machine   (Open MPI's: ssh)
  --interface NAME  the network interface                            (Open MPI's: all)
END
}

workers=4 elements=25557032 piece=2147483647 rounds=20 warmup=3 mca=() ready=
while (($# > 0)); do
    case $1 in
    --workers | --elements | --piece | --rounds | --warmup)
        if [[ ! ${2:-} =~ ^[1-9][0-9]*$ ]]; then
            echo "mpi_allreduce.sh: $1: '${2:-}'; expected a whole number above 0" >&2
            exit 2
        fi
        printf -v "${1#--}" %s "$2"
        shift 2
        ;;
    --tuned)
        # coll/sm is off by default (priority 0). Its fragments are 8 KiB by default, and each needs a synchronization of all
        # ranks. With larger fragments coll/sm is faster.
        mca+=(--mca coll_sm_priority 100 --mca coll_sm_fragment_size 524288)
        shift
        ;;
    --ring)
        mca+=(--mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_allreduce_algorithm 4)
        shift
        ;;
    --hosts)
        # Simulated machines (network namespaces) share the cores of one machine, and Open MPI does not know that. So a rank
        # that waits must not spin.
        mca+=(--host "${2:?expected address:ranks,...}" --mca pml ob1 --mca mpi_yield_when_idle 1)
        shift 2
        ;;
    --agent)
        # Without --leave-session-attached, a daemon leaves its session, and survives the program that started it.
        mca+=(--mca plm_rsh_agent "${2:?expected a program}" --leave-session-attached)
        shift 2
        ;;
    --interface)
        mca+=(--mca btl_tcp_if_include "${2:?expected a name}" --mca oob_tcp_if_include "$2")
        shift 2
        ;;
    --ready)
        ready=yes
        shift
        ;;
    -h | --help)
        usage
        exit
        ;;
    *)
        echo "mpi_allreduce.sh: $1: unknown" >&2
        usage >&2
        exit 2
        ;;
    esac
done

missing=()
command -v mpirun >/dev/null || missing+=(openmpi-bin)
# mpicc may be installed without the headers.
mpicc -E -include mpi.h -x c /dev/null >/dev/null 2>&1 || missing+=(libopenmpi-dev)
command -v cc >/dev/null || missing+=(gcc)
if ((${#missing[@]} > 0)); then
    echo "mpi_allreduce.sh: missing: ${missing[*]}; install these packages (named as in Debian)" >&2
    exit 3
fi
if ! mpirun --version 2>/dev/null | grep -q 'Open MPI'; then
    echo "mpi_allreduce.sh: mpirun is '$(mpirun --version | head -n 1)'; expected Open MPI, first in PATH" >&2
    exit 3
fi

if [[ $ready ]]; then exit; fi

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
built=${CARGO_TARGET_DIR:-$here/../../target}/peers
mkdir -p "$built"
program=$built/mpi_allreduce
if [[ ! $program -nt $here/mpi_allreduce.c || ! $program -nt $here/mpi_allreduce.sh ]]; then
    # -ffp-contract=off, because the check compares bits. It costs no time, because memory limits the step.
    mpicc -std=gnu11 -O3 -march=native -ffp-contract=off -Wall -Wextra \
        -o "$program.$$" "$here/mpi_allreduce.c"
    mv "$program.$$" "$program"
fi

root=()
if ((EUID == 0)); then root=(--allow-run-as-root); fi
exec mpirun "${root[@]}" --oversubscribe --bind-to none "${mca[@]}" -n "$workers" \
    "$program" --elements "$elements" --piece "$piece" --rounds "$rounds" --warmup "$warmup"
