"""Draws one step of 16 rows as spans: picture.py FILE.svg, with the environment of the test of traces."""

import sys

import numpy
import sortition

from rows import serve
from traces_test import Collector, TRACEPARENT

VOCABULARY = 32_000
ROWS = 16
COLOURS = {"step": "#4477aa", "queue": "#ccbb44", "device": "#228833", "answer": "#ee6677"}


def record():
    """The spans of the last of a few steps."""
    rows = numpy.random.default_rng(1).standard_normal((ROWS, VOCABULARY)).astype(numpy.float32)
    with Collector("take") as collector, serve(f"--otlp_endpoint={collector.address}") as server, \
            sortition.Client(server.serving["listen"], rows="full") as client:
        sequences = [client.open(vocabulary_size=VOCABULARY, seed=seed, top_k=50) for seed in range(ROWS)]
        for _ in range(8):
            client.step(sequences, rows, traceparent=TRACEPARENT)
        server.terminate()
        server.wait()
        spans = collector.end()
    assert all(span["attributes"]["sortition.rows"] == ROWS for span in spans if span["name"] == "step")
    last = max((span for span in spans if span["name"] == "step"), key=lambda span: span["end"])
    return last, sorted((span for span in spans if span["parent"] == last["span"]), key=lambda span: span["start"])


def draw(step, children):
    width, left, height = 760, 90, 30
    scale = (width - left - 110) / (step["end"] - step["start"])
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height * (len(children) + 1) + 10}" '
             'font-family="sans-serif" font-size="13">',
             f"<title>A step of {ROWS} rows of {VOCABULARY} floats over TCP as spans</title>",
             f'<rect width="{width}" height="{height * (len(children) + 1) + 10}" fill="#ffffff"/>']
    for index, span in enumerate([step, *children]):
        start = left + (span["start"] - step["start"]) * scale
        length = max((span["end"] - span["start"]) * scale, 1)
        top = 8 + index * height
        lines.append(f'<text x="8" y="{top + 15}">{span["name"]}</text>'
                     f'<rect x="{start:.1f}" y="{top}" width="{length:.1f}" height="20" '
                     f'fill="{COLOURS[span["name"]]}"/>'
                     f'<text x="{start + length + 6:.1f}" y="{top + 15}">'
                     f'{(span["end"] - span["start"]) / 1e6:.3f} ms</text>')
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="ascii") as file:
        file.write(draw(*record()))
