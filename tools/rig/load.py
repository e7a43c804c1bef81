"""The load of the cores and of a machine's link, from /proc. Owned by the thread that measures."""

import os
import time

HERTZ = os.sysconf("SC_CLK_TCK")


class Load:
    """Samples of the cores' time since the start."""

    def __init__(self, pids):
        self.pids = pids
        self.looks = []
        self.look()

    def look(self):
        """Takes a sample."""
        with open("/proc/stat") as file:
            user, nice, system, idle, iowait, irq, softirq, steal, *_ = map(int, file.readline().split()[1:])
        busy, interrupts = user + nice + system + irq + softirq + steal, irq + softirq
        own = sum(process_ticks(pid) for pid in self.pids) + round(time.process_time() * HERTZ)
        self.looks.append((time.monotonic(), busy, busy + idle + iowait, own + interrupts))

    def shares(self, seconds):
        """Returns two shares of the cores' time in the last `seconds`: the busy part, and the part in which other processes
        worked."""
        end = self.looks[-1]
        begin = max((look for look in self.looks if look[0] <= end[0] - seconds), default=self.looks[0])
        _, busy, total, own = (late - early for late, early in zip(end, begin))
        return busy / max(total, 1), max(0, busy - own) / max(total, 1)


def process_ticks(pid):
    """Returns the user and system time of a process and its children, of all threads, in ticks."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            children = file.read().split()
        return int(fields[11]) + int(fields[12]) + sum(process_ticks(child) for child in children)
    except OSError:
        return 0


class Link:
    """Samples of the bytes that were sent and received over eth0, in the network namespace of a process."""

    def __init__(self, pid):
        self.path = f"/proc/{pid}/net/dev"
        self.series = []

    def look(self):
        """Takes a sample: seconds, bytes received, bytes sent."""
        try:
            with open(self.path) as file:
                lines = file.readlines()
        except OSError:
            return  # the process has ended
        for line in lines:
            name, _, counts = line.partition(":")
            if name.strip() == "eth0":
                fields = counts.split()
                self.series.append((time.monotonic(), int(fields[0]), int(fields[8])))


def rates(series, step_s):
    """Returns the rates of each step from samples of (seconds, bytes, bytes): seconds since the first sample, Mb/s, Mb/s.

    Samples may be late, so the bytes between two samples are spread evenly over the time between them.
    """
    if len(series) < 2:
        return []
    begin, end = series[0][0], series[-1][0]
    steps = int((end - begin) / step_s)
    edges, at = [], 0
    for step in range(steps + 1):
        moment = begin + step * step_s
        while at + 2 < len(series) and series[at + 1][0] < moment:
            at += 1
        (t0, *early), (t1, *late) = series[at], series[at + 1]
        part = (moment - t0) / (t1 - t0) if t1 > t0 else 0
        edges.append([a + (b - a) * part for a, b in zip(early, late)])
    mbit = 8 / 1e6 / step_s
    return [
        (step * step_s, *((b - a) * mbit for a, b in zip(edges[step], edges[step + 1])))
        for step in range(steps)
    ]
