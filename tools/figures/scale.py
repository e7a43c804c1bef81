"""The scaling of P3's machines ("there") to namespaces on a few cores ("here"): arithmetic only, no measurements.

    P3's GPU, its network, its links     ->  times x `time`, tensors / `shrink`, rates / (shrink x time)

So the ratio of communication time to computing time is the same here and there. The processor time of a message and the time of
a wake-up are not scaled.
"""

from dataclasses import dataclass

# The size of P3's slices: 50,000 f32. From this size on, P3's baseline splits a tensor over servers.
PAPER_SLICE_BYTES = 200_000
# The bytes that may be in flight on a link of P3's machines, with every schedule. Without this bound, the kernel
# would buffer as many bytes of a connection as on a fast link, `shrink` times too many. Urgent slices and the
# baseline's notices and pulls would wait for these bytes.
CREDIT_BYTES = 128 << 10
# The bytes that a socket may have in its link's queue on P3's machines: as in Linux 4.4. Today's default of 4 MiB
# is a third of a shrunk ResNet-50.
SOCKET_BYTES = 256 << 10
# The size of a cache line, in bytes. A chunk is a multiple of it.
LINE = 64
# The speeds of P3's GPUs, in samples a second; docs/compute.md names the sources.
SAMPLES_PER_S = {"resnet50": 97.5, "inception3": 64.0, "vgg19": 57.5, "sockeye": 96.0, "googlenet": 261.0}
BATCH = 32


@dataclass(frozen=True)
class Scale:
    """A scale: on the rig, tensors are `shrink` times smaller, and times are `time` times longer."""

    shrink: int
    time: float

    def __post_init__(self):
        if self.shrink < 1 or not self.time > 0:
            raise ValueError(f"a scale of {self}: expected shrink of 1 or more, and time above 0")

    def mbit(self, gbps):
        """Returns the rate on the rig, in Mb/s, of a link that has `gbps` on P3's machines."""
        return gbps * 1000 / (self.shrink * self.time)

    def gbps(self, mbit):
        """Returns the rate on P3's machines, in Gb/s, of a link that has `mbit` on the rig."""
        return mbit * self.shrink * self.time / 1000

    def bytes(self, there):
        """Returns the size on the rig of a slice or chunk with `there` bytes on P3's machines, in whole
        cache lines."""
        return max(LINE, round(there / self.shrink / LINE) * LINE)

    def samples_per_s(self, here):
        """Returns the speed on P3's machines, in samples a second, for a speed on the rig."""
        return here * self.time

    def sample_ms(self, there):
        """Returns the interval of a series on the rig that has a sample every `there` ms on P3's machines."""
        return there * self.time


def share_of_model(machines):
    """Returns the bytes that a machine sends in an iteration, and receives, as a multiple of the model's bytes. Each machine has
    a hub and a worker.

    A machine sends gradients to the other hubs, and a copy of its hub's weights to each other worker.
    """
    if machines < 1:
        raise ValueError(f"{machines} machines: expected 1 or more")
    return 2 * (machines - 1) / machines


def model_gbps(gbps, machines):
    """Returns the rate at which a link of `gbps` carries the model each way: the probe's --bandwidth-gbps."""
    share = share_of_model(machines)
    return gbps / share if share else None
