"""The scaling of P3's machines to namespaces on a few cores: pure arithmetic, no measuring.

    P3's GPU, its network, its links     ->  times x `time`, tensors / `shrink`, rates / (shrink x time)

Bytes over rate and computing are to each other as they were. Not scaled: the processor time of a message, and
the time of a wake-up.
"""

from dataclasses import dataclass

# P3's slice, 50,000 f32, and the size from which its baseline splits a tensor over servers.
PAPER_SLICE_BYTES = 200_000
# Bytes that may be under way on a link, there, with every schedule. Otherwise the kernel would hold as much of a connection
# as on a fast link, `shrink` times too much, and urgent slices and the baseline's notices and pulls would wait for it.
CREDIT_BYTES = 128 << 10
# Bytes that a socket may have in its link's queue, there: as in Linux 4.4 on P3's machines. Today's default of 4 MiB is a
# third of a shrunk ResNet-50.
SOCKET_BYTES = 256 << 10
# A chunk is a multiple of a cache line.
LINE = 64
# P3's GPUs; docs/compute.md names the sources.
SAMPLES_PER_S = {"resnet50": 97.5, "inception3": 64.0, "vgg19": 57.5, "sockeye": 96.0, "googlenet": 261.0}
BATCH = 32


@dataclass(frozen=True)
class Scale:
    """Tensors are `shrink` times smaller, times `time` times longer."""

    shrink: int
    time: float

    def __post_init__(self):
        if self.shrink < 1 or not self.time > 0:
            raise ValueError(f"a scale of {self}: expected shrink of 1 or more, and time above 0")

    def mbit(self, gbps):
        """Returns the rate here of a link with `gbps` there."""
        return gbps * 1000 / (self.shrink * self.time)

    def gbps(self, mbit):
        """Returns the rate there."""
        return mbit * self.shrink * self.time / 1000

    def bytes(self, there):
        """Returns the size of a slice or chunk here, in whole lines, that has `there` bytes there."""
        return max(LINE, round(there / self.shrink / LINE) * LINE)

    def samples_per_s(self, here):
        """Returns samples a second of P3's machines."""
        return here * self.time

    def sample_ms(self, there):
        """Returns the step of a series with a sample every `there` ms there."""
        return there * self.time


def share_of_model(machines):
    """Returns how many times the model's bytes leave and reach a machine in an iteration, with a hub and a
    worker on each machine.

    Gradients for the other hubs, and a copy of its hub's weights for each other worker.
    """
    if machines < 1:
        raise ValueError(f"{machines} machines: expected 1 or more")
    return 2 * (machines - 1) / machines


def model_gbps(gbps, machines):
    """Returns the rate at which a link of `gbps` carries the model each way: the probe's --bandwidth-gbps."""
    share = share_of_model(machines)
    return gbps / share if share else None
