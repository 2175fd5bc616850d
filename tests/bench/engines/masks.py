"""Prints the microseconds of the host from 512 drawn rows to vLLM's sampling masks as CSR; a median of 50.

    masks.py TOP_K

TOP_K of 0 is none: then a mask has all tokens that top-p keeps. Takes what vLLM's Python of generation 2 takes: the
sampler's output, then its conversion at the end of a step. The mean number of tokens of a mask is printed first.
"""

import statistics
import sys
import time

import numpy
import sortition.local
from sortition.vllm_runner_2 import KeptMasks

ROWS, VOCABULARY = 512, 128256


def main():
    top_k = int(sys.argv[1])
    sampler = sortition.local.Sampler()
    row = (numpy.random.default_rng(4).standard_normal(VOCABULARY) * 3).astype(numpy.float32)
    draws = [sampler.draw(sampler.open(vocabulary_size=VOCABULARY, seed=seed, temperature=0.8, top_k=top_k, top_p=0.95,
                                       kept_set={"tokens": True}), row) for seed in range(ROWS)]
    times, kept = [], None
    for _ in range(50):
        start = time.perf_counter()
        masks = KeptMasks.of(list(range(ROWS)), draws, ROWS, 1)
        kept = masks.to_cpu_nonblocking().tolists()
        times.append(time.perf_counter() - start)
    assert len(kept.offsets) == ROWS + 1 and kept.offsets[-1] == sum(len(draw.kept_tokens) for draw in draws)
    print(kept.offsets[-1] / ROWS, 1e6 * statistics.median(times))


if __name__ == "__main__":
    main()
