"""Filters and stages over rows' kept tokens (kernels/law/LAW.md, section 6, and kernels/law/CHAIN.md).

`Kept` is the state of a chain of one row or of many. A stage is a list: its number and four operands, as CHAIN.md has
them. Numbers of rows, one for each, are arrays of Python's integers: their products have up to 96 bits.
"""

import numpy as np

from sortition_verify.functions import (DEAD, F32, I64, MASKED, TAG_XTC, U32, U64, UNIT_TEMPERATURE, Scale, float_of,
                                        floats, flush, highest_bits, integers, log2_raw, log2_raws, log_of_sum,
                                        philox, top_p_threshold, total, weight, weight_parts, weights)

(TEMPERATURE, MIN_P, TOP_K, TOP_P, TYPICAL_P, TOP_N_SIGMA, EPSILON_CUTOFF, ETA_CUTOFF, TOP_A, TOP_H, P_LESS, XTC,
 DYNAMIC_TEMPERATURE, QUADRATIC_SMOOTHING, MIROSTAT_1, MIROSTAT_2, ADAPTIVE_P, MIN_K) = range(18)

WORD, LONG = 0xFFFFFFFF, (1 << 64) - 1


def signed(word, bits):
    return word - (word >> bits - 1 << bits)


def within(bound):
    return np.minimum(0xFBFFFFFF, np.maximum(0, bound))


def toward_zero(product, shift):
    """The product shifted, its magnitude cut and the sign put back."""
    return np.where(product < 0, -(-product >> shift), product >> shift)


def bit_lengths(values):
    """Numbers of bits of integers from 1 to 2^64 - 1."""
    return integers(highest_bits(np.asarray(values, U64))) + 1


def column(values):
    """Rows' numbers from 0 to 2^64 - 1, or one number for all, beside the rows' tokens."""
    return np.asarray(values, U64)[..., None]


def dynamic_scale(temperature):
    """Multiplier, exponent and window of a dynamic temperature, Q8.24."""
    up = 32 - bit_lengths(temperature)
    quotient = 0x5C551D94AE0BF85D // (temperature << up)
    carry = quotient >> 31
    return quotient >> carry, up - 8 + carry, 126 + bit_lengths(0xAEAC4F98 * temperature) - 50


def shown_temperature(stages, dynamic):
    """The scale and the temperature of the bits that a chain leaves; `dynamic` is its dynamic temperature, Q8.24."""
    scale, shown = UNIT_TEMPERATURE, 1.0
    for number, *operands in stages:
        if number == TEMPERATURE:
            multiplier, exponent, window, bits = operands
            scale, shown = (multiplier, signed(exponent, 32) if exponent >= 0 else exponent, window), float_of(bits)
        elif number == DYNAMIC_TEMPERATURE:
            scale, shown = dynamic_scale(dynamic), dynamic * 2.0**-24
        elif number == QUADRATIC_SMOOTHING:
            scale, shown = UNIT_TEMPERATURE, 1.0
    return scale, shown


def tempered_temperature(stages, dynamic):
    """The scale and the temperature of the distribution after edits and temperature: smoothing has no part in it."""
    return shown_temperature([stage for stage in stages if stage[0] != QUADRATIC_SMOOTHING], dynamic)


class Kept:
    """The kept tokens of rows, with the shape that stages gave them.

    `ids` and `bits` have a line for each row, with its tokens in order. Those from column `first` to before `last` are
    kept. The others mean nothing; their distance in `t` is DEAD.
    """

    def __init__(self, ids, bits, counts, vocabulary, noise, state):
        self.ids = ids
        self.bits = bits  # as the stages left them
        self.first, self.last = np.zeros(len(ids), I64), np.asarray(counts, I64)
        self.vocabulary = vocabulary
        self.noise = noise
        self.state = state
        self.temperature = UNIT_TEMPERATURE  # of distances
        self.shown = 1.0  # T, by which the host divides the bits
        self.dynamic = 0  # T that dynamic temperature chose, Q8.24
        self.adapted = None  # adaptive-p's new distances
        self.probabilities = None  # adaptive-p's p
        self.measure()

    def measure(self):
        """Says that distances have changed."""
        self.distances = None

    @property
    def t(self):
        if self.distances is None:
            scale = Scale(self.top_bits(), [np.asarray(part, I64)[..., None] for part in self.temperature])
            self.distances = np.where(self.inside, scale.distances(self.bits), U64(DEAD))
        return self.distances

    @property
    def columns(self):
        return np.arange(self.ids.shape[1])

    @property
    def inside(self):
        return (self.columns >= self.first[:, None]) & (self.columns < self.last[:, None])

    def top_bits(self):
        return np.take_along_axis(self.bits, self.first[:, None], 1)

    def row(self, at=0):
        """One row's kept tokens: ids, distances by which they are drawn, bits in answers."""
        part = slice(int(self.first[at]), int(self.last[at]))
        return self.ids[at, part], self.drawn_distances()[at, part], self.shown_bits()[0][at, part]

    def cut(self, first, last):
        """Keeps the tokens from column `first` to before `last` of each row."""
        low, high = int(first.min()), int(last.max())
        self.first, self.last = first - low, last - low
        self.ids, self.bits = self.ids[:, low:high], self.bits[:, low:high]
        self.measure()

    def live(self):
        return self.t != U64(DEAD)

    def up_to(self, bound):
        """The end of t <= bound, without dead tokens."""
        return self.first + np.count_nonzero((self.t <= column(within(bound))) & self.live(), axis=1)

    # --- sums

    def weight_sum(self):
        return total(weights(self.t))

    def moments(self, t):
        """m(t) of every token."""
        products, shift, none = weight_parts(t)
        return np.where(none, U64(0), (products >> U64(28)) * np.where(none, U64(0), t) >> shift)

    def mean(self, weight_sum):
        drop = bit_lengths(weight_sum) - 32
        return (total(self.moments(self.t)) << 28 >> drop) // (weight_sum >> drop)

    def entropy(self, weight_sum):
        return log_of_sum(weight_sum) + self.mean(weight_sum)

    # --- stages: a filter returns the columns that it keeps, the first and the end

    def run(self, stage):
        number, *operands = stage
        kept = STAGES[number](self, *operands)
        if kept is None:
            return
        first, last = kept
        if len(operands) == 4 and number in FIRST_KEEPERS:
            last = np.maximum(last, np.minimum(first + operands[3], self.last))
        self.cut(first, last)

    def set_temperature(self, multiplier, exponent, window, bits):
        self.temperature = (multiplier, signed(exponent, 32) if exponent >= 0 else exponent, window)
        self.shown = float_of(bits)
        self.measure()

    def min_p(self, bound, *_):
        return self.first, self.up_to(bound)

    def top_k(self, count, *_):
        return self.first, np.minimum(self.last, self.first + count)

    def top_p(self, units, *_):
        w = weights(self.t)
        before = np.cumsum(w, axis=1, dtype=U64) < column(top_p_threshold(total(w), units))
        return self.first, np.count_nonzero(before, axis=1) + 1

    def typical_p(self, units, _b, _c, least):
        w = weights(self.t)
        weight_sum, live = total(w), self.live()
        off = np.where(live, np.abs(self.t.astype(I64) - column(self.mean(weight_sum)).astype(I64)), I64(1 << 62))
        nearest = np.argsort(off, axis=1, kind="stable")
        sums = np.cumsum(np.take_along_axis(w, nearest, 1), axis=1, dtype=U64)
        reach = np.count_nonzero(sums < column(top_p_threshold(weight_sum, units)), axis=1)
        reach = np.maximum(reach, np.minimum(least, np.count_nonzero(live, axis=1)) - 1)
        farthest = np.take_along_axis(off, np.take_along_axis(nearest, reach[:, None], 1), 1)
        kept = (off <= farthest) & live
        return np.argmax(kept, axis=1), len(self.columns) - np.argmax(kept[:, ::-1], axis=1)

    def unit(self):
        """The scale of temperature 1, and how far tokens are below the first one."""
        unit = Scale(self.top_bits(), UNIT_TEMPERATURE)
        return unit, np.where(unit.beyond(self.bits), U64(0xC0000000), unit.below(self.bits))

    def top_n_sigma(self, log_n, *_):
        unit, depth = self.unit()
        levels = np.maximum(np.rint(floats(self.bits) * 2.0 ** (147 - unit.e0)), -(2.0**21))
        levels = np.where(self.inside, levels, 0).astype(I64)
        count = integers(self.last - self.first)
        size = integers(np.abs(np.sum(levels, axis=1)))
        second = total((levels * levels).astype(U64))
        mean, rest = size // count, size % count
        variance = second - 2 * mean * size + count * mean * mean - rest * rest // count
        log = (log2_raw(np.maximum(1, variance)) - log2_raw(count) >> 1) + (signed(log_n, 32) << 6) + (10 << 32)
        near = np.minimum(WORD, np.maximum(0, (44 << 32) - log >> 6))
        bound = np.where(log >= 32 << 32, WORD, weight(near))
        bound = np.where((variance == 0) | (log < 0), 0, bound)
        return self.first, self.first + np.count_nonzero(self.inside & (depth <= column(bound)), axis=1)

    def epsilon_cutoff(self, distance, *_):
        return self.first, self.up_to(distance - log_of_sum(self.weight_sum()))

    def eta_cutoff(self, distance, *_):
        weight_sum = self.weight_sum()
        most = np.maximum(distance, (distance >> 1) + self.entropy(weight_sum))
        return self.first, self.up_to(most - log_of_sum(weight_sum))

    def top_a(self, distance, *_):
        return self.first, self.up_to(distance + log_of_sum(self.weight_sum()))

    def top_h(self, share, *_):
        head = np.where(self.columns < self.first[:, None] + 100, self.t, U64(DEAD))
        w = weights(head)
        log = log_of_sum(total(w))
        terms = self.moments(head) + ((w >> U64(13)) * column(log) >> U64(15))
        sums = np.cumsum(terms, axis=1, dtype=U64)
        most = integers(sums[:, -1]) * share >> 31
        few = self.inside & (self.columns < self.first[:, None] + 100) & (sums <= column(most))
        return self.first, self.first + np.maximum(1, np.count_nonzero(few, axis=1))

    def min_k(self, tau, *_):
        unit, depth = self.unit()
        count = np.minimum(256, self.last - self.first)
        depth = depth.astype(I64)
        places = self.columns[1:] - self.first[:, None]  # i of the step that leads to a column
        steps = (depth[:, 1:] - depth[:, :-1] << 17) // np.maximum(1, places)
        steps = np.where((places >= 1) & (places < count[:, None]), steps, -1)
        cliff = np.argmax(steps, axis=1) + 1 - self.first if steps.shape[1] else np.zeros(len(count), I64)
        deepest = np.take_along_axis(depth, (self.first + count - 1)[:, None], 1)[:, 0]
        by_range = np.where(deepest > 0, (tau >> unit.e0[:, 0] - 133) // np.maximum(1, deepest), 256)
        return self.first, np.minimum(self.last, self.first + np.maximum(cliff, np.minimum(256, by_range)))

    def p_less(self, *_):
        w = weights(self.t)
        cut = w >> U64(13)
        squares = total(cut * cut >> U64(20))
        return self.first, self.up_to(log2_raw(total(w)) - log2_raw(squares) - (2 << 32) >> 6)

    def xtc(self, chance, distance, _c, least):
        key, position, stream = self.noise
        coin = philox(np.zeros(self.ids.shape[:1], U64), position, stream, TAG_XTC, key)[0]
        log_sum = log_of_sum(self.weight_sum())
        dropped = self.up_to(distance - log_sum) - self.first - 1
        falls = (coin <= U64(chance)) & (log_sum <= distance) & (self.last - self.first - dropped >= least)
        return self.first + np.where(falls, dropped, 0), self.last

    def dynamic_temperature(self, low, width, exponent, *_):
        count, entropy = integers(self.last - self.first), self.entropy(self.weight_sum())
        several, some = np.maximum(2, count), np.maximum(1, entropy)
        log = np.maximum(0, log2_raw(log2_raw(several) >> 6) - np.maximum(0, log2_raw(some)))
        octaves = log * exponent >> 34
        share = np.where((entropy > 0) & (octaves <= WORD), weight(np.minimum(WORD, octaves)), 0)
        temperature = np.maximum(167773, low + ((share >> 13) * width >> 31))
        self.dynamic = np.where(count > 1, temperature, 1 << 24)
        self.temperature, self.shown = dynamic_scale(self.dynamic), self.dynamic * 2.0**-24
        self.measure()

    def quadratic_smoothing(self, square, cube, *_):
        multiplier, exponent, _ = (np.asarray(part, np.float64)[..., None] for part in self.temperature)
        inverse = (multiplier.astype(F32) * 2.0 ** (exponent - 30)).astype(F32) * floats([0x3F317218])
        is_unit = (multiplier == UNIT_TEMPERATURE[0]) & (exponent == UNIT_TEMPERATURE[1])
        inverse = np.where(is_unit, F32(1), inverse)
        top = self.top_bits()
        below = floats(top) - floats(np.where(self.inside, self.bits, top))
        a = self.rounded(self.rounded(below) * inverse)
        factor = self.rounded(floats([square])[0] + self.rounded(floats([cube])[0] * a))
        result = self.rounded(self.rounded(a * a) * factor)
        self.bits = np.where(result == 0, U32(0), (-result).view(U32))
        self.temperature, self.shown = UNIT_TEMPERATURE, 1.0
        self.measure()

    @staticmethod
    def rounded(values):
        return flush(values.astype(F32).view(U32)).view(F32)

    def mirostat_1(self, tau, eta, most, *_):
        several = np.minimum(most, np.count_nonzero(self.live(), axis=1))
        places = self.columns[:-1] - self.first[:, None]  # i of r_i
        valid = (places >= 0) & (places < several[:, None] - 1)
        ratios = np.diff(log2_raws(np.arange(1, len(self.columns) + 1, dtype=U64))) >> I64(1)
        r = np.where(valid, ratios[np.maximum(0, places)], 0) if ratios.size else np.zeros(places.shape, I64)
        rises = np.where(valid, (self.t[:, 1:] - self.t[:, :-1]).astype(I64), 0)
        above, below = integers(np.sum(r * rises >> 20, axis=1)), integers(np.sum(r * r >> 25, axis=1))
        s = (above << 19) // np.maximum(1, below >> 7)
        counts = np.where(several > 1, self.mirostat_counts(s), 1).astype(I64)
        return self.first, np.minimum(self.last, self.first + counts)

    def mirostat_counts(self, s):
        """k of rows with these slopes."""
        e, rising = np.abs(s - (1 << 26)), s >= 1 << 26
        log_v = log2_raw(max(2, self.vocabulary)) >> 6
        x = e * log_v >> 26
        near = 2271034279 - (log2_raw(log_v) - (26 << 32)) + np.where(rising, x << 5, -(x << 5))
        rest = np.maximum(1, (1 << 44) - weight(np.minimum(x, WORD)))
        far = log2_raw(np.maximum(1, e)) - (26 << 32) - log2_raw(rest) + (44 << 32) - np.where(rising, 0, x << 6)
        log = signed(self.state << 6 & LONG, 64) + np.where(x < 1 << 20, near, far)
        y = (log << 20) // np.maximum(1, s)
        count = weight(np.minimum(WORD, np.maximum(0, (44 << 26) - y)))
        count = np.minimum(self.vocabulary, np.maximum(1, count))
        count = np.where((s == 0) | (log >= 1 << 43) | (y >= 20 << 26), self.vocabulary, count)
        return np.where(log <= 0, 1, count)

    def mirostat_2(self, *_):
        return self.first, self.up_to(signed(self.state - log_of_sum(self.weight_sum()) & LONG, 64))

    def adaptive_p(self, target, *_):
        w = weights(self.t)
        up = 64 - bit_lengths(total(w))
        reciprocal = np.minimum(WORD, (1 << 63) // (total(w) << up >> 32))
        p = np.minimum(U64(WORD), (w << column(up) >> U64(32)) * column(reciprocal) >> U64(31))
        goal = np.minimum(WORD, np.maximum(0, 2 * target - self.state))
        g = np.abs(p.astype(I64) - column(goal).astype(I64)).astype(U64)
        quotient = g * g // ((g >> U64(1)) + U64(0x26666666))
        scaled = [part * U64(0xC05BFDA0) for part in (quotient >> U64(16), quotient & U64(0xFFFF))]
        new = scaled[0] + (scaled[1] >> U64(16)) >> U64(17)  # the product has up to 65 bits
        self.adapted = np.where(self.live(), new, U64(DEAD))
        self.probabilities, self.shown = p, 1.0

    # --- the draw and later steps

    def drawn_distances(self):
        return self.t if self.adapted is None else self.adapted

    def shown_bits(self):
        """The bits of kept tokens in answers, and M's."""
        if self.adapted is None:
            return self.bits, self.top_bits()[:, 0]
        octaves = self.adapted.astype(np.float64) * float.fromhex("0x1.62e42fefa39efp-27")
        shown = flush((-octaves).astype(F32).view(U32))
        return np.where(self.adapted == U64(DEAD), U32(MASKED), shown), np.zeros(len(self.ids), U32)

    def next_state(self, stage, tokens):
        """The states after the rows' tokens."""
        number, first, second, *_ = stage
        found = self.inside & (self.ids == tokens[:, None])
        at = np.argmax(found, axis=1)[:, None]
        if number == ADAPTIVE_P:
            p = integers(np.take_along_axis(self.probabilities, at, 1)[:, 0])
            after = p + toward_zero((self.state - p) * second, 32)
        else:
            surprise = integers(np.take_along_axis(self.t, at, 1)[:, 0]) + log_of_sum(self.weight_sum())
            after = signed(self.state, 64) - toward_zero((surprise - first) * second, 30)
        return np.where(found.any(axis=1), after & LONG, self.state)


STAGES = {
    TEMPERATURE: Kept.set_temperature,
    MIN_P: Kept.min_p,
    TOP_K: Kept.top_k,
    TOP_P: Kept.top_p,
    TYPICAL_P: Kept.typical_p,
    TOP_N_SIGMA: Kept.top_n_sigma,
    EPSILON_CUTOFF: Kept.epsilon_cutoff,
    ETA_CUTOFF: Kept.eta_cutoff,
    TOP_A: Kept.top_a,
    TOP_H: Kept.top_h,
    P_LESS: Kept.p_less,
    XTC: Kept.xtc,
    DYNAMIC_TEMPERATURE: Kept.dynamic_temperature,
    QUADRATIC_SMOOTHING: Kept.quadratic_smoothing,
    MIROSTAT_1: Kept.mirostat_1,
    MIROSTAT_2: Kept.mirostat_2,
    ADAPTIVE_P: Kept.adaptive_p,
    MIN_K: Kept.min_k,
}
# Filters with a number of tokens to keep as fourth operand; then the part that keeps the first tokens.
LEAST_KEEPERS = (MIN_P, TOP_P, TYPICAL_P, TOP_N_SIGMA, EPSILON_CUTOFF, ETA_CUTOFF, TOP_A, TOP_H, P_LESS, XTC, MIN_K)
FIRST_KEEPERS = (MIN_P, TOP_P, TOP_N_SIGMA, EPSILON_CUTOFF, ETA_CUTOFF, TOP_A, TOP_H, P_LESS, MIN_K)
STATEFUL = (MIROSTAT_1, MIROSTAT_2, ADAPTIVE_P)
