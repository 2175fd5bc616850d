"""One row of the law, from logits to the answer (kernels/law/LAW.md), and the check of a draft (SPECULATION.md).

    row = Row(bits=widen(elements, "bf16"), compiled=compile_options({"temperature": 0.8, "top_p": 0.95}), seed=42)
    print(answer(row).token)
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from sortition_verify import chain as stages
from sortition_verify.functions import (DEAD, I64, LIMIT, MASKED, NAN, TAG_REJECTION, U32, U64, UNIT_TEMPERATURE,
                                        UNIT_WEIGHT, Scale, bits_of, canonical, float_of, floats, flush, log2_raw,
                                        log2_raws, magnitude, noise_logs, philox, sort_keys, total, weights)

BANNED, REPEATED = 1, 2
LN2_33 = float.fromhex("0x1.62e42fefa39efp-33")
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
    edits: List[Tuple[int, int, int, int]] = field(default_factory=list)  # token, flags, bias bits, penalty bits
    allowed_tokens: Optional[List[int]] = None
    allowed_bits: Optional[List[int]] = None  # words, least significant bit first
    state: int = 0
    score: Optional[int] = None
    verify: Optional[int] = None
    draft: Draft = field(default_factory=Draft)

    def noise(self) -> Tuple[Tuple[int, int], int, int]:
        return (self.seed & 0xFFFFFFFF, self.seed >> 32), self.position, self.stream


def clamped_log(weight_sum: int) -> int:
    """log2 of a sum of weights, Q32; never below the log2 of the greatest power of two up to the sum."""
    return max(log2_raw(weight_sum), weight_sum.bit_length() - 1 << 32)


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

    def logprob_bits(self, bits: int) -> int:
        """The f32 bits of ln of the probability of a token of these bits."""
        if bits == MASKED:
            return MASKED
        return bits_of((float_of(bits) - self.first) / self.temperature - self.log * LN2_33)

    @cached_property
    def first(self) -> float:
        return float_of(self.max_bits)

    @cached_property
    def log(self) -> int:
        """l of LAW.md, section 9."""
        return clamped_log(self.weight_sum) - (44 << 32)

    def logprob(self, token: int) -> float:
        return float_of(self.logprob_bits(self.bits_and_rank(token)[0]))

    def entropy(self) -> Tuple[int, int, int]:
        """S, E and the bits of the entropy in nats."""
        w, t = weights(self.distances), self.distances & U64(0xFFFFFFFF)
        t = np.where(w == 0, U64(0), t)
        surplus = total(((w >> U64(32)) * t << U64(6)) + ((w & U64(0xFFFFFFFF)) * t >> U64(26)))
        nats = self.log * LN2_33
        nats += float(surplus) / float(self.weight_sum) * float.fromhex("0x1.62e42fefa39efp-1")
        return self.weight_sum, surplus, bits_of(nats)


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
    ids = in_order(bits)
    if row.compiled.greedy:
        ids = ids[:1]
        unit = np.zeros(1, U64)
        processed = Distribution(ids, bits[ids], int(bits[ids[0]]), unit, 1.0)
        token, accepted = settle(row, ids, unit)
        return Answer(token, raw, processed, accepted=accepted, changed=bits, kept=ids, drawn=unit, row=row)
    kept = stages.Kept(ids, bits[ids], len(bits), row.noise(), row.state)
    for stage in row.compiled.stages():
        kept.run(stage)
    drawn = kept.drawn_distances()
    shown, first = kept.shown_bits()
    processed = Distribution(kept.ids, shown, first, drawn, kept.shown)
    token, accepted = settle(row, kept.ids, drawn)
    state = 0
    if row.compiled.chain and row.compiled.chain[-1][0] in stages.STATEFUL:
        state = kept.next_state(row.compiled.chain[-1], processed.place(token))
    return Answer(token, raw, processed, state, kept.dynamic, accepted, bits, kept.ids, drawn, row)


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
    failing = []
    for token, flags, bias, penalty in row.edits:
        bits[token], fails = changed(int(bits[token]), flags, bias, penalty, row.compiled)
        if fails:
            failing.append(token)
    if failing:
        raise RowError("logit_too_large", min(failing))
    return bits


def changed(bits: int, flags: int, bias: int, penalty: int, compiled: Compiled) -> Tuple[int, bool]:
    """One token's bits after its edit, and whether it fails the row."""
    if bits == MASKED or flags & BANNED:
        return MASKED, False
    steps = []
    if bias:
        steps.append(lambda x: x + floats([bias]))
    if flags & REPEATED and compiled.repetition:
        factors = floats([compiled.repetition]), floats([compiled.inverse_repetition])
        steps.append(lambda x: x * (factors[0] if x[0] < 0 else factors[1]))
    if penalty:
        steps.append(lambda x: x + floats([penalty]))
    for step in steps:
        with np.errstate(over="ignore", under="ignore"):
            bits = int(flush(step(floats([bits])).view(U32))[0])
        if bits & 0x7FFFFFFF >= LIMIT:
            return (MASKED, False) if bits >> 31 else (bits, True)
    return bits, False


def in_order(bits: Any) -> Any:
    """The live ids, key descending, id ascending."""
    keys = sort_keys(bits)
    live = np.flatnonzero(keys)
    return live[np.argsort(~keys[live], kind="stable")]


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


def race(ids: Any, keys: Any, racing: Any, noise: Any) -> int:
    """The token of the smallest key plus noise; ties go to the lower id."""
    runners, sums = race_keys(ids, keys, racing, noise)
    return int(runners[np.argmin(sums)])


def race_keys(ids: Any, keys: Any, racing: Any, noise: Any) -> Tuple[Any, Any]:
    """The ids that race, ascending, and their keys plus noise."""
    order = np.argsort(ids[racing], kind="stable")
    runners = ids[racing][order].astype(U64)
    return runners, keys[racing][order] + noise_logs(runners, noise)


def drawn_among(ids: Any, distances: Any, noise: Any) -> int:
    """The token that is drawn from kept tokens at these distances."""
    return race(ids, distances.astype(I64) << I64(6), distances != U64(DEAD), noise)


def race_place(ids: Any, distances: Any, noise: Any, token: int) -> Tuple[int, int, float]:
    """A token's rank in the race, and how far its race key is above the smallest, in Q32 octaves and in nats.

    The rank is 0 and the distance is the largest number, or infinite, if the token does not race.
    """
    runners, sums = race_keys(ids, distances.astype(I64) << I64(6), distances != U64(DEAD), noise)
    place = np.flatnonzero(runners == U64(token))
    if not place.size:
        return 0, (1 << 63) - 1, float("inf")
    own = sums[place[0]]
    rank = 1 + int(np.count_nonzero((sums < own) | ((sums == own) & (runners < U64(token)))))
    lag = int(own - sums.min())
    return rank, lag, float(lag) * LN2_33


def verified(row: Row, ids: Any, distances: Any) -> Tuple[int, bool]:
    """Accepts the draft, or draws from the weights that the drafter left."""
    w = weights(distances)
    weight_sum = total(w)
    key, position, stream = row.noise()
    x, y, z, u = (int(word[0]) for word in philox(np.zeros(1, U64), position, stream, TAG_REJECTION, key))
    chance = drafted(row, [row.verify], weight_sum)[0]
    place = np.flatnonzero(ids == row.verify)
    if place.size and (u << 32 | z) * chance >> 64 < int(w[place[0]]):
        return row.verify, True
    left = np.array([max(0, int(a) - b) for a, b in zip(w, drafted(row, ids, weight_sum))], U64)
    if not left.any():
        left = w
    racing = left > 0
    keys = np.full(len(left), 0, I64)
    keys[racing] = I64(44 << 32) - log2_raws(left[racing])
    return race(ids, keys, racing, ((x, y), position, stream)), False


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
