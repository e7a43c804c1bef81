#!/bin/sh
# The program that Open MPI starts instead of ssh: enter.sh ADDRESS COMMAND. Runs the command in the network namespace of the
# machine that has the address (tools/rig/machines.py). The command sees a host name of its machine, by which Open MPI
# distinguishes machines.
set -eu
machine=m$((${1##*.} - 1))
shift
# Like ssh, this joins its arguments to one command line.
exec ip netns exec "$machine" setpriv --pdeathsig KILL unshare --uts sh -c "hostname $machine && exec $*"
