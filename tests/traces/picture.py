"""Draws one step of 16 rows as spans: picture.py FILE.svg, with the environment of the test of traces."""

import html
import math
import secrets
import sys
import time

import numpy
import sortition

from collector import Collector
from rows import serve

VOCABULARY = 32_000
ROWS = 16
STEPS = 30
# The parts of a step have the colours of the status page.
COLOURS = {"worker": "#98a2b3", "step": "#475467", "ready": "#8a6d00", "queue": "#b25e00", "device": "#2563c9",
           "answer": "#19804b"}
WIDTH, LEFT, RIGHT, TOP, HEIGHT = 860, 130, 90, 64, 30
LEAST_TICKS = 4


def record():
    """The spans of the plainest of a few steps, as (depth, span): the worker's, the server's step, and its parts."""
    rows = numpy.random.default_rng(1).standard_normal((ROWS, VOCABULARY)).astype(numpy.float32)
    trace, parents = secrets.token_hex(16), [secrets.token_hex(8) for _ in range(STEPS)]
    with Collector("take") as collector, serve(f"--otlp_endpoint={collector.address}") as server, \
            sortition.Client(server.serving["listen"], rows="full") as client:
        sequences = [client.open(vocabulary_size=VOCABULARY, seed=seed, temperature=0.8, top_k=50)
                     for seed in range(ROWS)]
        workers = []
        for parent in parents:
            begun = time.time_ns()
            client.step(sequences, rows, traceparent=f"00-{trace}-{parent}-01")
            workers.append({"name": "worker", "start": begun, "end": time.time_ns(), "span": parent, "trace": trace})
        client.close()
        server.terminate()
        server.wait()
        spans = collector.end()

    def below(span):
        return sorted((other for other in spans if other["parent"] == span["span"]), key=lambda other: other["start"])

    traces = [[(0, worker), (1, step), *((2, part) for part in below(step))]
              for worker in workers for step in below(worker)]
    return min(traces, key=lambda trace: (len(trace), trace[0][1]["end"] - trace[0][1]["start"]))


def round_down(value):
    """The largest of 1, 2 and 5 times a power of ten that is not above the value."""
    power = 10 ** math.floor(math.log10(value))
    return max(step * power for step in (1, 2, 5) if step * power <= value)


def draw(spans):
    worker, step = spans[0][1], spans[1][1]
    scale = (WIDTH - LEFT - RIGHT) / (worker["end"] - worker["start"])
    bottom = TOP + HEIGHT * len(spans)
    height = bottom + 34
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
             'font-size="13" fill="#1c2430">',
             f"<title>A step of {ROWS} rows of {VOCABULARY} floats over TCP as spans</title>",
             f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
             f'<text x="8" y="22" font-size="15" font-weight="bold">One step of {ROWS} rows of {VOCABULARY:,} floats '
             "over TCP</text>"]
    tick = round_down((worker["end"] - worker["start"]) / LEAST_TICKS)
    for at in range(0, worker["end"] - worker["start"] + 1, tick):
        x = LEFT + at * scale
        lines.append(f'<line x1="{x:.1f}" y1="{TOP - 10}" x2="{x:.1f}" y2="{bottom}" stroke="#dfe3e8"/>'
                     f'<text x="{x:.1f}" y="{TOP - 16}" font-size="11" fill="#667085" text-anchor="middle">'
                     f'{at / 1e6:g} ms</text>')
    for index, (depth, span) in enumerate(spans):
        start = LEFT + (span["start"] - worker["start"]) * scale
        length = max((span["end"] - span["start"]) * scale, 1)
        top = TOP + index * HEIGHT
        lines.append(f'<text class="name" x="{8 + 18 * depth}" y="{top + 18}">{span["name"]}</text>'
                     f'<rect x="{start:.1f}" y="{top + 4}" width="{length:.1f}" height="20" rx="2" '
                     f'fill="{COLOURS[span["name"]]}"/>'
                     f'<text x="{start + length + 6:.1f}" y="{top + 18}">'
                     f'{(span["end"] - span["start"]) / 1e6:.3f} ms</text>')
    shown = {name.removeprefix("gen_ai.request."): value for name, value in step["attributes"].items()
             if name.startswith("gen_ai.")}
    device = next(span["attributes"]["sortition.device"] for _, span in spans if span["name"] == "device")
    facts = [f"trace {step['trace']}", f"{step['attributes']['sortition.rows']:.0f} rows", device,
             *(f"{name} {value:g}" for name, value in sorted(shown.items()))]
    lines.append(f'<text x="8" y="{height - 12}" font-size="11" fill="#667085">{html.escape(" · ".join(facts))}</text>')
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write(draw(record()))
