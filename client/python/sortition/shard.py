"""Slices of the vocabulary, which tensor-parallel ranks have."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shard:
    """Which slice of every row this process has, as rank `index` of `count`: `tokens` of them from `first_token` on.

    Slices of all ranks cover the vocabulary, `vocabulary_size` tokens, and do not overlap.
    """

    index: int
    count: int
    first_token: int
    tokens: int
    vocabulary_size: int

    @classmethod
    def even(cls, index: int, count: int, vocabulary_size: int) -> "Shard":
        """Rank `index`'s of `count` slices of one width, or of two that differ by one token."""
        first = vocabulary_size * index // count
        return cls(index, count, first, vocabulary_size * (index + 1) // count - first, vocabulary_size)
