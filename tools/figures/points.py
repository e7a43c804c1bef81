"""The points that are measured for each figure. Plain data; must not depend on how a run is made."""

from dataclasses import dataclass, fields, replace

from scale import PAPER_SLICE_BYTES, Scale, share_of_model

# The scale of each model. With these scales the cores are less than 60% busy, as measured (docs/figures/schedules.md).
SCALES = {
    "resnet50": Scale(8, 1),
    "inception3": Scale(8, 1),
    "vgg19": Scale(24, 1),
    "sockeye": Scale(8, 1),
    "googlenet": Scale(50, 0.1),
}
NAMES = {"resnet50": "ResNet-50", "inception3": "InceptionV3", "vgg19": "VGG-19", "sockeye": "Sockeye"}
SWEEPS = {
    "resnet50": [2, 3, 4, 5, 6, 8],
    "inception3": [1.5, 2, 3, 4],
    "vgg19": [10, 12.5, 15, 20, 30],
    "sockeye": [2, 4, 6, 8],
}
# The paper's rate, in Gb/s, of each model's figures other than figure 7.
SHOWN_AT = {"resnet50": 4, "vgg19": 15, "sockeye": 4}
SCHEDULES = ["kvstore", "sliced", "p3"]
SLICE_PARAMETERS = [5_000, 10_000, 25_000, 50_000, 250_000, 1_000_000]
# The rates of the sweeps with a hub on a separate machine: about the rates at which P3 gains most.
APART = {"resnet50": [4], "inception3": [2], "vgg19": [12.5], "sockeye": [4]}


@dataclass(frozen=True)
class Point:
    """The settings of a measured point. The fields are the first columns of a row."""

    model: str
    machines: int
    gbps: float
    schedule: str
    consistency: str = "bsp"
    slice_bytes: int = PAPER_SLICE_BYTES
    hubs: str = "beside"
    series: bool = False

    def scale(self):
        """Returns the scale of the model. With more than four machines, which share the same cores, times are longer."""
        scale = SCALES[self.model]
        return replace(scale, time=scale.time * max(1, self.machines / 4))

    def links(self):
        """Returns the Mb/s of each machine's link: one for each worker, and the hub's own if it is separate.

        If each machine has a hub and a worker, its link carries gradients and weights each way, except for the share of its own
        hub. With a separate hub, a worker's link carries the model once each way, and its rate is lower in proportion. The hub's
        link has the rate of all workers' links together.
        """
        mbit = self.scale().mbit(self.gbps)
        if self.hubs == "beside":
            return [mbit] * self.machines
        worker = mbit / share_of_model(self.machines)
        return [worker] * self.machines + [worker * self.machines]

    def key(self):
        """Returns the first columns of the point's rows in the table."""
        return tuple(str(getattr(self, field.name)) for field in fields(self))


KEY = [field.name for field in fields(Point)]


def bandwidth(schedules=SCHEDULES):
    """Returns the points of figure 7."""
    for model, rates in SWEEPS.items():
        for gbps in rates:
            for schedule in schedules:
                yield Point(model, 4, gbps, schedule)


def apart():
    """Yields points that are not in P3's paper: the settings of figure 7, but with a separate hub. The rate of the hub's link is
    the sum of the rates of all workers' links."""
    for model, rates in APART.items():
        for gbps in rates:
            for schedule in ["kvstore", "p3"]:
                yield Point(model, 4, gbps, schedule, hubs="apart")


def utilisation():
    """Returns the points of figures 8 (kvstore) and 9 (p3)."""
    for model, gbps in SHOWN_AT.items():
        for schedule in ["kvstore", "p3"]:
            yield Point(model, 4, gbps, schedule, series=True)


def machines():
    """Returns the points of figure 10: AWS, 10 Gb/s."""
    for model in SHOWN_AT:
        for count in [2, 4, 8]:
            for schedule in ["kvstore", "p3"]:
                yield Point(model, count, 10, schedule)


def slices():
    """Returns the points of figure 12, at the rate where P3 gains most."""
    for model in ["resnet50", "vgg19"]:
        for parameters in SLICE_PARAMETERS:
            yield Point(model, 4, SHOWN_AT[model], "p3", slice_bytes=4 * parameters)


def asgd():
    """Yields the points of appendix B.2, for speed only. ASGD answers each push at once, and P3 when all workers have pushed."""
    for gbps in [1, 2, 4]:
        yield Point("resnet50", 4, gbps, "sliced", consistency="asp")
        yield Point("resnet50", 4, gbps, "p3")


def late():
    """Yields the points of TensorFlow's pull (P3, section 2), which is not in P3's figures. `late` differs from
    the baseline: a worker pulls when the next iteration begins, layer by layer."""
    for model, rates in APART.items():
        for schedule in ["kvstore", "late", "p3"]:
            yield Point(model, 4, rates[0], schedule)


def codec():
    """Yields points that are not in P3's paper: P3 with compression, compared with P3 alone and compression alone. A codec
    follows the schedule's name. The rates are a quarter of the rates at which P3 gains most, since QSGD of 8 bits sends a quarter
    of the bytes."""
    for model, gbps in [("resnet50", 1), ("vgg19", 3.125)]:
        for schedule in ["sliced", "p3", "sliced+qsgd:8:512", "p3+qsgd:8:512"]:
            yield Point(model, 4, gbps, schedule)


def trial():
    """Yields points of no figure: two machines and a small model, which show within two seconds that everything works."""
    yield Point("googlenet", 2, 4, "kvstore")
    yield Point("googlenet", 2, 4, "p3", series=True)


FIGURES = {"7": bandwidth, "8": utilisation, "9": utilisation, "10": machines, "12": slices, "asgd": asgd,
           "apart": apart, "late": late, "codec": codec}
KINDS = {**FIGURES, "trial": trial}
# The points of `--quick`: all kinds of runs, in a few minutes.
QUICK = [
    *(Point("resnet50", 4, gbps, schedule) for gbps in [2, 4, 10] for schedule in ["kvstore", "p3"]),
    *(Point("vgg19", 4, gbps, schedule) for gbps in [15] for schedule in ["kvstore", "p3"]),
    *(Point("sockeye", 4, 4, schedule, series=series) for series in [False, True] for schedule in ["kvstore", "p3"]),
    *(Point("resnet50", 2, 10, schedule) for schedule in ["kvstore", "p3"]),
    *(Point("resnet50", 4, 4, "p3", slice_bytes=4 * parameters) for parameters in [5_000, 1_000_000]),
    Point("resnet50", 4, 4, "sliced", consistency="asp"),
]


def chosen(figures, quick, hubs=None):
    """Returns the points of these figures, or of all figures if none is named, each once, in order."""
    points = dict.fromkeys(point for name in (figures or FIGURES) for point in KINDS[name]())
    if quick:
        points = [point for point in QUICK if not figures or point in points]
    return [replace(point, hubs=hubs or point.hubs) for point in points]
