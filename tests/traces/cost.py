"""Measures the cost of traces: cost.py [STEPS], with the environment of the test of traces.

Prints the median and the 99th percentile of the smallest steps, one row of 1,000 floats, without traces and with each
kind of collector.
"""

import statistics
import sys
import time

import numpy
import sortition

from collector import Collector
from rows import VOCABULARY, row, serve

ROUNDS = 5
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
# How the collector behaves; None: the server has none. The worker traces each step, or none in "not sampled".
CASES = {"no collector": None, "not sampled": "drop", "takes them": "drop", "refuses": "refuse",
         "answers late": "sleep", "is not there": "dead"}


def times(case, steps):
    """Microseconds of each step."""
    mode = CASES[case]
    with Collector("drop" if mode in (None, "dead") else mode) as collector:
        if mode == "dead":
            collector.end()
        flags = [f"--otlp_endpoint={collector.address}"] if mode else []
        logits = numpy.stack([row(1)])
        with serve(*flags) as server, sortition.Client(server.serving["listen"]) as client:
            sequence = client.open(vocabulary_size=VOCABULARY, seed=1)
            found = []
            for _ in range(steps):
                begun = time.perf_counter_ns()
                client.step([sequence], logits, traceparent="" if case == "not sampled" else TRACEPARENT)
                found.append((time.perf_counter_ns() - begun) / 1e3)
            return found[steps // 10:]


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    found = {case: [] for case in CASES}
    for _ in range(ROUNDS):  # in turn, so that other work of the machine meets all of them
        for case, of_case in found.items():
            of_case.extend(times(case, steps))
    for case, of_case in found.items():
        percentiles = statistics.quantiles(of_case, n=100)
        print(f"{case:14} p50 {percentiles[49]:7.1f} us   p99 {percentiles[98]:7.1f} us   of {len(of_case)} steps")


if __name__ == "__main__":
    main()
