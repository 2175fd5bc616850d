"""Filters and stages over a row's kept tokens (kernels/law/LAW.md, section 6, and kernels/law/CHAIN.md).

`Kept` is the state of a chain. A stage is a list: its number and four operands, as CHAIN.md has them.
"""

import numpy as np

from sortition_verify.functions import (DEAD, F32, I64, MASKED, TAG_XTC, U32, U64, UNIT_TEMPERATURE, Scale, float_of,
                                        floats, flush, log2_raw, log_of_sum, philox, top_p_threshold, total,
                                        weight, weight_parts, weights)

(TEMPERATURE, MIN_P, TOP_K, TOP_P, TYPICAL_P, TOP_N_SIGMA, EPSILON_CUTOFF, ETA_CUTOFF, TOP_A, TOP_H, P_LESS, XTC,
 DYNAMIC_TEMPERATURE, QUADRATIC_SMOOTHING, MIROSTAT_1, MIROSTAT_2, ADAPTIVE_P, MIN_K) = range(18)

WORD, LONG = 0xFFFFFFFF, (1 << 64) - 1


def signed(word, bits):
    return word - (1 << bits) if word >> (bits - 1) else word


def within(bound):
    return min(0xFBFFFFFF, max(0, bound))


def toward_zero(product, shift):
    """The product shifted, its magnitude cut and the sign put back."""
    return -(-product >> shift) if product < 0 else product >> shift


def floor_ratio(dividend, divisor):
    return dividend // divisor


def dynamic_scale(temperature):
    """Multiplier, exponent and window of a dynamic temperature, Q8.24."""
    up = 32 - temperature.bit_length()
    quotient = 0x5C551D94AE0BF85D // (temperature << up)
    carry = quotient >> 31
    return quotient >> carry, up - 8 + carry, 127 + (0xAEAC4F98 * temperature).bit_length() - 1 - 50


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
    """The kept tokens of a row, in order, with the shape that stages gave them."""

    def __init__(self, ids, bits, vocabulary, noise, state):
        self.ids = ids
        self.bits = bits  # as the stages left them
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
        self.t = Scale(self.bits[0], self.temperature).distances(self.bits)

    def slice(self, first, last):
        dropped_first = first != 0
        self.ids, self.bits, self.t = self.ids[first:last], self.bits[first:last], self.t[first:last]
        if dropped_first:
            self.measure()

    def keep_within(self, bound):
        """Keeps t <= bound, never dead tokens."""
        self.slice(0, int(np.count_nonzero((self.t <= U64(within(bound))) & (self.t != U64(DEAD)))))

    # --- sums

    def weight_sum(self):
        return total(weights(self.t))

    def moments(self):
        """m(t) of every token."""
        products, shift, none = weight_parts(self.t)
        return np.where(none, U64(0), (products >> U64(28)) * np.where(none, U64(0), self.t) >> shift)

    def mean(self, weight_sum):
        drop = weight_sum.bit_length() - 32
        return floor_ratio(total(self.moments()) << 28 >> drop, weight_sum >> drop)

    def entropy(self, weight_sum):
        return log_of_sum(weight_sum) + self.mean(weight_sum)

    # --- stages

    def run(self, stage):
        number, *operands = stage
        before = self.ids, self.bits, self.t
        STAGES[number](self, *operands)
        least = operands[3] if len(operands) == 4 and number in FIRST_KEEPERS else 0
        if len(self.t) < least:
            self.ids, self.bits, self.t = before
            self.slice(0, least)

    def set_temperature(self, multiplier, exponent, window, bits):
        self.temperature = (multiplier, signed(exponent, 32) if exponent >= 0 else exponent, window)
        self.shown = float_of(bits)
        self.measure()

    def min_p(self, bound, *_):
        self.keep_within(bound)

    def top_k(self, count, *_):
        self.slice(0, count)

    def top_p(self, units, *_):
        w = weights(self.t)
        self.slice(0, int(np.searchsorted(np.cumsum(w, dtype=U64), U64(top_p_threshold(total(w), units)))) + 1)

    def typical_p(self, units, _b, _c, least):
        w = weights(self.t)
        weight_sum = total(w)
        live = self.t != U64(DEAD)
        off = np.where(live, np.abs(self.t.astype(I64) - I64(self.mean(weight_sum))), I64(1 << 62))
        nearest = np.argsort(off, kind="stable")
        reach = int(np.searchsorted(np.cumsum(w[nearest], dtype=U64), U64(top_p_threshold(weight_sum, units))))
        reach = max(reach, min(least, int(np.count_nonzero(live))) - 1)
        kept = np.flatnonzero((off <= off[nearest[reach]]) & live)
        self.slice(int(kept[0]), int(kept[-1]) + 1)

    def top_n_sigma(self, log_n, *_):
        unit = Scale(self.bits[0], UNIT_TEMPERATURE)
        levels = self.levels(unit)
        count = len(levels)
        first, second = sum(levels), sum(level * level for level in levels)
        mean, rest = divmod(abs(first), count)
        variance = second - 2 * mean * abs(first) + count * mean * mean - floor_ratio(rest * rest, count)
        bound = 0
        if variance:
            log = (log2_raw(variance) - log2_raw(count) >> 1) + (signed(log_n, 32) << 6) + (10 << 32)
            bound = 0 if log < 0 else WORD if log >= 32 << 32 else weight((44 << 32) - log >> 6)
        depth = np.where(unit.beyond(self.bits), U64(0xC0000000), unit.below(self.bits))
        self.slice(0, int(np.count_nonzero(depth <= U64(bound))))

    def levels(self, unit):
        values = floats(self.bits).astype(np.float64) * 2.0 ** (147 - unit.e0)
        return [int(level) for level in np.maximum(np.rint(values), -(2.0**21))]

    def epsilon_cutoff(self, distance, *_):
        self.keep_within(distance - log_of_sum(self.weight_sum()))

    def eta_cutoff(self, distance, *_):
        weight_sum = self.weight_sum()
        most = max(distance, (distance >> 1) + self.entropy(weight_sum))
        self.keep_within(most - log_of_sum(weight_sum))

    def top_a(self, distance, *_):
        self.keep_within(distance + log_of_sum(self.weight_sum()))

    def top_h(self, share, *_):
        head = Kept.__new__(Kept)
        head.t = self.t[:100]
        w = weights(head.t)
        log = log_of_sum(total(w))
        terms = head.moments() + ((w >> U64(13)) * U64(log) >> U64(15))
        sums = np.cumsum(terms, dtype=U64)
        most = int(sums[-1]) * share >> 31
        self.slice(0, max(1, int(np.count_nonzero(sums <= U64(most)))))

    def min_k(self, tau, *_):
        unit = Scale(self.bits[0], UNIT_TEMPERATURE)
        head = self.bits[:256]
        depth = [int(d) for d in np.where(unit.beyond(head), U64(0xC0000000), unit.below(head))]
        if len(depth) == 1:
            return
        steps = [(1 << 17) * (b - a) // i for i, (a, b) in enumerate(zip(depth, depth[1:]), 1)]
        cliff = steps.index(max(steps)) + 1
        by_range = floor_ratio(tau >> unit.e0 - 133, depth[-1]) if depth[-1] else 256
        self.slice(0, max(cliff, min(256, by_range)))

    def p_less(self, *_):
        w = weights(self.t)
        cut = w >> U64(13)
        squares = total(cut * cut >> U64(20))
        self.keep_within(log2_raw(total(w)) - log2_raw(squares) - (2 << 32) >> 6)

    def xtc(self, chance, distance, _c, least):
        key, position, stream = self.noise
        coin = int(philox(np.zeros(1, U64), position, stream, TAG_XTC, key)[0][0])
        log_sum = log_of_sum(self.weight_sum())
        if coin <= chance and log_sum <= distance:
            dropped = int(np.count_nonzero(self.t <= U64(within(distance - log_sum)))) - 1
            if len(self.t) - dropped >= least:
                self.slice(dropped, len(self.t))

    def dynamic_temperature(self, low, width, exponent, *_):
        temperature = 1 << 24
        if len(self.t) > 1:
            entropy = self.entropy(self.weight_sum())
            share = 0
            if entropy:
                log = max(0, log2_raw(log2_raw(len(self.t)) >> 6) - max(0, log2_raw(entropy)))
                octaves = log * exponent >> 34
                share = weight(octaves) if octaves <= WORD else 0
            temperature = max(167773, low + ((share >> 13) * width >> 31))
        self.temperature = dynamic_scale(temperature)
        self.shown, self.dynamic = temperature * 2.0**-24, temperature
        self.measure()

    def quadratic_smoothing(self, square, cube, *_):
        inverse = F32(1)
        if self.temperature[:2] != UNIT_TEMPERATURE[:2]:
            multiplier, exponent, _ = self.temperature
            inverse = F32(float(F32(multiplier)) * 2.0 ** (exponent - 30)) * floats([0x3F317218])[0]
        a = self.rounded(self.rounded(floats(self.bits[:1])[0] - floats(self.bits)) * inverse)
        factor = self.rounded(floats([square])[0] + self.rounded(floats([cube])[0] * a))
        result = self.rounded(self.rounded(a * a) * factor)
        self.bits = np.where(result == 0, U32(0), (-result).view(U32))
        self.temperature, self.shown = UNIT_TEMPERATURE, 1.0
        self.measure()

    @staticmethod
    def rounded(values):
        return flush(values.astype(F32).view(U32)).view(F32)

    def mirostat_1(self, tau, eta, most, *_):
        self.slice(0, min(len(self.t), self.mirostat_count(most)))

    def mirostat_count(self, most):
        t = [int(x) for x in self.t[:most] if x != DEAD]
        if len(t) == 1:
            return 1
        above = below = 0
        for i in range(len(t) - 1):
            r = log2_raw(i + 2) - log2_raw(i + 1) >> 1
            above += r * (t[i + 1] - t[i]) >> 20
            below += r * r >> 25
        s = floor_ratio(above << 19, below >> 7)
        e = abs(s - (1 << 26))
        log_v = log2_raw(self.vocabulary) >> 6
        x = e * log_v >> 26
        log = signed(self.state << 6 & LONG, 64)
        rising = s >= 1 << 26
        if x < 1 << 20:
            log -= log2_raw(log_v) - (26 << 32)
            log += 2271034279
            log += x << 5 if rising else -(x << 5)
        else:
            log += log2_raw(e) - (26 << 32)
            log -= log2_raw((1 << 44) - weight(min(x, WORD))) - (44 << 32)
            log -= 0 if rising else x << 6
        if log <= 0:
            return 1
        if s == 0 or log >= 1 << 43:
            return self.vocabulary
        y = floor_ratio(log << 20, s)
        if y >= 20 << 26:
            return self.vocabulary
        return min(self.vocabulary, max(1, weight((44 << 26) - y)))

    def mirostat_2(self, *_):
        self.keep_within(signed(self.state - log_of_sum(self.weight_sum()) & LONG, 64))

    def adaptive_p(self, target, *_):
        w = weights(self.t)
        up = 64 - total(w).bit_length()
        reciprocal = min(WORD, (1 << 63) // (total(w) << up >> 32))
        p = np.minimum(U64(WORD), (w << U64(up) >> U64(32)) * U64(reciprocal) >> U64(31))
        goal = min(WORD, max(0, 2 * target - self.state))
        g = np.abs(p.astype(I64) - I64(goal)).astype(U64)
        quotient = g * g // ((g >> U64(1)) + U64(0x26666666))
        scaled = [part * U64(0xC05BFDA0) for part in (quotient >> U64(16), quotient & U64(0xFFFF))]
        new = scaled[0] + (scaled[1] >> U64(16)) >> U64(17)  # the product has up to 65 bits
        self.adapted = np.where(self.t == U64(DEAD), U64(DEAD), new)
        self.probabilities, self.shown = p, 1.0

    # --- the draw and later steps

    def drawn_distances(self):
        return self.t if self.adapted is None else self.adapted

    def shown_bits(self):
        """The bits of kept tokens in answers, and M's."""
        if self.adapted is None:
            return self.bits, int(self.bits[0])
        octaves = self.adapted.astype(np.float64) * float.fromhex("0x1.62e42fefa39efp-27")
        shown = flush((-octaves).astype(F32).view(U32))
        return np.where(self.adapted == U64(DEAD), U32(MASKED), shown), 0

    def next_state(self, stage, place):
        """The state after the answer's token, which is at `place` of the kept tokens or None."""
        number, first, second, *_ = stage
        if place is None:
            return self.state
        if number == ADAPTIVE_P:
            p = int(self.probabilities[place])
            return p + toward_zero((self.state - p) * second, 32) & LONG
        surprise = int(self.t[place]) + log_of_sum(self.weight_sum())
        return signed(self.state, 64) - toward_zero((surprise - first) * second, 30) & LONG


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
