"""Load for a long time: memory, descriptors and latency stay where they were.

    soak.py [--seconds=N] [--plant]

Generations of workers follow one another. Between generations the server's memory and descriptors are read, and the
slowest percent of each generation's steps. Their growth over the whole run, along the regression line, must be within
their variation. Latency is judged in runs of ten minutes and more.
"""

import argparse
import statistics
import sys
import time

from faults import World
from replicas import await_true

GENERATIONS = 12
WARM_UP = 2  # generations that are not judged: allocators and caches fill
MOST_LATENCY_DRIFT = 0.10
LEAST_SECONDS_OF_LATENCY = 600  # in less time, other work on the machine weighs more than a slow loss in the server


def growth(values):
    """Rise of the regression line through the values from first to last, and the deviation around it."""
    count = len(values)
    mean = statistics.fmean(values)
    middle = (count - 1) / 2
    slope = sum((i - middle) * (value - mean) for i, value in enumerate(values))
    slope /= sum((i - middle) ** 2 for i in range(count))
    residuals = [value - mean - slope * (i - middle) for i, value in enumerate(values)]
    return slope * (count - 1), statistics.pstdev(residuals)


def settled_descriptors(world):
    """Leaves out connections that are just being closed, the metrics' own among them."""
    counts = []
    for _ in range(10):
        time.sleep(0.05)
        counts.append(world.descriptors(0))
    return min(counts)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--plant", action="store_true", help="add a leak to what is read, which must be found")
    options = parser.parse_args()
    resident, descriptors, p99_ms = [], [], []
    tokens = 0
    # A generation's sequences expire before memory is judged.
    with World(1, ("--sequence_ttl=1s",)) as world:
        for generation in range(GENERATIONS):
            with world.workers() as workers:
                world.await_streams()
                time.sleep(options.seconds / GENERATIONS)
                found = workers.stop()
            if found["failed"] or found["different"]:
                sys.exit(f"soak: {found['failed']} steps failed, {found['different']} tokens differ")
            tokens += found["tokens"]
            world.await_streams(0)
            await_true("no sequence is held", lambda: world.gauge(0, "sortition_live_sequences") == 0)
            resident.append(world.resident_bytes(0) / 2**20 + (8 * generation if options.plant else 0))
            descriptors.append(settled_descriptors(world))
            p99_ms.append(found["p99_ms"])
            print(f"soak: generation {generation + 1} of {GENERATIONS}: {tokens} tokens, {resident[-1]:.1f} MB, "
                  f"{descriptors[-1]} descriptors, p99 {p99_ms[-1]:.2f} ms", file=sys.stderr)
    wrong = []
    grown, deviation = growth(resident[WARM_UP:])
    # A deviation of nothing would make a page of growth a finding.
    if grown > max(4 * deviation, 4):
        wrong.append(f"memory grows by {grown:.1f} MB")
    if descriptors[-1] > descriptors[WARM_UP]:
        wrong.append(f"descriptors grow from {descriptors[WARM_UP]} to {descriptors[-1]}")
    drift, noise = growth(p99_ms[WARM_UP:])
    usual = statistics.median(p99_ms[WARM_UP:])
    if options.seconds >= LEAST_SECONDS_OF_LATENCY and drift > max(MOST_LATENCY_DRIFT * usual, 4 * noise):
        wrong.append(f"p99 grows by {drift:.2f} ms from {usual:.2f} ms")
    if wrong:
        sys.exit("soak: " + "; ".join(wrong))
    print(f"soak: {options.seconds:.0f} s, {tokens} tokens, 0 differ, 0 steps failed; memory {grown:+.1f} MB, "
          f"descriptors {descriptors[-1] - descriptors[WARM_UP]:+d}, p99 {drift / usual:+.0%}")


if __name__ == "__main__":
    main()
