"""Draws docs/engines.svg, tokens a second of whole engines with Sortition and without, from JSON of the suite.

    picture.py FIGURES.json PICTURE.svg

FIGURES is what `./dev bench engines --json` writes; docs/benchmarks/engines.json has those of the picture in the tree.
The rows of README's table are printed.
"""

import json
import math
import sys

LEFT, RIGHT, TOP, BOTTOM = 60, 700, 40, 300
LEAST, MOST = 5, 20000  # tokens a second
CASES = (("vllm_16_full", "vLLM, 16 texts: filters, penalty"), ("vllm_16_greedy", "vLLM, 16 texts: greedy"),
         ("hf_32_full", "Transformers, 32 texts: filters, penalty"),
         ("llama_server_32", "llama-server, 32 texts: filters, penalties"))
BARS = (("own", "the engine alone", "#636363"), ("in_process", "Sortition in process", "#1b7837"),
        ("service", "Sortition as a service, Unix socket", "#2166ac"))


def cases_of(figures):
    """Returns figures by label and bar, of those cases that were measured."""
    results = {result["name"]: result for result in figures["results"]}
    return {label: {"own": results[name]["own"], "in_process": results[name]["ours"],
                    "service": results[f"{name}_service"]["ours"]} for name, label in CASES if name in results}


def table(figures):
    """Returns rows of Markdown: tokens a second, and the median time between the tokens of a text."""
    rows = []
    for label, bars in cases_of(figures).items():
        cells = [f"{bars[bar]['tokens_per_second']:.0f} / s, {text_of(bars[bar]['ms_between_tokens'])}"
                 for bar, _, _ in BARS]
        rows.append("| " + " | ".join([label, *cells]) + " |")
    return rows


def text_of(milliseconds):
    return f"{milliseconds:.1f} ms" if milliseconds < 10 else f"{milliseconds:.0f} ms"


def y_of(speed):
    return BOTTOM - (BOTTOM - TOP) * math.log(speed / LEAST) / math.log(MOST / LEAST)


def draw(figures):
    """Returns the picture of the suite's results."""
    svg = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 370" font-family="sans-serif" font-size="12">',
           "<title>Tokens a second, and time between tokens, of engines with Sortition and without</title>",
           '<rect width="100%" height="100%" fill="white"/>',
           f'<text x="{LEFT}" y="22">tokens a second (bars) and the time between two tokens of a text</text>']
    for speed in (5, 20, 50, 200, 500, 2000, 5000, 20000):
        svg.append(f'<line x1="{LEFT}" x2="{RIGHT}" y1="{y_of(speed):.1f}" y2="{y_of(speed):.1f}" stroke="#ddd"/>'
                   f'<text x="{LEFT - 6}" y="{y_of(speed) + 4:.1f}" text-anchor="end">{speed}</text>')
    cases = cases_of(figures)
    width = (RIGHT - LEFT) / max(len(cases), 1)
    step = (width - 20) / len(BARS)
    for place, (label, bars) in enumerate(cases.items()):
        first = LEFT + width * place + 20
        for line, text in enumerate(label.split(": ")):
            svg.append(f'<text x="{first - 8:.1f}" y="{BOTTOM + 16 + 13 * line}" font-size="10">{text}</text>')
        for index, (bar, _, color) in enumerate(BARS):
            x, top = first + step * index, y_of(bars[bar]["tokens_per_second"])
            svg.append(f'<rect x="{x:.1f}" y="{top:.1f}" width="{step - 8:.1f}" height="{BOTTOM - top:.1f}" '
                       f'fill="{color}"/>'
                       f'<text x="{x + step / 2 - 4:.1f}" y="{top - 5:.1f}" text-anchor="middle" font-size="11">'
                       f'{text_of(bars[bar]["ms_between_tokens"])}</text>')
    for index, (_, label, color) in enumerate(BARS):
        x = LEFT + (0, 150, 320)[index]
        svg.append(f'<rect x="{x}" y="344" width="12" height="12" fill="{color}"/>'
                   f'<text x="{x + 18}" y="354">{label}</text>')
    return "\n".join([*svg, "</svg>", ""])


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        figures = json.load(file)
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write(draw(figures))
    print("\n".join(table(figures)))


if __name__ == "__main__":
    main()
