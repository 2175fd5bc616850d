"""The draw among kept tokens (kernels/law/LAW.md, section 8), and the tests of drafts (SPECULATION.md).

Each takes one row or many, of which a line or an item of an array belongs to one row. Weights are arrays of uint64,
sums of them arrays of Python's integers.
"""

from dataclasses import dataclass
from typing import Any, Sequence, Tuple

import numpy as np

from sortition_verify.chain import column
from sortition_verify.functions import (DEAD, I64, LOW_WORD, TAG_REJECTION, U64, integers, log2_raws, noise_logs,
                                        philox, total)

TAG_BLOCK = 0x42
ONE = 1 << 32
LN2_33 = float.fromhex("0x1.62e42fefa39efp-33")


def race(ids: Any, keys: Any, racing: Any, noise: Any) -> Any:
    """The token of the smallest key plus noise of a row, or of each row; ties go to the lower id."""
    sums = race_sums(ids, keys, racing, noise)
    smallest = racing & (sums == sums.min(axis=-1, keepdims=True))
    tokens = np.where(smallest, ids, I64(1 << 20)).min(axis=-1)
    return int(tokens) if tokens.ndim == 0 else tokens


def race_sums(ids: Any, keys: Any, racing: Any, noise: Any) -> Any:
    """Race keys; of tokens that do not race the largest number. For many rows noise has their shape, or (rows, 1)."""
    (low, high), *rest = noise
    low, high, position, stream = (np.broadcast_to(part, ids.shape)[racing] for part in (low, high, *rest))
    sums = np.full(ids.shape, (1 << 63) - 1, I64)
    sums[racing] = keys[racing] + noise_logs(ids[racing].astype(U64), ((low, high), position, stream))
    return sums


def drawn_among(ids: Any, distances: Any, noise: Any) -> Any:
    """The token that is drawn from a row's kept tokens at these distances, or each row's."""
    return race(ids, distances.astype(I64) << I64(6), distances != U64(DEAD), noise)


def race_place(ids: Any, distances: Any, noise: Any, token: int) -> Tuple[int, int, float]:
    """A token's rank in the race, and how far its race key is above the smallest, in Q32 octaves and in nats.

    The rank is 0 and the distance is the largest number, or infinite, if the token does not race.
    """
    sums = race_sums(ids, distances.astype(I64) << I64(6), distances != U64(DEAD), noise)
    place = np.flatnonzero((ids == token) & (distances != U64(DEAD)))
    if not place.size:
        return 0, (1 << 63) - 1, float("inf")
    own = sums[place[0]]
    rank = 1 + int(np.count_nonzero((sums < own) | ((sums == own) & (ids < token))))
    lag = int(own - sums.min())
    return rank, lag, float(lag) * LN2_33


# --- drafts


@dataclass
class Drafted:
    """Rows with a draft each: kept tokens and their weights, the drafter's weights of these, the draft and its own."""

    ids: Any
    w: Any
    v: Any
    draft: Any
    draft_v: Any
    noise: Any  # key, position and stream, of the shape (rows, 1)

    def own(self) -> Any:
        """w of the drafts."""
        return total(np.where(self.ids == self.draft[:, None], self.w, U64(0)))


def words(noise: Any, tag: int) -> Tuple[Any, Any]:
    """The key of the race that follows a test, and W."""
    key, position, stream = noise
    x, y, z, u = philox(np.zeros_like(key[0]), position, stream, tag, key)
    return (x, y), integers((u << U64(32) | z)[:, 0])


def tested(rows: Drafted) -> Tuple[Any, Any]:
    """Which drafts are accepted by rejection, and the rows' tokens."""
    key, word = words(rows.noise, TAG_REJECTION)
    accepted = word * rows.draft_v >> 64 < rows.own()
    return accepted, np.where(accepted, rows.draft, race_among(rows, rows.w, key))


def race_among(rows: Drafted, w: Any, key: Any) -> Any:
    """The tokens of the races among what the drafter's weights leave of w; if it is nothing, among the rows' own."""
    left = np.where(w > rows.v, w - rows.v, U64(0))
    left = np.where(left.any(axis=1, keepdims=True), left, rows.w)
    racing = left > 0
    keys = I64(44 << 32) - log2_raws(np.where(racing, left, U64(1)))
    return race(rows.ids, keys, racing, (key, *rows.noise[1:]))


def blocks(drafting: Sequence[Drafted], last_noise: Any, last_draw: Any) -> Tuple[Any, Any]:
    """The numbers of accepted drafts of blocks, and the tokens after them.

    `drafting` has the blocks' rows with a draft, one position after the other. The row behind them draws `last_draw`.
    """
    survival = np.full(len(last_draw), ONE, object)
    end, token = np.zeros(len(last_draw), I64), np.zeros(len(last_draw), I64)
    for i, rows in enumerate(drafting):
        key, word = words(rows.noise, TAG_BLOCK)
        weight_sum, s_sum = total(rows.w), survival * total(rows.w) >> 32
        s = scaled_weights(survival, rows.w)
        rest = s_sum - total(np.minimum(s, rows.v))
        ends = (survival > 0) & ((word * (rest + weight_sum - s_sum) >> 64 < rest) | (i == 0))
        end, token = np.where(ends, i, end), np.where(ends, race_among(rows, s, key), token)
        own, drafted = rows.own(), rows.draft_v
        after = np.where(drafted == 0, ONE, np.minimum(ONE, survival * own // np.maximum(1, drafted)))
        survival = np.where((own == 0) | (survival == 0), 0, after)
    ends = words(last_noise, TAG_BLOCK)[1] >> 32 < survival
    return np.where(ends, len(drafting), end), np.where(ends, last_draw, token)


def scaled_weights(survival: Any, w: Any) -> Any:
    """floor(P * w / 2^32), whose product has up to 76 bits."""
    p = column(survival)
    return p * (w >> U64(32)) + (p * (w & LOW_WORD) >> U64(32))
