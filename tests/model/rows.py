"""Rows of logits, masks and drafters' probabilities, made from seeds."""

import numpy as np

from sortition_verify.functions import U32, widen

SIZES = {"f32": 4, "f16": 2, "bf16": 2}
STYLES = ("normal", "ties", "flat", "few", "peaked", "holes", "wide", "edge")
FAULTS = ("nan", "large", "none")


def elements(values, dtype):
    """Floats as a tensor's elements, unsigned integers."""
    values = np.asarray(values, np.float32)
    if dtype == "f32":
        return values.view(U32)
    if dtype == "bf16":
        return (values.view(U32) >> U32(16)).astype(np.uint16)
    with np.errstate(over="ignore"):
        return values.astype(np.float16).view(np.uint16)


def floats_of(seed, style, count, live):
    g = np.random.default_rng(seed)
    x = g.normal(size=count) * 3
    if style == "ties":
        x = np.floor(x / 2)
    elif style == "flat":
        x[:] = g.normal()
    elif style == "few":
        x[g.permutation(count)[:max(0, count - 1 - seed % 4)]] = -np.inf
    elif style == "peaked":
        x[seed % live] += 12
    elif style == "holes":
        x[g.random(count) < 0.5] = g.choice([-np.inf, -65504.0, -1e9])
    elif style == "wide":
        x *= 40
    elif style == "edge":
        x = g.choice([0.0, -0.0, 1e-19, 65503.0, -65503.0, 1.0, -1.0], count)
    if not (x[:live] > -65504).any():
        x[seed % live] = 0.0
    return x


def logits(seed, style, dtype, count, live, fault=None):
    """One row's elements. Padding holds anything."""
    x = floats_of(seed, style, count, live)
    if dtype != "f32":
        x = np.where(np.abs(x) >= 65400, np.sign(x) * 65000, x) if style == "edge" else x
    if fault == "nan":
        x[seed % live] = np.nan
    elif fault == "large":
        x[seed % live] = 65504.0 if dtype != "bf16" else 65536.0
    elif fault == "none":
        x[:live] = -np.inf
    if count > live:
        x[live:] = np.nan if seed % 2 else 1e5
    return elements(x, dtype)


def bits(row, dtype, live):
    return widen(row[:live], dtype)


def packed(allowed, count):
    """A mask's words as bytes. Bits of padding are set."""
    full = np.ones((count + 31) // 32 * 32, bool)
    full[:len(allowed)] = allowed
    return np.packbits(full, bitorder="little").tobytes()


def drafter(seed, count, live, dtype, wanted=()):
    """A drafter's dense row: probabilities that sum to 1 over the live ids, about, and are not 0 for `wanted` ids."""
    g = np.random.default_rng(seed)
    q = g.exponential(size=live) ** (1 + seed % 3)
    if seed % 4 == 0:
        q[g.random(live) < 0.5] = 0
    q[list(wanted)] += 0.05
    if not q.any():
        q[seed % live] = 1
    row = np.zeros(count)
    row[:live] = q / q.sum()
    return elements(row, dtype)
