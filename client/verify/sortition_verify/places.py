"""Many positions at once: from rows of logits to the tokens that the law draws (kernels/law/LAW.md)."""

from dataclasses import dataclass
from typing import Any, Iterable, Tuple

import numpy as np

from sortition_verify.chain import column
from sortition_verify.draw import drawn_among
from sortition_verify.functions import DEAD, I64, MASKED, U32, U64, UNIT_TEMPERATURE, Scale, total, weights
from sortition_verify.row import Compiled, entropy_bits, kept_tokens, log_of, logprob_bits, ordered

FIELDS = ("ids", "bits", "distances", "inside", "max_bits", "temperature", "low", "high", "position", "stream")


@dataclass
class Places:
    """Positions that have kept tokens: a line of each array, or an item of it, belongs to one position.

    `inside` says which of a line's tokens are kept. The others' distance is DEAD, and their ids and bits mean nothing.
    """

    ids: Any
    bits: Any  # in answers
    distances: Any  # by which tokens are drawn
    inside: Any
    max_bits: Any
    temperature: Any
    low: Any  # words of the key of the noise
    high: Any
    position: Any
    stream: Any

    def of(self, indices: Any) -> "Places":
        return Places(*(getattr(self, name)[indices] for name in FIELDS))

    @property
    def noise(self) -> Any:
        return (column(self.low), column(self.high)), column(self.position), column(self.stream)

    def draws(self) -> Any:
        return drawn_among(self.ids, self.distances, self.noise)

    def weights(self) -> Any:
        return weights(self.distances)

    def logprobs(self, tokens: Any) -> Any:
        """The bits of processed logprobs of a token at each position; those of -Inf where it is not kept."""
        found = self.inside & (self.ids == tokens[:, None])
        bits = np.take_along_axis(self.bits, np.argmax(found, axis=1)[:, None], 1)[:, 0]
        bits = np.where(found.any(axis=1), bits, U32(MASKED))
        return logprob_bits(bits, self.max_bits, self.temperature, log_of(total(self.weights())))

    def kept_counts(self) -> Any:
        return np.count_nonzero(self.inside, axis=1)

    def entropies(self) -> Any:
        return entropy_bits(self.distances)[1]

    def by_id(self) -> Tuple[Any, Any]:
        """Ids and bits of all kept tokens, position after position, ids ascending."""
        order = np.argsort(np.where(self.inside, self.ids, I64(1 << 20)), axis=1)
        inside = np.take_along_axis(self.inside, order, 1)
        return tuple(np.take_along_axis(part, order, 1)[inside] for part in (self.ids, self.bits))


def places_of(compiled: Compiled, bits: Any, noise: Any, state: Any = 0) -> Tuple[Places, Any]:
    """The positions of rows of changed bits, each with a live token, under one chain; and its state afterwards, as
    a function of the tokens. The parts of `noise` and `state` have an item for each row."""
    (low, high), position, stream = noise
    if compiled.greedy:
        ids = ordered(bits)[0][:, :1]
        first = np.take_along_axis(bits, ids, 1)
        one = np.ones(len(ids))
        return Places(ids, first, np.zeros(ids.shape, U64), ids >= 0, first[:, 0], one, low, high, position,
                      stream), None
    kept = kept_tokens(compiled, bits, noise, state)
    shown, first = kept.shown_bits()
    temperature = np.broadcast_to(np.asarray(kept.shown, np.float64), first.shape)
    places = Places(kept.ids, shown, kept.drawn_distances(), kept.inside, first, temperature, low, high, position,
                    stream)
    return places, lambda tokens: kept.next_state(compiled.chain[-1], tokens)


def joined(parts: Iterable[Tuple[Any, Places]], count: int) -> Places:
    """All positions, of which each part has those of its indices."""
    parts = list(parts)
    width = max(part.ids.shape[1] for _, part in parts)
    whole = {"distances": np.full((count, width), DEAD, U64)}
    for name in FIELDS:
        first = getattr(parts[0][1], name)
        shape = (count, width)[:np.ndim(first)]
        whole.setdefault(name, np.zeros(shape, first.dtype))
        for indices, part in parts:
            values = getattr(part, name)
            if values.ndim == 2:
                whole[name][indices, :values.shape[1]] = values
            else:
                whole[name][indices] = values
    return Places(**whole)


def raw_answers(raw: Any, tokens: Any, first: int) -> Any:
    """The raw logprob and rank of a token of each row, and the first tokens of the raw distribution with their
    logprobs: a line of 32-bit words for each row. The rows are canonical bits as sent, all of them live."""
    ids, _ = ordered(raw)
    bits = np.take_along_axis(raw, ids, 1)
    log = log_of(total(weights(Scale(bits[:, :1], UNIT_TEMPERATURE).distances(bits))))
    rank = np.argmax(ids == tokens[:, None], axis=1)
    asked = [rank, *(np.full(len(raw), at) for at in range(first))]
    words = []
    for at in asked:
        own = np.take_along_axis(bits, at[:, None], 1)[:, 0]
        logprob = logprob_bits(own, bits[:, 0], 1.0, log)
        words += [logprob, at + 1] if at is rank else [np.take_along_axis(ids, at[:, None], 1)[:, 0], logprob]
    return np.stack([word.astype(U32) for word in words], axis=1)
