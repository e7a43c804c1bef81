"""The times at which batches of layers are pulled and computed (iBatch, figure 4). Pure functions; must not measure or draw."""

import itertools


def timeline(costs, start_up, batches):
    """Returns the spans of all pulls and of all forward passes, each as its begin and its end.

    `costs` has each layer's time of transfer and of the forward pass, and `batches` the number of layers of each batch. Pulls
    follow each other. A batch computes after its pull and after the batch before it.
    """
    pulls, forwards, layers = [], [], iter(costs)
    for count in batches:
        batch = list(itertools.islice(layers, count))
        begin = pulls[-1][1] if pulls else 0
        pulls.append((begin, begin + start_up + sum(transfer for transfer, _ in batch)))
        begin = max(pulls[-1][1], forwards[-1][1] if forwards else 0)
        forwards.append((begin, begin + sum(forward for _, forward in batch)))
    return pulls, forwards


def best(costs, start_up):
    """Tries all ways to make batches. Returns the way whose last forward pass ends first; of several such
    ways, the way with the fewest batches."""
    count = len(costs)
    cuts = (cut for number in range(count) for cut in itertools.combinations(range(1, count), number))
    batches = ([end - begin for begin, end in zip((0, *cut), (*cut, count))] for cut in cuts)
    return min(batches, key=lambda batches: timeline(costs, start_up, batches)[1][-1][1])


def of_pulls(rows):
    """Returns the layers' costs and the start-up, from the rows of figure 3. Each pull contains
    a start-up. The pull of the smallest layer, with 0.1% of the bytes, counts as a start-up alone."""
    pulls = [float(row["pull_ms"]) for row in rows]
    start_up = min(pulls)
    return [(pull - start_up, float(row["forward_ms"])) for pull, row in zip(pulls, rows)], start_up
