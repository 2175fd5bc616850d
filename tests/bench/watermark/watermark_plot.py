"""Draws docs/watermark.svg, marked texts found by entropy, from figures of bench_watermark --json.

    watermark_plot.py FIGURES.json PICTURE.svg

docs/benchmarks/watermark.json has the figures of the picture in the tree.
"""

import json
import sys

LEFT, RIGHT, TOP, BOTTOM = 60, 560, 40, 280
MOST_ENTROPY = 2.2  # nats a token
LEVELS = (("0.001", "#1b7837"), ("1e-06", "#2166ac"))


def draw(results):
    """The picture, from the program's results."""
    value = {result["name"]: result["value"] for result in results}
    temperatures = [name.split("_", 1)[1] for name in value if name.startswith("entropy_")]

    def point(entropy, share):
        return f"{LEFT + (RIGHT - LEFT) * entropy / MOST_ENTROPY:.1f},{BOTTOM - (BOTTOM - TOP) * share:.1f}"

    svg = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 340" font-family="sans-serif" font-size="12">',
           "<title>Marked texts of 200 tokens that are found, by entropy</title>",
           '<rect width="100%" height="100%" fill="white"/>',
           f'<text x="{LEFT}" y="24">share of marked texts of 200 tokens that are found</text>']
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = BOTTOM - (BOTTOM - TOP) * share
        svg.append(f'<line x1="{LEFT}" x2="{RIGHT}" y1="{y}" y2="{y}" stroke="#ddd"/>'
                   f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{share}</text>')
    for tenth in range(0, 21, 5):
        x = LEFT + (RIGHT - LEFT) * tenth / 10 / MOST_ENTROPY
        svg.append(f'<text x="{x:.1f}" y="{BOTTOM + 18}" text-anchor="middle">{tenth / 10}</text>')
    svg.append(f'<text x="{(LEFT + RIGHT) / 2}" y="{BOTTOM + 36}" text-anchor="middle">entropy, nats a token</text>')
    for number, (level, color) in enumerate(LEVELS):
        points = [point(value[f"entropy_{t}"], value[f"found_{t}/{level}"]) for t in temperatures]
        svg.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{color}" stroke-width="1.5"/>')
        svg += [f'<circle cx="{x}" cy="{y}" r="3" fill="{color}"/>' for x, y in (p.split(",") for p in points)]
        svg.append(f'<rect x="{LEFT + 180 * number}" y="330" width="12" height="3" fill="{color}"/>'
                   f'<text x="{LEFT + 18 + 180 * number}" y="335">p-value below {float(level):g}</text>')
    return "\n".join([*svg, "</svg>", ""])


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as given:
        picture = draw(json.load(given)["results"])
    with open(sys.argv[2], "w", encoding="utf-8") as out:
        out.write(picture)
