"""One position of a sequence: from logits, history and options to a token and its answers.

The arithmetic of a row is sortition_verify's, the law in numpy from its pages. This file adds the edits,
bans, masks and noise of a position, and its answer.
"""

import math

import numpy as np

import drafts
from sortition_verify import chain as stages
from sortition_verify import history as law_history
from sortition_verify import row as law
from sortition_verify.functions import MASKED, U32, U64, UNIT_TEMPERATURE, Scale, floats, weights
from sortition_verify.options import first_state
from sortition_verify.parameters import compile_parameters, within

KINDS = ("raw", "processed", "tempered")


class Rules:
    """The parameters that hold in one phase, compiled."""

    def __init__(self, p, phase, live, plants=()):
        self.p = within(p, phase)
        if self.p.get("top_k", 0) >= live:
            self.p["top_k"] = 0
        self.compiled, self.mask_nan = compile_parameters(self.p)
        self.allowed = self.p.get("allowed_token_ids") or None
        self.state = first_state(self.compiled.chain)
        if "min_p" in plants and self.p.get("min_p"):
            self.compiled.min_p_distance -= 1 << 24
            self.compiled.chain = [[1, stage[1] - (1 << 24), *stage[2:]] if stage[0] == 1 else stage
                                   for stage in self.compiled.chain]
        if "scope" in plants and "penalty_scope" in self.p:
            self.p = {**self.p, "penalty_scope": {**self.p["penalty_scope"], "window": 0}}

    @property
    def keeps_state(self):
        chain = self.compiled.chain
        return bool(chain) and chain[-1][0] in stages.STATEFUL


class Situation:
    """All data that decide a position, besides its logits."""

    def __init__(self, rules, tokens, prompt, forced, seed, stream, mask, state):
        self.rules, self.tokens, self.prompt, self.forced = rules, tokens, prompt, forced
        self.seed, self.stream, self.mask = seed, stream, mask
        self.state = rules.state if state is None else state

    def row(self, bits):
        rules, p = self.rules, self.rules.p
        if self.forced is not None:
            allowed, edits = [self.forced], []
        else:
            allowed = allowed_by(rules.allowed, self.mask, len(bits))
            edits = law_history.edits(p, self.tokens, self.prompt)
        mark = law_history.watermark_noise(p, self.tokens)
        seed, position, stream = self.seed, len(self.tokens), self.stream
        if mark is not None:
            (low, high), position, _ = mark
            seed, stream = high << 32 | low, 0
        return law.Row(bits=bits, compiled=rules.compiled, seed=seed, position=position, stream=stream,
                       mask_nan=rules.mask_nan, edits=edits, allowed_tokens=allowed, state=self.state)


def allowed_by(listed, mask, count):
    """The ids that the sequence's list and the step's mask leave; None: all. `mask` is an array of bools or None."""
    if mask is None:
        return listed
    allowed = mask.copy()
    if listed is not None:
        own = np.zeros(count, bool)
        own[listed] = True
        allowed &= own
    return np.flatnonzero(allowed)


class Place:
    """A position with its logits: the kept tokens, and the draws among them."""

    def __init__(self, situation, bits):
        """Raises law.RowError if the row fails."""
        row = self.row = situation.row(bits)
        self.raw_bits = law.raw_logits(row)
        changed = law.changed_logits(row, self.raw_bits)
        if (changed == U32(MASKED)).all():
            raise law.RowError("no_live_token", 0)
        self.greedy, self.kept = row.compiled.greedy, None
        if self.greedy:
            ids, self.t, self.dynamic = law.in_order(changed)[:1], np.zeros(1, U64), 0
            self.processed = law.Distribution(ids, changed[ids], int(changed[ids[0]]), self.t, 1.0)
        else:
            kept = self.kept = law.kept_of(row, changed)
            ids, self.t, _ = kept.row()
            self.dynamic, self.processed = int(np.max(kept.dynamic)), law.processed_of(kept)
        self.ids, self.changed = ids, changed
        self.rules = situation.rules

    def draw(self):
        return law.drawn_among(self.ids, self.t, self.row.noise())

    def weights(self):
        return weights(self.t)

    def accepts(self, token, draft):
        """Tests a draft by rejection: (accepted, the token that stands there)."""
        self.row.verify, self.row.draft = token, draft or law.Draft()
        token, accepted = law.verified(self.row, self.ids, self.t)
        return accepted, token

    def state_after(self, token):
        return law.state_after(self.row, self.kept, token) if self.rules.keeps_state else None

    def answer(self, token):
        raw = law.distribution_of(self.raw_bits)
        return law.Answer(token, raw, self.processed, changed=self.changed, kept=self.ids, drawn=self.t, row=self.row,
                          dynamic_temperature=self.dynamic)

    def fill(self, out, token, requested=None):
        """Writes the requested fields for a token into a DrawResult or a Position."""
        p = self.rules.p
        answer = self.answer(token)
        ids = p.get("logprob_token_ids", []) if requested is None else requested
        for kind in KINDS:
            options = p.get(f"{kind}_logprobs")
            if options is not None:
                fill_logprobs(getattr(out, kind), getattr(answer, kind), token, options.get("top", 0), ids)
        if p.get("entropy"):
            out.entropy = number(self.processed.entropy()[2])
        if p.get("kept_log_mass"):
            out.kept_log_mass = number(answer.kept_mass()[2])
        asked = p.get("kept_set", {})
        if asked.get("count"):
            out.kept_count = len(self.ids)
        if asked.get("tokens"):
            out.kept_tokens.extend(np.sort(self.ids).tolist())

    def probabilities(self):
        """Returns all live tokens' probabilities, as little-endian f32."""
        out = np.zeros(len(self.changed), "<f4")
        w = self.weights()
        if self.kept is not None and self.kept.adapted is not None:
            # The weights come from the bits that answers show (CHAIN.md, section 4), their sum from the draw.
            w = weights(Scale(0, UNIT_TEMPERATURE).distances(self.processed.bits))
        out[self.ids] = w.astype(np.float64) / float(self.processed.weight_sum)
        return out.tobytes()

    def fill_race(self, out, token):
        rank, _, margin = law.race_place(self.ids, self.t, self.row.noise(), token)
        out.race.rank, out.race.margin = rank, margin


def number(bits):
    return float(floats([bits])[0])


def fill_logprobs(out, distribution, token, top, requested):
    bits, rank = distribution.bits_and_rank(token)
    out.logprob, out.rank = number(distribution.logprob_bits(bits)), rank
    for at, first in enumerate(distribution.ids[:top]):
        out.top_tokens.append(int(first))
        out.top_logprobs.append(number(distribution.logprob_bits(int(distribution.bits[at]))))
    for asked in requested:
        bits, rank = distribution.bits_and_rank(asked)
        out.requested_logprobs.append(number(distribution.logprob_bits(bits)))
        out.requested_ranks.append(rank)
