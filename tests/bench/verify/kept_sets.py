"""Times kept sets of a batch in CSR form: kept_sets.py [--json=FILE]

`./dev bench verify` runs it with the built package. Rows are drawn in process, with a kept set each. The figure is the
median time of one call, beside that of lists of the same ids.
"""

import json
import statistics
import sys
import time

import numpy
import sortition
import sortition.local

VOCABULARY = 32000
ROWS = 512
REPEATS = 200


def drawn(spread):
    """A step's results, for logits of this spread."""
    generator, sampler = numpy.random.default_rng(1), sortition.local.Sampler()
    logits = (generator.standard_normal((ROWS, VOCABULARY)) * spread).astype(numpy.float32)
    sequences = [sampler.open(vocabulary_size=VOCABULARY, seed=row, top_p=0.95,
                              kept_set={"tokens": True}) for row in range(ROWS)]
    return sampler.step(sequences, logits)


def median_us(call):
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


def main():
    figures = []
    for spread in (6, 3):
        results = drawn(spread)
        kept = sortition.kept_sets(results)
        name = f"kept_sets_{ROWS}_rows_of_{len(kept.ids) / ROWS:.0f}"
        figures += [{"name": name, "value": median_us(lambda: sortition.kept_sets(results)), "unit": "us"},
                    {"name": f"{name}_as_lists", "value": median_us(lambda: [one.kept_tokens for one in results]),
                     "unit": "us"}]
    for figure in figures:
        print(f"{figure['name']:40} {figure['value']:10.1f} us")
    for word in sys.argv[1:]:
        with open(word.removeprefix("--json="), "w", encoding="utf-8") as file:
            json.dump({"results": figures}, file, indent=2)


if __name__ == "__main__":
    main()
