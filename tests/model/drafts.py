"""Rounds and blocks of drafts (kernels/law/SPECULATION.md) in exact integers, without sortition_verify's arrays."""

import numpy as np

from sortition_verify import row as law
from sortition_verify.draw import race
from sortition_verify.functions import I64, TAG_REJECTION, U64, log2_raws, philox

TAG_BLOCK = 0x42
ONE = 1 << 32


def words(counter, tag, noise):
    """The words x, y, z, w of one counter."""
    key, position, stream = noise
    return [int(word[0]) for word in philox(np.full(1, counter, U64), position, stream, tag, key)]


def race_among(ids, values, key, noise):
    """The token of the race among weights, under a key of two words. At least one weight is above 0."""
    values = np.array(values, U64)
    racing = values > 0
    keys = np.zeros(len(values), I64)
    keys[racing] = I64(44 << 32) - log2_raws(values[racing])
    return race(ids, keys, racing, (tuple(key), noise[1], noise[2]))


def probability_bits(draft, token):
    """The bits of q(token), where numbers that count as 0 are 0."""
    bits = draft.listed.get(int(token), 0) & 0x7FFFFFFF
    return 0 if bits < law.LEAST_NORMAL else bits


class Drafted:
    """A drafter's distribution: f32 bits by token, 0 where none are. Has a dense row's live part or a sparse list."""

    def __init__(self, listed):
        self.listed = {int(token): int(bits) for token, bits in listed}
        self.fails = False  # a dense row that does not sum to 1

    def checked(self):
        if self.fails:
            raise law.RowError("draft_sum", 0)
        return self

    def as_law(self):
        tokens = sorted(self.listed)
        return law.Draft(certain=False, dense=False, tokens=tokens, bits=[self.listed[token] for token in tokens])

    def scaled(self, token, factor):
        return law.scaled(probability_bits(self, token), factor)

    def rest_weights(self, ids, without, factor):
        """v_j without replacement, for ids: the drafter's distribution without some tokens at the scale `factor`."""
        exponents = {token: probability_bits(self, token) >> 23 for token in self.listed
                     if token not in without and probability_bits(self, token)}
        if not exponents:
            return [0] * len(ids)
        largest = max(exponents.values())
        u = {}
        for token, exponent in exponents.items():
            if largest - exponent < 44:
                # q * 2^(170 - E): the mantissa has 24 bits and the exponent e, so q is mantissa * 2^(e - 150).
                mantissa = probability_bits(self, token) & 0x7FFFFF | 0x800000
                shift = exponent - 150 + 170 - largest
                u[token] = mantissa << shift if shift >= 0 else mantissa >> -shift
        total = sum(u.values())
        up = 64 - total.bit_length()
        part = (factor << 63) // (total << up)
        return [u.get(int(token), 0) * (1 << up) * part >> 63 for token in ids]


def rounds(place, tokens, drafted, replaced):
    """Tests a node's drafts in rounds: (index of the accepted one or None, the token in their place).

    `replaced` is true where they were drawn with replacement.
    """
    ids, noise = place.ids, place.row.noise()
    drafted.checked()
    w = [int(value) for value in place.weights()]
    if place.greedy:
        token = int(ids[0])
        return (tokens.index(token) if token in tokens else None), token
    index = {int(token): at for at, token in enumerate(ids)}
    for number, draft in enumerate(tokens):
        x, y, z, u = words(number, TAG_REJECTION, noise)
        if number == 0:
            key = x, y
        total = sum(w)
        # The drafter's weights of the kept tokens, and of the draft, which need not be kept.
        wanted = [*ids, draft]
        if number == 0 or replaced:
            v = [drafted.scaled(token, total) for token in wanted]
        else:
            before = set(tokens[:number])
            v = [0 if int(token) in before else value
                 for token, value in zip(wanted, drafted.rest_weights(wanted, before, total))]
        if draft in index and (u << 32 | z) * v[-1] >> 64 < w[index[draft]]:
            return number, draft
        left = [max(0, a - b) for a, b in zip(w, v)]
        w = left if any(left) else w
    return None, race_among(ids, w, key, noise)


def block(places, tokens, drafted):
    """Tests drafts together: (number of accepted drafts, the token after them or None where all are accepted).

    `places` gives position i when it is read. Positions after the first one that no text reaches are not read.
    """
    survival, end, ending = ONE, 0, None
    for i in range(len(tokens) + 1):
        if survival == 0:
            break
        place = places(i)
        x, y, z, u = words(0, TAG_BLOCK, place.row.noise())
        big = u << 32 | z
        if i == len(tokens):
            if big >> 32 < survival:
                return len(tokens), None
            break
        w = [int(value) for value in place.weights()]
        total = sum(w)
        s = [survival * value >> 32 for value in w]
        s_total = survival * total >> 32
        v = [drafted[i].checked().scaled(token, total) for token in place.ids]
        rest = s_total - sum(min(a, b) for a, b in zip(s, v))
        if i == 0 or big * (rest + total - s_total) >> 64 < rest:
            left = [max(0, a - b) for a, b in zip(s, v)]
            end, ending = i, (place, left if any(left) else w, (x, y))
        draft_weight = drafted[i].scaled(tokens[i], total)
        kept = np.flatnonzero(place.ids == tokens[i])
        own = w[kept[0]] if kept.size else 0
        if own == 0:
            survival = 0
        elif draft_weight == 0:
            survival = ONE
        else:
            survival = min(ONE, survival * own // draft_weight)
    place, values, key = ending
    return end, race_among(place.ids, values, key, place.row.noise())
