"""Looks for watermarks in texts (kernels/law/WATERMARK.md).

    keys = read_keys("keys.txt")
    for evidence in detect(tokens, keys):
        print(evidence.key_id, evidence.tokens, evidence.p_value)

A file of keys has a line for each: its id, the key as a decimal number, and the context width if it is not 4. Keys are
secrets: with one, marked text can be made, and text that is not found.
"""

import math
from dataclasses import dataclass
from typing import Any, List, Sequence

import numpy as np

from sortition_verify.functions import I64, U64, noise_logs
from sortition_verify.history import context_keys

MOST_KEYS, MOST_WIDTH = 64, 64
MOST_VOCABULARY = 1 << 20


@dataclass(frozen=True)
class Key:
    """A watermark's key. `id` is its name in files and answers; it is no secret."""

    id: str
    key: int
    context_width: int = 4


@dataclass(frozen=True)
class Evidence:
    """The score of a text for one key.

    tokens: those that count. They have a whole context, which has not occurred before.
    score: sum over these tokens; near `tokens` for a text without the mark.
    p_value: probability that a text without the mark has at least this score.
    """

    key_id: str
    tokens: int
    score: float
    p_value: float


def parse_keys(text: str) -> List[Key]:
    """The keys of a file's text. Raises ValueError, which names the line and never holds a key."""
    keys: List[Key] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) not in (2, 3) or not all(word.isdecimal() for word in words[1:]):
            raise ValueError(f"line {number}: not an id, a decimal key and perhaps a context width")
        width = int(words[2]) if len(words) == 3 else 4
        if int(words[1]) >= 1 << 64 or not 1 <= width <= MOST_WIDTH:
            raise ValueError(f"line {number}: a key is below 2^64, a context width in 1..{MOST_WIDTH}")
        if any(key.id == words[0] for key in keys):
            raise ValueError(f"line {number}: the id {words[0]} stands twice")
        keys.append(Key(words[0], int(words[1]), width))
    if not 1 <= len(keys) <= MOST_KEYS:
        raise ValueError(f"{len(keys)} keys; 1 to {MOST_KEYS} are expected")
    return keys


def read_keys(path: str) -> List[Key]:
    """The keys of a file, as parse_keys."""
    with open(path, encoding="utf-8") as file:
        return parse_keys(file.read())


def detect(tokens: Sequence[int], keys: Sequence[Key]) -> List[Evidence]:
    """The evidence for each key, in the order of the keys. Takes O(len(tokens)) for each.

    Raises ValueError for a token that is no id.
    """
    ids = np.asarray(tokens, I64).reshape(-1)
    if ids.size and not 0 <= ids.min() <= ids.max() < MOST_VOCABULARY:
        raise ValueError(f"tokens are ids in 0..{MOST_VOCABULARY - 1}")
    return [_evidence(ids.astype(U64), key) for key in keys]


def joint_p_value(evidence: Sequence[Evidence]) -> float:
    """The probability that a text without any of these marks has so small a p-value for one of the keys, at most."""
    return min(1.0, len(evidence) * min(found.p_value for found in evidence))


def _evidence(ids: Any, key: Key) -> Evidence:
    width = key.context_width
    if len(ids) <= width:
        return Evidence(key.id, 0, 0.0, 1.0)
    contexts, drawn = np.lib.stride_tricks.sliding_window_view(ids, width)[:-1], ids[width:]
    first, second = context_keys(key.key, contexts)
    # The hash stands for the context. Each one counts where it occurs first.
    _, kept = np.unique(first << U64(32) | second, return_index=True)
    logs = noise_logs(drawn[kept], ((first[kept], second[kept]), 0, 0))
    noise = np.exp2(logs.astype(np.float64) * 2.0**-32) * math.log(2)
    score = float(np.sum(-np.log(-np.expm1(-noise))))
    return Evidence(key.id, len(kept), score, upper_tail(len(kept), score))


def upper_tail(count: int, score: float) -> float:
    """The probability that the sum of `count` exponential variables of mean 1 is at least `score`."""
    if count == 0 or score <= 0:
        return 1.0
    steps = np.arange(1, count, dtype=np.float64)
    logs = np.concatenate([[0.0], np.cumsum(math.log(score) - np.log(steps))]) - score
    return min(1.0, float(np.sum(np.exp(logs))))
