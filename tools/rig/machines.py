"""N machines on one switch, or in racks with a switch each, each a network namespace with one shaped link.

    namespace m0          this namespace: the switches         namespace m1
    eth0 10.99.0.1 =veth= port0 --- rack0 --- port1 =veth= eth0 10.99.0.2
    tbf: what m0 sends    tbf: what m0 receives

    with several racks:   rack0 --- up0 =veth= down0 --- core --- down1 =veth= up1 --- rack1
                                   tbf         tbf: what the rack sends and receives

Runs inside `unshare --net --mount --pid` (run.sh): when this process ends, however it ends, the kernel takes
away every process, link and namespace of it. Nothing of it is ever in the namespace of the machine's own links.
"""

import subprocess

# Jumbo frames, as P3 had them; a frame of TCP carries 8948 bytes in 9014.
MTU = 9000
# P3's machines had it. Every process may have another one.
CONGESTION = "cubic"
# P3's own settings, except for the burst, which must hold a segment that the kernel has not yet cut: 64 KiB.
LATENCY = "50ms"
BURST = "128kb"
# A real machine would have its cores for itself.
NICE = -5


class Machines:
    """`count` machines, with links that are not yet limited. Each rack has an equal number of them, in a
    row."""

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
            # Set by the route, because a namespace may not always set it as its default.
            route = f"10.99.0.0/16 dev eth0 src {self.address(machine)} congctl {congestion}"
            tell(f"ip -n {name} route change {route}")

    def address(self, machine):
        """Returns the address of its link."""
        return f"10.99.0.{machine + 1}"

    def limit(self, mbits, socket_bytes):
        """Limits each machine's link, both ways, and the bytes that a socket may queue in its link."""
        for machine, mbit in enumerate(mbits):
            tell(f"ip netns exec m{machine} sysctl -qw net.ipv4.tcp_limit_output_bytes={socket_bytes}")
            tell(f"ip netns exec m{machine} tc qdisc replace dev eth0 {shape(mbit)}")
            tell(f"tc qdisc replace dev port{machine} {shape(mbit)}")

    def limit_uplinks(self, mbit):
        """Limits the traffic of each rack with the others, both ways."""
        for rack in range(self.racks):
            for port in (f"up{rack}", f"down{rack}"):
                tell(f"tc qdisc replace dev {port} {shape(mbit)}")

    def inside(self, machine, command):
        """Returns the command that runs there with priority, and ends when this process ends."""
        first = ["nice", "-n", str(NICE), "setpriv", "--pdeathsig", "KILL"]
        return ["ip", "netns", "exec", f"m{machine}", *first, *command]

    def remove(self):
        """Removes namespaces and links, so that others can be made."""
        for machine in range(self.count):
            tell(f"ip link del port{machine}")
            tell(f"ip netns del m{machine}")
        for rack in range(self.racks):
            if self.racks > 1:
                tell(f"ip link del up{rack}")
            tell(f"ip link del rack{rack}")
        tell("ip link del core")


def shape(mbit):
    """Returns tc's arguments for a rate."""
    return f"root tbf rate {round(mbit * 1000)}kbit latency {LATENCY} burst {BURST}"


def tell(command):
    """Runs a command; its output is the error if it fails."""
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"`{command}` failed: {(done.stderr or done.stdout).strip()}; needs root, iproute2 and tbf")
