"""One row of the law, from logits to the answer (kernels/law/LAW.md), and the check of a draft (SPECULATION.md).

    row = Row(bits=widen(elements, "bf16"), compiled=compile_options({"temperature": 0.8, "top_p": 0.95}), seed=42)
    print(answer(row).token)
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from sortition_verify import chain as stages
from sortition_verify.draw import LN2_33, Drafted, drawn_among, race_place, tested
from sortition_verify.functions import (I64, LIMIT, MASKED, NAN, U32, U64, UNIT_TEMPERATURE, Scale, bits_of,
                                        canonical, float_of, floats, flush, highest_bits, integers, log2_raw, magnitude,
                                        sort_keys, total, weights)

BANNED, REPEATED = 1, 2
LN2 = float.fromhex("0x1.62e42fefa39efp-1")
LEAST_NORMAL = 0x00800000  # the bits of 2^-126


class RowError(Exception):
    """A row that fails: `kind` is a word of the golden outputs, `token` the lowest id that shows the error."""

    def __init__(self, kind: str, token: int) -> None:
        super().__init__(f"{kind} at token {token}")
        self.kind, self.token = kind, token


@dataclass
class Compiled:
    """Options as the law's integers. A chain takes the place of temperature, min-p, top-k and top-p."""

    greedy: bool = False
    multiplier: int = UNIT_TEMPERATURE[0]
    exponent: int = UNIT_TEMPERATURE[1]
    window: int = UNIT_TEMPERATURE[2]
    temperature: float = 1.0
    min_p_distance: int = 0xFFFFFFFF
    top_k: int = 0
    top_p: int = 0
    repetition: int = 0
    inverse_repetition: int = 0
    chain: List[List[int]] = field(default_factory=list)

    def stages(self) -> List[List[int]]:
        if self.chain:
            return self.chain
        plain = [[stages.TEMPERATURE, self.multiplier, self.exponent, self.window, bits_of(self.temperature)]]
        if self.min_p_distance != 0xFFFFFFFF:
            plain.append([stages.MIN_P, self.min_p_distance])
        if self.top_k:
            plain.append([stages.TOP_K, self.top_k])
        if self.top_p:
            plain.append([stages.TOP_P, self.top_p])
        return plain


@dataclass
class Draft:
    """A drafter's probabilities: f32 bits for `tokens`, sorted; `rest` for all other tokens."""

    certain: bool = True
    dense: bool = False
    tokens: Any = ()
    bits: Any = ()
    rest: int = 0


@dataclass
class Row:
    """A row's logits as f32 bits, one for each live id, with all that decides its answer."""

    bits: Any
    compiled: Compiled = field(default_factory=Compiled)
    seed: int = 0
    position: int = 0
    stream: int = 0
    mask_nan: bool = False
    edits: Any = ()  # token, flags, bias bits and penalty bits of each
    allowed_tokens: Optional[List[int]] = None
    allowed_bits: Optional[List[int]] = None  # words, least significant bit first
    state: int = 0
    score: Optional[int] = None
    verify: Optional[int] = None
    draft: Draft = field(default_factory=Draft)

    def noise(self) -> Tuple[Tuple[int, int], int, int]:
        return (self.seed & 0xFFFFFFFF, self.seed >> 32), self.position, self.stream


def clamped_log(weight_sum: Any) -> Any:
    """log2 of sums of weights, Q32; never below the log2 of the greatest power of two up to the sum."""
    return np.maximum(log2_raw(weight_sum), integers(highest_bits(np.asarray(weight_sum, U64))) << 32)


def log_of(weight_sum: Any) -> Any:
    """l of LAW.md, section 9, of sums."""
    return clamped_log(weight_sum) - (44 << 32)


def logprob_bits(bits: Any, first: Any, temperature: Any, log: Any) -> Any:
    """The f32 bits of ln of the probabilities of tokens of these bits."""
    nats = (floats(bits).astype(np.float64) - floats(first).astype(np.float64)) / temperature - log * LN2_33
    return np.asarray(nats, np.float64).astype(np.float32).view(U32)


def entropy_bits(distances: Any) -> Tuple[Any, Any]:
    """E of a row's kept tokens, or of rows', and the bits of the entropy in nats."""
    w = weights(distances)
    t, weight_sum = np.where(w == 0, U64(0), distances), total(w)
    surplus = total(((w >> U64(32)) * t << U64(6)) + ((w & U64(0xFFFFFFFF)) * t >> U64(26)))
    nats = np.asarray(log_of(weight_sum), np.float64) * LN2_33
    nats = nats + np.asarray(surplus, np.float64) / np.asarray(weight_sum, np.float64) * LN2
    return surplus, nats.astype(np.float32).view(U32)


class Distribution:
    """Tokens in order with their bits. `drawn` are the distances that decide weights."""

    def __init__(self, ids: Any, bits: Any, first_bits: int, distances: Any, temperature: float) -> None:
        self.ids, self.bits, self.max_bits, self.distances = ids, bits, first_bits, distances
        self.temperature = temperature
        self.places: Dict[int, int] = {}

    @cached_property
    def weight_sum(self) -> int:
        return total(weights(self.distances))

    def place(self, token: int) -> Optional[int]:
        """The token's index, or None if it is not in the distribution."""
        if not self.places:
            self.places = {int(i): n for n, i in enumerate(self.ids)}
        return self.places.get(token)

    def bits_and_rank(self, token: int) -> Tuple[int, int]:
        place = self.place(token)
        return (MASKED, 0) if place is None else (int(self.bits[place]), place + 1)

    def logprob_bits(self, bits: Any) -> Any:
        """The f32 bits of ln of the probability of a token of these bits, or of an array of them."""
        return integers(logprob_bits(bits, self.max_bits, self.temperature, self.log))

    @cached_property
    def log(self) -> Any:
        return log_of(self.weight_sum)

    def logprob(self, token: int) -> float:
        return float_of(self.logprob_bits(self.bits_and_rank(token)[0]))

    def entropy(self) -> Tuple[int, int, int]:
        """S, E and the bits of the entropy in nats."""
        surplus, bits = entropy_bits(self.distances)
        return self.weight_sum, surplus, int(bits)


@dataclass
class Answer:
    """A row's answer. `accepted` is None unless a draft was verified."""

    token: int
    raw: Distribution
    processed: Distribution
    state: int = 0
    dynamic_temperature: int = 0
    accepted: Optional[bool] = None
    # Canonical bits after the changes, kept ids and distances: the rest of the record follows from them.
    changed: Any = ()
    kept: Any = ()
    drawn: Any = ()
    row: Optional[Row] = None

    @cached_property
    def tempered(self) -> Distribution:
        """Every live token after the changes, at the row's temperature."""
        assert self.row is not None
        chosen = [] if self.row.compiled.greedy else self.row.compiled.stages()
        scale, temperature = stages.tempered_temperature(chosen, self.dynamic_temperature)
        ids = in_order(self.changed)
        first = int(self.changed[ids[0]])
        distances = Scale(first, scale).distances(self.changed[ids])
        return Distribution(ids, self.changed[ids], first, distances, temperature)

    def kept_mass(self) -> Tuple[int, int, int]:
        """K, S and the bits of the logarithm of the kept tokens' mass in the tempered distribution."""
        part = total(weights(self.tempered.distances[np.isin(self.tempered.ids, self.kept)]))
        whole = self.tempered.weight_sum
        log = bits_of(float(clamped_log(part) - clamped_log(whole)) * LN2_33) if part else MASKED
        return part, whole, log

    def race_place(self) -> Tuple[int, int, float]:
        """The answer's token's place in the race."""
        assert self.row is not None
        return race_place(self.kept, self.drawn, self.row.noise(), self.token)


def answer(row: Row) -> Answer:
    """The row's answer by the law. Raises RowError if the row fails."""
    raw_bits = raw_logits(row)
    bits = changed_logits(row, raw_bits)
    if (bits == U32(MASKED)).all():
        raise RowError("no_live_token", 0)
    if row.verify is not None and row.draft.dense:
        check_dense_draft(row)
    raw = distribution_of(raw_bits)
    if row.compiled.greedy:
        ids = in_order(bits)[:1]
        unit = np.zeros(1, U64)
        processed = Distribution(ids, bits[ids], int(bits[ids[0]]), unit, 1.0)
        token, accepted = settle(row, ids, unit)
        return Answer(token, raw, processed, accepted=accepted, changed=bits, kept=ids, drawn=unit, row=row)
    kept = kept_of(row, bits)
    ids, drawn, shown = kept.row()
    processed = processed_of(kept)
    token, accepted = settle(row, ids, drawn)
    return Answer(token, raw, processed, state_after(row, kept, token), int(np.max(kept.dynamic)), accepted, bits, ids,
                  drawn, row)


def kept_of(row: Row, bits: Any) -> stages.Kept:
    """The kept tokens of a row that is not greedy, after the changes."""
    key, position, stream = row.noise()
    return kept_tokens(row.compiled, bits[None], (key, position, stream), np.array([row.state], object))


def kept_tokens(compiled: Compiled, bits: Any, noise: Any, state: Any) -> stages.Kept:
    """The kept tokens of rows of changed bits, each with a live token, under one chain."""
    ids, counts = ordered(bits)
    kept = stages.Kept(ids, np.take_along_axis(bits, ids, 1), counts, bits.shape[1], noise, state)
    for stage in compiled.stages():
        kept.run(stage)
    return kept


def processed_of(kept: stages.Kept) -> "Distribution":
    """The processed distribution of one row."""
    ids, drawn, shown = kept.row()
    return Distribution(ids, shown, int(kept.shown_bits()[1][0]), drawn, float(np.max(kept.shown)))


def state_after(row: Row, kept: stages.Kept, token: int) -> int:
    """The sampler's state after the row's token; 0 if it keeps none."""
    if not row.compiled.chain or row.compiled.chain[-1][0] not in stages.STATEFUL:
        return 0
    return int(kept.next_state(row.compiled.chain[-1], np.array([token]))[0])


# --- logits


def raw_logits(row: Row) -> Any:
    """Canonical bits as sent."""
    bits = np.asarray(row.bits, U32)
    size = magnitude(bits)
    nan = size > U32(NAN)
    large = (bits < U32(0x80000000)) & (size >= U32(LIMIT)) & ~nan
    failing = large if row.mask_nan else large | nan
    if failing.any():
        token = int(np.argmax(failing))
        raise RowError("nan" if nan[token] else "logit_too_large", token)
    return canonical(bits)


def changed_logits(row: Row, raw_bits: Any) -> Any:
    """Canonical bits after masks, bias and penalties."""
    bits = raw_bits.copy()
    allowed = np.ones(len(bits), bool)
    if row.allowed_tokens is not None:
        allowed[:] = False
        allowed[np.asarray(row.allowed_tokens, I64)] = True
    if row.allowed_bits is not None:
        words = np.asarray(row.allowed_bits, "<u4")
        allowed &= np.unpackbits(words.view(np.uint8), bitorder="little")[: len(bits)].astype(bool)
    bits[~allowed] = MASKED
    if len(row.edits):
        tokens, *edit = np.array(row.edits, U32).T
        bits[tokens], failing = changed(bits[tokens], *edit, row.compiled)
        if failing.any():
            raise RowError("logit_too_large", int(tokens[failing].min()))
    return bits


def changed(bits: Any, flags: Any, bias: Any, penalty: Any, compiled: Compiled) -> Tuple[Any, Any]:
    """The bits of tokens after their edits, and which of them fail their row. All are arrays of uint32."""
    bits = np.where(flags & U32(BANNED), U32(MASKED), bits)
    repeats = (flags & U32(REPEATED)).astype(bool) & bool(compiled.repetition)
    factors = floats([compiled.repetition]), floats([compiled.inverse_repetition])
    settled, failing = bits == U32(MASKED), np.zeros(bits.shape, bool)
    for wanted, step in ((bias != 0, lambda x: x + floats(bias)),
                         (repeats, lambda x: x * np.where(x < 0, *factors)),
                         (penalty != 0, lambda x: x + floats(penalty))):
        if not wanted.any():
            continue
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            after = flush(step(floats(bits)).view(U32))
        bits = np.where(wanted & ~settled, after, bits)
        beyond = ~settled & (magnitude(bits) >= U32(LIMIT))
        failing |= beyond & (bits < U32(0x80000000))
        settled |= beyond
        bits = np.where(beyond & (bits >= U32(0x80000000)), U32(MASKED), bits)
    return bits, failing


def ordered(bits: Any) -> Tuple[Any, Any]:
    """The ids of rows, key descending, id ascending, and how many of each row are live."""
    keys = sort_keys(bits)
    order = (~keys).astype(U64) << U64(32) | np.arange(bits.shape[1], dtype=U64)
    order.sort(axis=1)
    return (order & U64(0xFFFFFFFF)).astype(I64), np.count_nonzero(keys, axis=1)


def in_order(bits: Any) -> Any:
    """The live ids of a row, key descending, id ascending."""
    ids, counts = ordered(bits[None])
    return ids[0, :counts[0]]


def distribution_of(bits: Any) -> Distribution:
    """That of canonical bits at temperature 1."""
    ids = in_order(bits)
    first = int(bits[ids[0]])
    return Distribution(ids, bits[ids], first, Scale(first, UNIT_TEMPERATURE).distances(bits[ids]), 1.0)


# --- the draw


def settle(row: Row, ids: Any, distances: Any) -> Tuple[int, Optional[bool]]:
    """The answer's token, and whether a draft was accepted."""
    if row.score is not None:
        return row.score, None
    if row.verify is not None:
        return verified(row, ids, distances)
    return drawn_among(ids, distances, row.noise()), None


def verified(row: Row, ids: Any, distances: Any) -> Tuple[int, bool]:
    """Accepts the draft, or draws from the weights that the drafter left."""
    w = weights(distances)
    weight_sum = total(w)
    v = np.array([drafted(row, ids, weight_sum)], U64)
    own = np.array(drafted(row, [row.verify], weight_sum), object)
    (low, high), *place = row.noise()
    low, high, *place = (np.array([[word]], U64) for word in (low, high, *place))
    accepted, token = tested(Drafted(ids[None], w[None], v, np.array([row.verify]), own, ((low, high), *place)))
    return int(token[0]), bool(accepted[0])


def drafted(row: Row, tokens: Any, weight_sum: int) -> List[int]:
    """v of the tokens: floor(q * S)."""
    draft = row.draft
    if draft.certain:
        return [weight_sum if int(token) == row.verify else 0 for token in tokens]
    listed = {int(token): int(bits) for token, bits in zip(draft.tokens, draft.bits)}
    return [scaled(listed.get(int(token), draft.rest), weight_sum) for token in tokens]


def scaled(bits: int, factor: int) -> int:
    """floor(q * factor) of a probability's bits."""
    bits &= 0x7FFFFFFF
    if bits < LEAST_NORMAL:
        return 0
    mantissa, drop = bits & 0x7FFFFF | 0x800000, 150 - (bits >> 23)
    return mantissa * factor >> drop


def check_dense_draft(row: Row) -> None:
    draft = row.draft
    bits = np.full(len(row.bits), draft.rest, U32)
    bits[np.asarray(draft.tokens, I64)] = draft.bits
    wrong = (bits > U32(0x3F800000)) & (bits != U32(0x80000000))
    if wrong.any():
        raise RowError("draft_no_probability", int(np.argmax(wrong)))
    listed = set(int(token) for token in draft.tokens)
    parts = sum(scaled(int(b), 1 << 30) for b in draft.bits)
    parts += (len(row.bits) - len(listed)) * scaled(draft.rest, 1 << 30)
    if abs(parts - (1 << 30)) > 10737418:
        raise RowError("draft_sum", 0)
    if scaled_is_zero(int(bits[row.verify])):
        raise RowError("draft_impossible", row.verify)


def scaled_is_zero(bits: int) -> bool:
    return bits & 0x7FFFFFFF < LEAST_NORMAL


def float_bits(values: Any) -> Any:
    """The f32 bits of an array of numbers."""
    return np.asarray(values, np.float32).view(U32)
