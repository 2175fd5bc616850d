"""The table of pairs of options: how often each two have met in a row or an open that was compared."""

import numpy as np

from contract import INDEX, OPTIONS, PAIRS

# Refusals that are the contract's answer to a pair. Other refusals say nothing about the pair.
ANSWERS = ("CONTRADICTION",)


FIRST, SECOND = np.array(PAIRS).T


class Pairs:
    def __init__(self, met=None):
        self.met = np.zeros((len(OPTIONS), len(OPTIONS)), np.int64) if met is None else met

    def count(self, numbers, refusal=None):
        """A comparison in which these options were set. `refusal`: its reason if it was refused."""
        if refusal is None or refusal in ANSWERS:
            listed = np.fromiter(numbers, np.int64)
            self.met[np.ix_(listed, listed)] += 1

    def least(self, random, count):
        """Pairs that have met least so far, ties at random."""
        keyed = sorted(PAIRS, key=lambda pair: (self.met[pair], random.random()))
        return [(OPTIONS[a], OPTIONS[b]) for a, b in keyed[:count]]

    def lacks(self, least):
        return bool((self.met[FIRST, SECOND] < least).any())

    def below(self, least):
        return [(OPTIONS[a], OPTIONS[b], int(self.met[a, b])) for a, b in PAIRS if self.met[a, b] < least]

    def table(self, least):
        """A line for each option: rows with it, how many others it can meet, the fewest meetings and with which."""
        others = {name: [] for name in OPTIONS}
        for a, b in PAIRS:
            others[OPTIONS[a]].append(b)
            others[OPTIONS[b]].append(a)
        yield f"{'option':62} {'met':>9} {'pairs':>6} {'below':>6} {'fewest':>9}  with"
        for name in OPTIONS:
            a = INDEX[name]
            counts = [(int(self.met[a, b]), OPTIONS[b]) for b in others[name]]
            fewest, rarest = min(counts)
            below = sum(count < least for count, _ in counts)
            yield f"{name:62} {int(self.met[a, a]):9} {len(counts):6} {below:6} {fewest:9}  {rarest}"
        yield f"{len(OPTIONS)} options, {len(PAIRS)} pairs, {len(self.below(least))} met fewer than {least} times"
