"""Draws docs/break-even.svg, microseconds a row by rows a step and by transport, from JSON of the suite.

    break_even.py FIGURES.json PICTURE.svg

FIGURES is what `./dev bench wire --json` writes; docs/benchmarks/break-even.json has those of the picture in the tree.
"""

import json
import math
import sys

ROWS = (1, 16, 64)
ROW_BYTES = 128256 * 2  # bf16
NETWORK_US = 50  # there and back
LEFT, RIGHT, TOP, BOTTOM = 70, 700, 30, 340
LEAST_US, MOST_US = 10, 500
MEASURED = (("in_process", "in process", "#1b7837"), ("ring", "ring", "#762a83"),
            ("shm", "shared memory", "#2166ac"), ("tcp", "TCP, loopback", "#b2182b"))
REMOTE = ((100, "#e08214"), (10, "#636363"))  # Gbit/s


def x_of(rows):
    return LEFT + (RIGHT - LEFT) * math.log2(rows) / math.log2(ROWS[-1])


def y_of(microseconds):
    return BOTTOM - (BOTTOM - TOP) * math.log(microseconds / LEAST_US) / math.log(MOST_US / LEAST_US)


def line(a_row, color, dashes=""):
    points = " ".join(f"{x_of(rows):.1f},{y_of(us):.1f}" for rows, us in zip(ROWS, a_row))
    return f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"{dashes}/>'


def draw(figures):
    """The picture, from the suite's results."""
    values = {result["name"]: result["value"] for result in figures["results"]}
    a_row = {name: [values[f"step_{name}_{rows}"] / rows for rows in ROWS] for name, _, _ in MEASURED}
    svg = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 400" font-family="sans-serif" font-size="12">',
           "<title>Microseconds a row, by rows a step and by transport</title>",
           '<rect width="100%" height="100%" fill="white"/>']
    for us in (10, 20, 50, 100, 200, 500):
        svg.append(f'<line x1="{LEFT}" x2="{RIGHT}" y1="{y_of(us):.1f}" y2="{y_of(us):.1f}" stroke="#ddd"/>'
                   f'<text x="64" y="{y_of(us) + 4:.1f}" text-anchor="end">{us}</text>')
    for rows in (1, 2, 4, 8, 16, 32, 64):
        svg.append(f'<text x="{x_of(rows):.1f}" y="358" text-anchor="middle">{rows}</text>')
    svg.append('<text x="385.0" y="376" text-anchor="middle">rows a step</text>'
               '<text x="16" y="180" transform="rotate(-90 16 180)" text-anchor="middle">µs a row</text>')
    for index, (name, label, color) in enumerate(MEASURED):
        x = 80 + 130 * index
        svg.append(line(a_row[name], color))
        svg.append(f'<rect x="{x}" y="386" width="12" height="3" fill="{color}"/>'
                   f'<text x="{x + 16}" y="392">{label}</text>')
    for gigabits, color in REMOTE:
        link_us = ROW_BYTES * 8 / (gigabits * 1e3)
        remote = [max(us, link_us) + NETWORK_US / rows for us, rows in zip(a_row["tcp"], ROWS)]
        svg.append(line(remote, color, ' stroke-dasharray="6 4"'))
        label_y = y_of(remote[-1]) - 6
        svg.append(f'<text x="570" y="{label_y:.1f}" fill="{color}">remote, {gigabits} Gbit/s</text>')
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
