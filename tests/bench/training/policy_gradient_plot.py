"""Draws docs/policy-gradient.svg, mismatch KL and reward by step, from figures of client/examples/policy_gradient.py.

    policy_gradient_plot.py FIGURES.json PICTURE.svg

docs/benchmarks/policy-gradient.json has the figures of the picture in the tree.
"""

import json
import math
import sys

LEAST, MOST = 1e-6, 1e-1  # mismatch KL
USUAL = 3e-4
TOP, BOTTOM = 40, 300
KL, REWARD = (70, 360), (440, 710)  # left and right of each part
RUNS = (("top_p_1", "top-p 1", "#2166ac"), ("without_sets", "top-p {}, without kept sets", "#b2182b"),
        ("with_sets", "top-p {}, with kept sets", "#1b7837"))


def height_of_kl(value):
    share = math.log(min(MOST, max(LEAST, value)) / LEAST) / math.log(MOST / LEAST)
    return BOTTOM - (BOTTOM - TOP) * share


def height_of_reward(value):
    return BOTTOM - (BOTTOM - TOP) * value


def line(values, part, height_of, color):
    left, right = part
    points = " ".join(f"{left + (right - left) * step / max(1, len(values) - 1):.1f},{height_of(value):.1f}"
                      for step, value in enumerate(values))
    return f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/>'


def level(part, y, label, more='stroke="#ddd"'):
    left, right = part
    return (f'<line x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" {more}/>'
            f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')


def draw(figures):
    """The picture, from the program's figures."""
    runs, top_p = figures["runs"], figures["top_p"]
    svg = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 730 370" font-family="sans-serif" font-size="12">',
           "<title>Mismatch KL and reward, by training step</title>", '<rect width="100%" height="100%" fill="white"/>',
           f'<text x="{KL[0]}" y="24">mismatch KL</text><text x="{REWARD[0]}" y="24">reward a token</text>']
    svg += [level(KL, height_of_kl(10.0**exponent), f"1e{exponent}") for exponent in range(-6, 0)]
    svg.append(level(KL, height_of_kl(USUAL), "3e-4", 'stroke="#444" stroke-dasharray="5 4"'))
    svg += [level(REWARD, height_of_reward(value), value) for value in (0, 0.25, 0.5, 0.75, 1)]
    for number, (name, label, color) in enumerate(RUNS):
        svg.append(line(runs[name]["mismatch_kl"], KL, height_of_kl, color))
        svg.append(line(runs[name]["reward"], REWARD, height_of_reward, color))
        svg.append(f'<rect x="{80 + 200 * number}" y="350" width="12" height="3" fill="{color}"/>'
                   f'<text x="{96 + 200 * number}" y="356">{label.format(top_p)}</text>')
    steps = len(runs["top_p_1"]["reward"])
    for left, right in (KL, REWARD):
        svg.append(f'<text x="{left}" y="318" text-anchor="middle">1</text>'
                   f'<text x="{right}" y="318" text-anchor="middle">{steps}</text>'
                   f'<text x="{(left + right) / 2:.0f}" y="318" text-anchor="middle">step</text>')
    return "\n".join([*svg, "</svg>", ""])


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as given:
        picture = draw(json.load(given))
    with open(sys.argv[2], "w", encoding="utf-8") as out:
        out.write(picture)
