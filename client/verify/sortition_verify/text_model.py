"""The text model of archives (docs/verifier.md): rows of logits from integers modulo 2^32, without a rounding.

Arrays of places are the arrays of texts' numbers and of positions that go together.
"""

import hashlib
from typing import Any

import numpy as np

from sortition_verify.functions import U32

VOCABULARY, CONTEXTS, PROBABILITIES = 1024, 512, (0x3F000000, 0x3E800000, 0x3E000000, 0x3E000000)
STEPS = np.arange(VOCABULARY, dtype=U32) * U32(0x9E3779B9)


def mix(x: Any) -> Any:
    x = x ^ x >> U32(16)
    x *= U32(0x85EBCA6B)
    x ^= x >> U32(13)
    x *= U32(0xC2B2AE35)
    x ^= x >> U32(16)
    return x


def surprise(x: Any) -> Any:
    """64ths of an octave, 1 to 1536."""
    return U32(9664) - ((x >> U32(8) | U32(1)).astype(np.float32).view(U32) >> U32(17))


class Model:
    """The logits of a seed."""

    def __init__(self, seed: int) -> None:
        self.seed = U32(seed)
        keys = mix(self.seed ^ np.arange(1, CONTEXTS + 1, dtype=U32))
        surprises = surprise(mix(keys[:, None] + STEPS))
        self.parts = U32(4) * surprises  # of contexts
        # The drafter's tokens of contexts, largest surprise first, ties by the lower id.
        self.drafted = np.argsort(U32(9664) - surprises, axis=1, kind="stable")[:, :len(PROBABILITIES)]

    def prompt(self, text: int, length: int) -> Any:
        key = mix(np.array([text ^ 0xFFFFFFFF], U32) ^ self.seed)
        return (mix(key + np.arange(length, dtype=U32)) & U32(VOCABULARY - 1)).astype(np.int64)

    def context(self, last: Any, before: Any) -> Any:
        """The context of the last token and the one before it."""
        return last & 127 | (before & 3) << 7

    def place_keys(self, texts: Any, positions: Any) -> Any:
        places = np.asarray(texts, U32) << U32(16) | np.asarray(positions, U32)
        return mix(self.seed ^ (places | U32(0x80000000)))

    def rows(self, contexts: Any, texts: Any, positions: Any) -> Any:
        """The f32 bits of the rows of contexts at places."""
        surprises = surprise(mix(self.place_keys(texts, positions)[:, None] + STEPS))
        surprises += surprises
        surprises += self.parts[contexts]
        logits = surprises.astype(np.float32)  # at most 9,216
        logits -= np.float32(2048)
        logits *= np.float32(1 / 256)
        return logits.view(U32)

    def drafts(self, contexts: Any, texts: Any, positions: Any) -> Any:
        """Which of the drafter's tokens is the draft of a chain at places, 0 to 3; and the token."""
        v = (mix(self.place_keys(texts, positions) + U32(VOCABULARY)) & U32(7)).astype(np.int64)
        which = np.array([0, 0, 0, 0, 1, 1, 2, 3])[v]
        return which, self.drafted[contexts, which]

    def contexts_sha256(self) -> str:
        contexts = np.arange(CONTEXTS)
        return hashlib.sha256(self.rows(contexts, np.zeros(CONTEXTS, U32), contexts).tobytes()).hexdigest()
