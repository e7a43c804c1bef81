"""Machines that are network namespaces, each with one link of a limited rate: on one switch, or in racks with a switch each.

    namespace m0          this namespace: the switches         namespace m1
    eth0 10.99.0.1 =veth= port0 --- rack0 --- port1 =veth= eth0 10.99.0.2
    tbf: what m0 sends    tbf: what m0 receives

    with several racks:   rack0 --- up0 =veth= down0 --- core --- down1 =veth= up1 --- rack1
                                   tbf         tbf: what the rack sends and receives

Runs inside `unshare --net --mount --pid` (run.sh). When this process ends, for any reason, the kernel removes all of its
processes, links and namespaces. These links are never in the network namespace of the real machine.
"""

import subprocess

# Jumbo frames, as in P3: a frame of 9014 bytes carries 8948 bytes of TCP's data.
MTU = 9000
# The congestion control of P3's machines. A process may choose another one.
CONGESTION = "cubic"
# P3's own settings of tc's filter, except for the burst. The burst must have room for a segment of 64 KiB, because the kernel
# cuts a segment into frames only after the filter.
LATENCY = "50ms"
BURST = "128kb"
# A higher priority for the processes of machines, because the cores of real machines do no other work.
NICE = -5


class Machines:
    """A number of machines, whose links have no limit at first. Each rack has the same number of machines, with neighbouring
    numbers."""

    def __init__(self, count, racks=1, mtu=MTU, congestion=CONGESTION):
        self.count, self.racks = count, racks
        for switch in [f"rack{rack}" for rack in range(racks)] + ["core"]:
            tell(f"ip link add {switch} type bridge")
            tell(f"ip link set {switch} mtu {mtu} up")
        for rack in range(racks if racks > 1 else 0):
            tell(f"ip link add up{rack} mtu {mtu} type veth peer name down{rack} mtu {mtu}")
            tell(f"ip link set up{rack} master rack{rack} up")
            tell(f"ip link set down{rack} master core up")
        for machine in range(count):
            name, port = f"m{machine}", f"port{machine}"
            tell(f"ip netns add {name}")
            tell(f"ip link add {port} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {name}")
            tell(f"ip link set {port} master rack{machine * racks // count} up")
            tell(f"ip -n {name} link set lo up")
            tell(f"ip -n {name} addr add {self.address(machine)}/16 dev eth0")
            tell(f"ip -n {name} link set eth0 up")
            # The route sets the congestion control, because not every namespace may set a default.
            route = f"10.99.0.0/16 dev eth0 src {self.address(machine)} congctl {congestion}"
            tell(f"ip -n {name} route change {route}")

    def address(self, machine):
        """Returns the address of a machine's link."""
        return f"10.99.0.{machine + 1}"

    def limit(self, mbits, socket_bytes):
        """Limits the rate of each machine's link, each way, and the bytes that a socket may queue in the link."""
        for machine, mbit in enumerate(mbits):
            tell(f"ip netns exec m{machine} sysctl -qw net.ipv4.tcp_limit_output_bytes={socket_bytes}")
            tell(f"ip netns exec m{machine} tc qdisc replace dev eth0 {shape(mbit)}")
            tell(f"tc qdisc replace dev port{machine} {shape(mbit)}")

    def limit_uplinks(self, mbit):
        """Limits the rate of each rack's uplink, each way."""
        for rack in range(self.racks):
            for port in (f"up{rack}", f"down{rack}"):
                tell(f"tc qdisc replace dev {port} {shape(mbit)}")

    def inside(self, machine, command):
        """Returns a command that runs on a machine, with priority, and that the kernel kills when this process ends."""
        first = ["nice", "-n", str(NICE), "setpriv", "--pdeathsig", "KILL"]
        return ["ip", "netns", "exec", f"m{machine}", *first, *command]

    def remove(self):
        """Removes all namespaces and links, so that other machines can be made."""
        for machine in range(self.count):
            tell(f"ip link del port{machine}")
            tell(f"ip netns del m{machine}")
        for rack in range(self.racks):
            if self.racks > 1:
                tell(f"ip link del up{rack}")
            tell(f"ip link del rack{rack}")
        tell("ip link del core")


def shape(mbit):
    """Returns the arguments of tc that limit a link to a rate."""
    return f"root tbf rate {round(mbit * 1000)}kbit latency {LATENCY} burst {BURST}"


def tell(command):
    """Runs a command. If it fails, raises an error with its output."""
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"`{command}` failed: {(done.stderr or done.stdout).strip()}; needs root, iproute2 and tbf")
