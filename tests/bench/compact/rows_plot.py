"""Draws docs/rows.svg, bytes of a compact row and microseconds a row of a step by first tokens, from JSON of the suite.

    rows_plot.py FIGURES.json PICTURE.svg

FIGURES is what `./dev bench compact --json` writes; docs/benchmarks/compact.json has those of the picture in the tree.
"""

import json
import math
import sys

COUNTS = (64, 128, 256, 512, 1024)
STEP_ROWS = 64
TOP, BOTTOM, WIDTH = 40, 300, 260
PANELS = ((70, "bytes a row", "bytes_{}", 1, (100, 1000000)),
          (430, "µs a row, steps of 64 over TCP", f"step_tcp_{STEP_ROWS}_{{}}", STEP_ROWS, (10, 1000)))
COMPACT, WHOLE = "#2166ac", "#b2182b"


def panel(figures, left, label, name, parts, limits):
    """One diagram: the whole row as a level line, compact rows by count. Both axes are logarithmic."""
    def x_of(count):
        return left + WIDTH * math.log(count / COUNTS[0]) / math.log(COUNTS[-1] / COUNTS[0])

    def y_of(value):
        return BOTTOM - (BOTTOM - TOP) * math.log(value / limits[0]) / math.log(limits[1] / limits[0])

    svg = [f'<text x="{left}" y="24">{label}</text>']
    level = limits[0]
    while level <= limits[1]:
        y = y_of(level)
        svg.append(f'<line x1="{left}" x2="{left + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
                   f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{level}</text>')
        level *= 10
    for count in COUNTS:
        svg.append(f'<text x="{x_of(count):.1f}" y="{BOTTOM + 18}" text-anchor="middle">{count}</text>')
    for color, part in ((WHOLE, "value"), (COMPACT, "baseline")):
        points = " ".join(f"{x_of(count):.1f},{y_of(figures[name.format(count)][part] / parts):.1f}"
                          for count in COUNTS)
        svg.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
    svg.append(f'<text x="{left + WIDTH / 2}" y="{BOTTOM + 36}" text-anchor="middle">first tokens</text>')
    return svg


def draw(figures):
    """The picture, from the suite's results."""
    by_name = {result["name"]: result for result in figures["results"]}
    svg = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 370" font-family="sans-serif" font-size="12">',
           "<title>Bytes and time of a row, whole and compact, by first tokens</title>",
           '<rect width="100%" height="100%" fill="white"/>']
    for diagram in PANELS:
        svg += panel(by_name, *diagram)
    for x, color, label in ((260, WHOLE, "whole"), (380, COMPACT, "compact")):
        svg.append(f'<rect x="{x}" y="354" width="12" height="3" fill="{color}"/>'
                   f'<text x="{x + 16}" y="360">{label}</text>')
    return "\n".join([*svg, "</svg>", ""])


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        figures = json.load(file)
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write(draw(figures))


if __name__ == "__main__":
    main()
