"""Draws the text of tests/c/draw_same.c with the Python package: in process, or at the target that is named."""

import sys

import numpy
import sortition
import sortition.local

VOCABULARY = 1000


def logits_of(seed):
    """The logits of fill_logits in tests/c/testing.h."""
    state = (seed * 2654435761 + 1) & 0xFFFFFFFF
    values = numpy.empty(VOCABULARY, "f4")
    for index in range(VOCABULARY):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        values[index] = ((state >> 24) - 128) / 16
    return values


sampler = sortition.Client(sys.argv[1:]) if sys.argv[1:] else sortition.local.Sampler()
sequence = sampler.open("python", vocabulary_size=VOCABULARY, prompt=[1, 2, 3, 2], seed=42, temperature=0.9, top_k=50,
                        repetition_penalty=1.2, processed_logprobs={"top": 3})
for number in range(40):
    draw = sampler.draw(sequence, logits_of(number))
    print(draw.token, f"{numpy.float32(draw.processed.logprob).view('u4'):08x}")
sampler.close()
