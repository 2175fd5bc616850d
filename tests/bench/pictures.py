"""Draws the pictures of docs from the figures that benchmarks and programs write as JSON.

    pictures.py NAME FIGURES.json PICTURE.svg

The figures of the pictures in the tree are in docs/benchmarks. NAME is one of

    break-even       microseconds a row by rows a step and by transport: ./dev bench wire --json
    engines          tokens a second of whole engines with Sortition and without: ./dev bench engines --json
    policy-gradient  mismatch KL and reward by step: client/examples/policy_gradient.py
    rows             bytes of a compact row, and microseconds a row of a step: ./dev bench compact --json
    watermark        marked texts found, by entropy: bench_watermark --json
"""

import json
import math
import sys


def svg(size, title, parts):
    width, height = size
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="12">', f"<title>{title}</title>", '<rect width="100%" height="100%" fill="white"/>', *parts,
        "</svg>", ""])


def log_scale(begin, end, least, most):
    """From a value to its place, between the places of the least and the most."""
    return lambda value: begin + (end - begin) * math.log(value / least) / math.log(most / least)


def curve(points, color, width=2, more=""):
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{text}" fill="none" stroke="{color}" stroke-width="{width}"{more}/>'


def level(left, right, y, label, more='stroke="#ddd"'):
    return (f'<line x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" {more}/>'
            f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')


def legend(x, y, color, label):
    return (f'<rect x="{x}" y="{y}" width="12" height="3" fill="{color}"/>'
            f'<text x="{x + 16}" y="{y + 6}">{label}</text>')


def centred(x, y, label):
    return f'<text x="{x}" y="{y}" text-anchor="middle">{label}</text>'


def by_name(figures):
    return {result["name"]: result for result in figures["results"]}


def break_even(figures):
    all_rows = (1, 16, 64)
    row_bytes = 128256 * 2  # bf16
    network_us = 50  # there and back
    measured = (("in_process", "in process", "#1b7837"), ("ring", "ring", "#762a83"),
                ("shm", "shared memory", "#2166ac"), ("tcp", "TCP, loopback", "#b2182b"))
    remote = ((100, "#e08214"), (10, "#636363"))  # Gbit/s
    left, right = 70, 700
    x_of, y_of = log_scale(left, right, 1, all_rows[-1]), log_scale(340, 30, 10, 500)
    values = by_name(figures)
    a_row = {name: [values[f"step_{name}_{rows}"]["value"] / rows for rows in all_rows] for name, _, _ in measured}

    def line(times, color, dashes=""):
        return curve(((x_of(rows), y_of(us)) for rows, us in zip(all_rows, times)), color, more=dashes)

    parts = [level(left, right, y_of(us), us) for us in (10, 20, 50, 100, 200, 500)]
    parts += [centred(f"{x_of(rows):.1f}", 358, rows) for rows in (1, 2, 4, 8, 16, 32, 64)]
    parts.append(centred(385.0, 376, "rows a step") +
                 '<text x="16" y="180" transform="rotate(-90 16 180)" text-anchor="middle">µs a row</text>')
    for index, (name, label, color) in enumerate(measured):
        parts += [line(a_row[name], color), legend(80 + 130 * index, 386, color, label)]
    for gigabits, color in remote:
        link_us = row_bytes * 8 / (gigabits * 1e3)
        times = [max(us, link_us) + network_us / rows for us, rows in zip(a_row["tcp"], all_rows)]
        parts += [line(times, color, ' stroke-dasharray="6 4"'),
                  f'<text x="570" y="{y_of(times[-1]) - 6:.1f}" fill="{color}">remote, {gigabits} Gbit/s</text>']
    return svg((720, 400), "Microseconds a row, by rows a step and by transport", parts)


ENGINES = (("vllm_16_full", "vLLM, 16 texts: filters, penalty"), ("vllm_16_top_p", "vLLM, 16 texts: top-p alone"),
           ("vllm_16_greedy", "vLLM, 16 texts: greedy"), ("hf_32_full", "Transformers, 32 texts: filters, penalty"),
           ("llama_server_32", "llama-server, 32 texts: filters, penalties"))
BARS = (("own", "the engine alone", "#636363"), ("in_process", "Sortition in process", "#1b7837"),
        ("service", "Sortition as a service, Unix socket", "#2166ac"))


def cases_of(figures):
    """Returns figures by label and bar, of those cases that were measured."""
    results = by_name(figures)
    return {label: {"own": results[name]["own"], "in_process": results[name]["ours"],
                    "service": results[f"{name}_service"]["ours"]} for name, label in ENGINES if name in results}


def milliseconds(bar):
    time = bar["ms_between_tokens"]
    return f"{time:.1f} ms" if time < 10 else f"{time:.0f} ms"


def engines_table(figures):
    """Returns rows of README's table: tokens a second, and the median time between the tokens of a text."""
    return ["| " + " | ".join([label, *(f"{bars[bar]['tokens_per_second']:.0f} / s, {milliseconds(bars[bar])}"
                                        for bar, _, _ in BARS)]) + " |" for label, bars in cases_of(figures).items()]


def engines(figures):
    left, right, bottom = 60, 700, 300
    y_of = log_scale(bottom, 40, 5, 20000)
    parts = [f'<text x="{left}" y="22">tokens a second (bars) and the time between two tokens of a text</text>']
    parts += [level(left, right, y_of(speed), speed) for speed in (5, 20, 50, 200, 500, 2000, 5000, 20000)]
    cases = cases_of(figures)
    width = (right - left) / max(len(cases), 1)
    step = (width - 20) / len(BARS)
    for place, (label, bars) in enumerate(cases.items()):
        first = left + width * place + 20
        for line, text in enumerate(label.split(": ")):
            parts.append(f'<text x="{first - 8:.1f}" y="{bottom + 16 + 13 * line}" font-size="10">{text}</text>')
        for index, (bar, _, color) in enumerate(BARS):
            x, top = first + step * index, y_of(bars[bar]["tokens_per_second"])
            parts.append(f'<rect x="{x:.1f}" y="{top:.1f}" width="{step - 8:.1f}" height="{bottom - top:.1f}" '
                         f'fill="{color}"/>'
                         f'<text x="{x + step / 2 - 4:.1f}" y="{top - 5:.1f}" text-anchor="middle" font-size="11">'
                         f'{milliseconds(bars[bar])}</text>')
    for index, (_, label, color) in enumerate(BARS):
        x = left + (0, 150, 320)[index]
        parts.append(f'<rect x="{x}" y="344" width="12" height="12" fill="{color}"/>'
                     f'<text x="{x + 18}" y="354">{label}</text>')
    return svg((720, 370), "Tokens a second, and time between tokens, of engines with Sortition and without", parts)


def policy_gradient(figures):
    least, most = 1e-6, 1e-1  # mismatch KL
    kl, reward = (70, 360), (440, 710)  # left and right of each part
    drawn = (("top_p_1", "top-p 1", "#2166ac"), ("without_sets", "top-p {}, without kept sets", "#b2182b"),
             ("with_sets", "top-p {}, with kept sets", "#1b7837"))
    runs, top_p = figures["runs"], figures["top_p"]
    y_of_kl = log_scale(300, 40, least, most)

    def y_of_reward(value):
        return 300 - 260 * value

    def line(values, part, y_of, color):
        left, right = part
        return curve(((left + (right - left) * step / max(1, len(values) - 1), y_of(value))
                      for step, value in enumerate(values)), color, 1.5)

    parts = [f'<text x="{kl[0]}" y="24">mismatch KL</text><text x="{reward[0]}" y="24">reward a token</text>']
    parts += [level(*kl, y_of_kl(10.0**exponent), f"1e{exponent}") for exponent in range(-6, 0)]
    parts.append(level(*kl, y_of_kl(3e-4), "3e-4", 'stroke="#444" stroke-dasharray="5 4"'))
    parts += [level(*reward, y_of_reward(value), value) for value in (0, 0.25, 0.5, 0.75, 1)]
    for number, (name, label, color) in enumerate(drawn):
        parts += [line([min(most, max(least, value)) for value in runs[name]["mismatch_kl"]], kl, y_of_kl, color),
                  line(runs[name]["reward"], reward, y_of_reward, color),
                  legend(80 + 200 * number, 350, color, label.format(top_p))]
    steps = len(runs["top_p_1"]["reward"])
    for left, right in (kl, reward):
        parts.append(centred(left, 318, 1) + centred(right, 318, steps) +
                     centred(f"{(left + right) / 2:.0f}", 318, "step"))
    return svg((730, 370), "Mismatch KL and reward, by training step", parts)


def rows(figures):
    counts, width, bottom = (64, 128, 256, 512, 1024), 260, 300
    panels = ((70, "bytes a row", "bytes_{}", 1, (100, 1000000)),
              (430, "µs a row, steps of 64 over TCP", "step_tcp_64_{}", 64, (10, 1000)))
    compact, whole = "#2166ac", "#b2182b"
    results = by_name(figures)
    parts = []
    # In each panel the whole row is a level line. Both axes are logarithmic.
    for left, label, name, row_count, (least, most) in panels:
        x_of, y_of = log_scale(left, left + width, counts[0], counts[-1]), log_scale(bottom, 40, least, most)
        parts.append(f'<text x="{left}" y="24">{label}</text>')
        parts += [level(left, left + width, y_of(10**power), 10**power)
                  for power in range(round(math.log10(least)), round(math.log10(most)) + 1)]
        parts += [centred(f"{x_of(count):.1f}", bottom + 18, count) for count in counts]
        parts += [curve(((x_of(count), y_of(results[name.format(count)][part] / row_count)) for count in counts), color)
                  for color, part in ((whole, "value"), (compact, "baseline"))]
        parts.append(centred(left + width / 2, bottom + 36, "first tokens"))
    parts += [legend(260, 354, whole, "whole"), legend(380, 354, compact, "compact")]
    return svg((720, 370), "Bytes and time of a row, whole and compact, by first tokens", parts)


def watermark(figures):
    left, right, bottom = 60, 560, 280
    values = {name: result["value"] for name, result in by_name(figures).items()}
    temperatures = [name.split("_", 1)[1] for name in values if name.startswith("entropy_")]

    def x_of(entropy):
        return left + (right - left) * entropy / 2.2  # nats a token

    def y_of(share):
        return bottom - 240 * share

    parts = [f'<text x="{left}" y="24">share of marked texts of 200 tokens that are found</text>']
    parts += [level(left, right, y_of(share), share) for share in (0, 0.25, 0.5, 0.75, 1)]
    parts += [centred(f"{x_of(entropy):.1f}", bottom + 18, entropy) for entropy in (0.0, 0.5, 1.0, 1.5, 2.0)]
    parts.append(centred((left + right) / 2, bottom + 36, "entropy, nats a token"))
    for number, (found, color) in enumerate((("0.001", "#1b7837"), ("1e-06", "#2166ac"))):
        points = [(x_of(values[f"entropy_{t}"]), y_of(values[f"found_{t}/{found}"])) for t in temperatures]
        parts.append(curve(points, color, 1.5))
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in points]
        parts.append(legend(left + 180 * number, 329, color, f"p-value below {float(found):g}"))
    return svg((600, 340), "Marked texts of 200 tokens that are found, by entropy", parts)


PICTURES = {"break-even": break_even, "engines": engines, "policy-gradient": policy_gradient, "rows": rows,
            "watermark": watermark}


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in PICTURES:
        sys.exit(__doc__)
    with open(sys.argv[2], encoding="utf-8") as file:
        figures = json.load(file)
    with open(sys.argv[3], "w", encoding="utf-8") as file:
        file.write(PICTURES[sys.argv[1]](figures))


if __name__ == "__main__":
    main()
