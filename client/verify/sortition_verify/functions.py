"""The functions of the law (kernels/law/LAW.md), over numpy arrays of integers.

Distances are Q6.26 octaves, weights have the scale 2^44. DEAD stands for the distance of a dead token. Every function
is pure. Arguments of wrong types are the caller's mistake and are not checked.
"""

import math
import struct

import numpy as np

MASKED = 0xFF800000  # the canonical bits of a masked logit
DEAD = 0xFFFFFFFF
UNIT_WEIGHT = 1 << 44
LEAST = 0x21800000  # the bits of 2^-60
LIMIT = 0x477FE000  # the bits of 65504
NAN = 0x7F800000  # magnitudes above it are NaN

TAG_GROUP, TAG_TOKEN, TAG_REJECTION, TAG_WATERMARK, TAG_XTC = 0x47, 0x54, 0x52, 0x57, 0x58

UNIT_TEMPERATURE = (0x5C551D95, 0, 132)

PACKED_WORD, PACKED_FLOAT = struct.Struct("<I"), struct.Struct("<f")
U32, U64, I64, F32 = np.uint32, np.uint64, np.int64, np.float32

EXPONENTIALS = np.array([round(2.0 ** (31 - j / 32)) for j in range(32)], U64)
INVERSES = np.array([round(65536 / (1 + (j + 0.5) / 32)) for j in range(32)], I64)
LOGS = np.array([round(-math.log2(inverse / 65536) * 2**32) for inverse in INVERSES.tolist()], I64)
G = (1549082005, -774540997, 516360664, -387354473, 309888377)
Q = (0xB8AA3B29, 0x5C551DA6, 0x3D8E06FC, 0x2E2DED3F, 0x24887F68, 0x2446EFAC)
LOW_WORD, HALF = U64(0xFFFFFFFF), U64(32)
PHILOX = U64(0xD2511F53), U64(0xCD9E8D57)


# --- logits


def widen(elements, dtype):
    """The f32 bits of a tensor's elements, which are given as unsigned integers."""
    if dtype == "f32":
        return np.asarray(elements, U32)
    if dtype == "bf16":
        return np.asarray(elements, U32) << U32(16)
    assert dtype == "f16", dtype
    return np.asarray(elements, np.uint16).view(np.float16).astype(F32).view(U32)


def floats(bits):
    return np.asarray(bits, U32).view(F32)


def float_of(bits):
    """One f32 of these bits, as a double."""
    return PACKED_FLOAT.unpack(PACKED_WORD.pack(bits))[0]


def bits_of(value):
    """The bits of a double rounded to f32."""
    try:
        return PACKED_WORD.unpack(PACKED_FLOAT.pack(value))[0]
    except OverflowError:
        return 0x7F800000 if value > 0 else 0xFF800000


def magnitude(bits):
    return bits & U32(0x7FFFFFFF)


def flush(bits):
    """Magnitudes below 2^-60 become +0."""
    return np.where(magnitude(bits) < U32(LEAST), U32(0), bits)


def canonical(bits):
    """Canonical bits of logits; NaN counts as masked. Logits of 65504 and above keep their bits."""
    size = magnitude(bits)
    masked = (size > U32(NAN)) | ((bits >= U32(0x80000000)) & (size >= U32(LIMIT)))
    return np.where(masked, U32(MASKED), flush(bits))


def sort_keys(bits):
    """Keys of canonical bits: the larger, the earlier in order."""
    keys = np.where(bits >= U32(0x80000000), ~bits, bits | U32(0x80000000))
    return np.where(bits == U32(MASKED), U32(0), keys)


def canonical_constant(values):
    """The form of biases and penalties: f32 bits, magnitudes below 2^-60 are 0."""
    with np.errstate(over="ignore", under="ignore"):
        return flush(np.asarray(values, np.float64).astype(F32).view(U32))


# --- distances and weights


class Scale:
    """The scale of distances below a logit of bits `first`, at a temperature (multiplier, exponent, window).

    For many rows `first`, and what the rows' temperatures do not share, are arrays of the shape (rows, 1).
    """

    def __init__(self, first, temperature):
        multiplier, exponent, window = temperature
        self.first = np.asarray(first, U32)
        self.multiplier = np.asarray(multiplier, U64)
        self.e0 = np.maximum((self.first >> U32(23) & U32(255)).astype(I64), np.asarray(window, I64)) + 1
        self.shift = (161 - self.e0 - np.asarray(exponent, I64)).astype(U64)
        self.top = self.fixed(self.first)

    def fixed(self, bits):
        """X: logits in units of 2^(e0 - 157), cut towards zero."""
        exponents = (bits >> U32(23) & U32(255)).astype(I64)
        drop = np.minimum(np.maximum(self.e0 - exponents, 0), 31).astype(U32)
        size = ((bits << U32(7) & U32(0x3FFFFFFF) | U32(0x40000000)) >> drop).astype(I64)
        return np.where(bits >= U32(0x80000000), -size, size)

    def beyond(self, bits):
        return (bits >> U32(23) & U32(255)).astype(I64) > self.e0

    def below(self, bits):
        """D: how far logits are below the first, of 32 bits."""
        return ((self.top - self.fixed(bits)) & I64(0xFFFFFFFF)).astype(U64)

    def distances(self, bits):
        products = self.below(bits) * self.multiplier >> self.shift
        dead = self.beyond(bits) | (products >= U64(0xFC000000))
        return np.where(dead, U64(DEAD), products)


def weight_parts(distances):
    """A * h and n + 15 of the law, and which distances have no weight."""
    t = np.asarray(distances, U64)
    octaves = t >> U64(26)
    z = t << U64(11) & LOW_WORD
    q = U64(5814314) - ((z >> U64(16)) * U64(62296) >> U64(16))
    h = U64(1 << 28) - (z * q >> U64(32))
    return EXPONENTIALS[(t >> U64(21) & U64(31)).astype(I64)] * h, np.minimum(octaves + U64(15), U64(63)), octaves >= 45


def weights(distances):
    products, shift, none = weight_parts(distances)
    return np.where(none, U64(0), products >> shift)


def integers(array):
    """Python's integers, so that products of them are exact: one, or an array of objects."""
    return int(array) if array.ndim == 0 else array.astype(object)


def weight(distance):
    """The weight of a distance, which is an integer or an array of integers."""
    return integers(weights(np.asarray(distance, U64)))


def total(values):
    """The exact sum of each row, which fits 64 bits."""
    return integers(np.sum(values, axis=-1, dtype=U64))


def top_p_threshold(weight_sum, units):
    """The least sum of weights that a prefix must reach; `units` is P."""
    threshold = -(-weight_sum * units >> 32)
    return threshold + (threshold == 0)


# --- logarithms


def log2_fraction(f):
    """2^32 log2(1 + f / 2^32), about; an array of int64."""
    j = f >> I64(27)
    z = ((f + I64(1 << 32)) * INVERSES[j] - I64(1 << 48)) >> I64(12)
    h = np.full_like(z, G[4])
    for k in (3, 2, 1, 0):
        h = I64(G[k]) + (z * h >> I64(36))
    return LOGS[j] + (z * h >> I64(34))


def highest_bits(values):
    """The places of the highest bits of uint64 without 0."""
    # Without the bit below the highest one, no rounding to a double reaches the next power of two.
    return ((values & ~(values >> U64(1))).astype(np.float64).view(U64) >> U64(52)) - U64(1023)


def log2_raws(values):
    """About 2^32 log2 of an array of uint64 without 0."""
    top = highest_bits(values)
    f = (values << (U64(63) - top) & U64((1 << 63) - 1)) >> U64(31)
    return (top.astype(I64) << I64(32)) + log2_fraction(f.astype(I64))


def log2_raw(values):
    """log2_raws of an integer or of an array of integers."""
    return integers(log2_raws(np.asarray(values, U64)))


def log_of_sum(weight_sum):
    """log S of CHAIN.md, Q6.26, of rows' sums."""
    return np.maximum(0, log2_raw(weight_sum) - (44 << 32)) >> 6


# --- noise


def philox(pairs, position, stream, tag, key):
    """The words x, y, z, w of Philox4x32-10, of an array of first counter words. The others may be arrays, too."""
    x = np.asarray(pairs, U64)
    y, z, w = (np.asarray(word, U64) for word in (position, stream, tag))
    low, high = (np.asarray(word, I64) for word in key)
    for _ in range(10):
        first, second = x * PHILOX[0], z * PHILOX[1]
        x, y = (second >> HALF) ^ y ^ low.astype(U64), second & LOW_WORD
        z, w = (first >> HALF) ^ w ^ high.astype(U64), first & LOW_WORD
        low, high = low + 0x9E3779B9 & 0xFFFFFFFF, high + 0xBB67AE85 & 0xFFFFFFFF
    return x, y, z, w


def noise_words(indices, tag, noise):
    """The 64-bit words of indices; `noise` is (key, position, stream)."""
    key, position, stream = noise
    x, y, z, w = philox(indices >> U64(1), position, stream, tag, key)
    odd = (indices & U64(1)).astype(bool)
    return np.where(odd, w << HALF | z, y << HALF | x)


def uniforms(words):
    """R of noise words."""
    return words & ~U64(63) | U64(32)


def neg_log2(r):
    """About -log2(1 - R / 2^64), Q6.58, at least 1."""
    u = r >> U64(32)
    h = np.full(r.shape, Q[5], U64)
    for k in (4, 3, 2, 1, 0):
        h = U64(Q[k]) + (u * h >> U64(32))
    small = np.maximum(U64(1), (u * h + ((r & LOW_WORD) * h >> U64(32))) >> U64(5))
    far = r >= U64(1 << 60)
    if not far.any():
        return small
    rest = U64(0) - np.where(far, r, U64(1 << 60))
    return np.where(far, ((64 << 32) - log2_raws(rest)).astype(U64) << U64(26), small)


def noise_logs(ids, noise):
    """L of token ids, an array of uint64. The parts of `noise` may be arrays that go with it."""
    group = noise_words(ids >> U64(6), TAG_GROUP, noise)
    a, own = neg_log2(uniforms(group)), neg_log2(uniforms(noise_words(ids, TAG_TOKEN, noise)))
    owns = ids & U64(63) == group & U64(63)
    values = np.where(owns, a, (a + U64(63) >> U64(6)) + own)
    return log2_raws(values) - np.where(owns, I64(64 << 32), I64(58 << 32))
