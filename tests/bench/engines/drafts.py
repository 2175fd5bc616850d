"""Costs of a step with drafts, and the tokens that it accepts, by how a drafter of blocks proposes; in process.

The drafter proposes all tokens of a block at once, so that no draft depends on the one before it. Its logits are the
target's with normal noise. `argmax` proposes the likeliest tokens, which the law verifies coupled: the text is the one
without drafts, and nothing but the tokens goes to the sampler. `block` and `rejection` propose tokens that were drawn
from the drafter's distribution, and hand over its probabilities.
"""

import statistics
import time

import numpy
import sortition.local
import torch
from sortition.step import Drafts

ROWS, DRAFTS, VOCABULARY = 16, 7, 128256
SAMPLING = {"temperature": 0.8, "top_p": 0.95}
# Standard deviations of the noise: a drafter that is close to the target, and one that is not.
NOISES = {"near": 0.5, "far": 1.5}


def proposed(way, logits):
    """Returns Drafts of one request from the drafter's logits."""
    if way == "argmax":
        return Drafts(logits.argmax(-1))
    probabilities = torch.softmax(logits.float() / SAMPLING["temperature"], -1)
    tokens = torch.multinomial(probabilities, 1).flatten()
    return Drafts(tokens, mode=way, probabilities=probabilities)


def measure(matrix, rounds):
    """Yields (noise, {way: (median microseconds of a step, tokens of a request and step)}). `matrix`: rows of f32."""
    torch.manual_seed(1)
    target = torch.from_numpy(matrix)
    sampler, numbers = sortition.local.Sampler(), numpy.random.default_rng(5)
    for noise, deviation in NOISES.items():
        ways = {way: ([sampler.open(vocabulary_size=VOCABULARY, seed=row, **SAMPLING) for row in range(ROWS)], [], [])
                for way in ("argmax", "block", "rejection")}
        for _ in range(rounds):
            picked = target[torch.from_numpy(numbers.integers(len(target), size=ROWS * (DRAFTS + 1)))]
            drafter = (picked + deviation * torch.randn_like(picked)).bfloat16().view(ROWS, DRAFTS + 1, -1)[:, :DRAFTS]
            logits = picked.bfloat16()
            for way, (sequences, times, tokens) in ways.items():
                drafts = [proposed(way, own) for own in drafter]
                start = time.perf_counter()
                results = sampler.step(sequences, logits, drafts=drafts)
                times.append((time.perf_counter() - start) * 1e6)
                tokens += [len(result.tokens) for result in results]
        yield noise, {way: (statistics.median(times), statistics.mean(tokens))
                      for way, (_, times, tokens) in ways.items()}
