#!/bin/sh
# The program that Open MPI starts instead of ssh: enter.sh ADDRESS COMMAND. Runs the command in the network namespace of the
# machine that has the address (tools/rig/machines.py). The host name is the machine's own: Open MPI distinguishes machines
# by it.
set -eu
machine=m$((${1##*.} - 1))
shift
# ssh also joins its arguments to one command line.
exec ip netns exec "$machine" setpriv --pdeathsig KILL unshare --uts sh -c "hostname $machine && exec $*"
