"""The texts of an archive (docs/verifier.md), drawn again by the law.

A text's history is known, so each of its positions is. The rows of a text are therefore drawn together; those under a
sampler that keeps a state, the positions of all texts of a setting one after the other.
"""

import hashlib
import itertools
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from sortition_verify.chain import STATEFUL
from sortition_verify.draw import Drafted, blocks, tested
from sortition_verify.functions import I64, MASKED, U32, U64, canonical, total
from sortition_verify.history import context_keys, edits, phases_along
from sortition_verify.options import first_state
from sortition_verify.parameters import compile_parameters, within
from sortition_verify.places import Places, joined, places_of, raw_answers
from sortition_verify.records import ACCEPTED, FIRST, RACE, REPLACED, mask_digest
from sortition_verify.row import changed, scaled
from sortition_verify.text_model import PROBABILITIES, VOCABULARY, Model

SEED = 0x70726F6F66000000
WORDS = ("token", "logprob", "hash of the row", "raw logprob", "raw rank", "raw token 1", "raw logprob 1",
         "raw token 2", "raw logprob 2", "raw token 3", "raw logprob 3", "entropy", "kept count")
# Parameters that give a row edits.
EDITING = {"logit_bias", "banned_token_ids", "repetition_penalty", "frequency_penalty", "presence_penalty", "dry",
           "no_repeat_ngram_size", "bad_words", "min_tokens"}


@dataclass
class Setting:
    """One of settings.json: its texts have the numbers from `first` on."""

    name: str
    first: int
    texts: int
    prompt: int
    parameters: Dict[str, Any]
    dtype: str = "f32"
    mask: Optional[Dict[str, int]] = None
    drafts: Optional[Dict[str, Any]] = None
    compiled: List[Any] = field(default_factory=list)  # outside of phases, then in each

    def __post_init__(self) -> None:
        """Raises ValueError for what this program cannot follow."""
        inner = [phase.get("parameters", {}) for phase in self.parameters.get("phases", [])]
        named = set(self.parameters).union(*inner)
        if {"allowed_token_ids", "banned_phrases", "dynamic_temperature"} & named:
            raise ValueError(f"{self.name}: an option that archives do not have")
        alone = EDITING | {"phases", "watermark", "chain", "mirostat", "adaptive_p"}
        if self.mode and (alone & set(self.parameters) or self.mask):
            raise ValueError(f"{self.name}: drafts that decide tokens, with options that look at the history")
        mark = self.parameters.get("watermark", {})
        if mark.get("skip_repeated_contexts") or mark.get("context_width", 4) > self.prompt:
            raise ValueError(f"{self.name}: a watermark that does not mark each token")
        phases = range(len(self.parameters.get("phases", [])) + 1)
        self.compiled = [compile_parameters(within(self.parameters, phase))[0] for phase in phases]

    @property
    def mode(self) -> str:
        """How drafts decide tokens; empty where they do not."""
        mode = (self.drafts or {}).get("mode", "")
        return "" if mode == "VERIFY_MODE_COUPLED" else mode

    @property
    def depth(self) -> int:
        return len(self.drafts["parents"]) if self.drafts else 0

    @property
    def has_receipts(self) -> bool:
        return self.mode != "VERIFY_MODE_BLOCK"

    @property
    def words(self) -> int:
        """Number of 32-bit words that texts.bin has of a token."""
        return 13 if "raw_logprobs" in self.parameters else 3


@dataclass
class Answers:
    """The tokens of a setting's texts by the law, text after text."""

    places: Places
    tokens: Any
    methods: Any
    words: Any  # as in texts.bin
    rows: List[bytes]  # the hash of each text's rows
    phases: Any
    digests: List[bytes]  # of the steps' masks, as in receipts; by position modulo the period


class Texts:
    """The texts of one setting, with the tokens of an archive: an array with a line for each text."""

    def __init__(self, model: Model, setting: Setting, tokens: Any) -> None:
        self.model, self.setting, self.tokens = model, setting, tokens
        count, self.length = tokens.shape
        self.numbers = np.arange(setting.first, setting.first + count)
        self.prompt = setting.prompt
        prompts = [model.prompt(int(number), self.prompt) for number in self.numbers]
        self.history = np.concatenate([np.array(prompts), tokens], axis=1)
        self.parameters = [within(setting.parameters, phase) for phase in range(len(setting.compiled))]
        self.hidden = hidden_tokens(setting.mask) if setting.mask else None

    def answers(self) -> Answers:
        """Raises RowError where a row of the model fails under the setting."""
        count = self.tokens.size
        self.words = np.zeros((count, self.setting.words), U32)
        self.phases = np.zeros(count, I64)
        rows = []
        if self.setting.compiled[0].chain and self.setting.compiled[0].chain[-1][0] in STATEFUL:
            places = self.one_after_the_other(rows)
        else:
            places = joined([(self.indices(at), self.text_places(at, rows)) for at in range(len(self.tokens))], count)
        tokens, methods = self.drawn(places)
        self.words[:, 0], self.words[:, 1] = tokens, places.logprobs(tokens)
        if self.setting.words > 3:
            self.words[:, 11], self.words[:, 12] = places.entropies(), places.kept_counts()
        return Answers(places, tokens, methods, self.words, rows, self.phases, self.mask_digests())

    def indices(self, at: int) -> Any:
        """Indices of a text's tokens."""
        return np.arange(at * self.length, (at + 1) * self.length)

    # --- rows

    def contexts(self, at: int) -> Any:
        before = self.history[at, self.prompt - 2:-1]
        return self.model.context(before[1:], before[:-1])

    def sent(self, at: int, rows: List[bytes]) -> Any:
        """A text's rows, as sent. Adds their hash to `rows`, and those of each to the words."""
        positions = self.prompt + np.arange(self.length)
        bits = self.model.rows(self.contexts(at), np.full(self.length, self.numbers[at]), positions)
        whole = hashlib.sha256()
        sent = bits if self.setting.dtype == "f32" else (bits >> U32(16)).astype("<u2")
        hashes = []
        for row in sent:
            whole.update(row)
            hashes.append(hashlib.sha256(row).digest()[:4])
        rows.append(whole.digest())
        self.words[self.indices(at), 2] = np.frombuffer(b"".join(hashes), "<u4")
        bits = canonical(bits if self.setting.dtype == "f32" else bits & U32(0xFFFF0000))
        if self.setting.words > 3:
            self.words[self.indices(at), 3:11] = raw_answers(bits, self.tokens[at], 3)
        return bits

    def text_places(self, at: int, rows: List[bytes]) -> Places:
        """The positions of one text, whose sampler keeps no state."""
        bits, noise = self.changed_rows(at, self.sent(at, rows))
        parts = []
        for phase in np.unique(self.phases[self.indices(at)]):
            of_phase = np.flatnonzero(self.phases[self.indices(at)] == phase)
            places, _ = places_of(self.setting.compiled[phase], bits[of_phase], noise_at(noise, of_phase))
            parts.append((of_phase, places))
        return joined(parts, self.length)

    def one_after_the_other(self, rows: List[bytes]) -> Places:
        """The positions of all texts, whose sampler keeps a state. Phases do not replace such samplers."""
        changed_rows = [self.changed_rows(at, self.sent(at, rows)) for at in range(len(self.tokens))]
        compiled = self.setting.compiled[0]
        state = np.array([first_state(compiled.chain)] * len(self.tokens), object)
        parts = []
        for n in range(self.length):
            bits = np.stack([bits[n] for bits, _ in changed_rows])
            noise = [noise_at(noise, n) for _, noise in changed_rows]
            (low, high), position, stream = noise[0]
            keys = np.array([[key[0], key[1], at, stream] for key, at, stream in noise], U64).T
            places, after = places_of(compiled, bits, ((keys[0], keys[1]), keys[2], keys[3]), state)
            state = after(self.tokens[:, n])
            parts.append((np.arange(len(self.tokens)) * self.length + n, places))
        return joined(parts, self.tokens.size)

    def changed_rows(self, at: int, bits: Any) -> Tuple[Any, Any]:
        """A text's rows after masks and edits, and their noise. Notes the phases."""
        setting, bits = self.setting, bits.copy()
        seed = SEED + int(self.numbers[at])
        low, high = (np.full(self.length, word, U64) for word in (seed & 0xFFFFFFFF, seed >> 32))
        position, stream = (self.prompt + np.arange(self.length)).astype(U64), np.zeros(self.length, U64)
        if self.hidden is not None:
            bits[self.hidden[position.astype(I64) % len(self.hidden)]] = MASKED
        mark = setting.parameters.get("watermark")
        if mark:
            contexts = np.lib.stride_tricks.sliding_window_view(self.history[at, :-1], mark.get("context_width", 4))
            low, high = context_keys(int(mark["key"]), contexts[-self.length:])
            position = stream
        if "phases" in setting.parameters or EDITING & set(setting.parameters):
            self.edit(at, bits)
        return bits, ((low, high), position, stream)

    def edit(self, at: int, bits: Any) -> None:
        """Applies the options that look at the history to a text's rows, and notes the phases."""
        parts: Dict[int, List[Any]] = {}  # of phases: rows, and the edits of each
        history = self.history[at]
        along = phases_along(self.setting.parameters, history[:-1].tolist(), self.prompt)
        for n, (phase, forced) in enumerate(itertools.islice(along, self.prompt, None)):
            self.phases[at * self.length + n] = phase
            if forced is not None:
                bits[n, np.arange(VOCABULARY) != forced] = MASKED
            else:
                found = edits(self.parameters[phase], history[:self.prompt + n], self.prompt)
                parts.setdefault(phase, []).append((n, found))
        for phase, of_phase in parts.items():
            rows = np.repeat([n for n, _ in of_phase], [len(found) for _, found in of_phase])
            tokens, *edit = np.concatenate([found for _, found in of_phase]).T
            bits[rows, tokens], failing = changed(bits[rows, tokens], *edit, self.setting.compiled[phase])
            if failing.any():
                raise ValueError(f"text {self.numbers[at]}, token {rows[failing][0]}: a logit that is too large")

    # --- tokens

    def drawn(self, places: Places) -> Tuple[Any, Any]:
        """The tokens, and the methods of their draws."""
        draws = places.draws()
        methods = np.array([FIRST if compiled.greedy else RACE for compiled in self.setting.compiled])[self.phases]
        for at in range(len(self.tokens) if self.setting.mode else 0):
            decide = self.by_rejection if self.setting.mode == "VERIFY_MODE_REJECTION" else self.by_blocks
            indices = self.indices(at)
            draws[indices], methods[indices] = decide(at, places.of(indices), draws[indices])
        return draws, methods

    def drafted(self, places: Places, contexts: Any, at: int) -> Drafted:
        """Positions with the drafts of a chain."""
        which, draft = self.model.drafts(contexts, np.full(len(contexts), self.numbers[at]), places.position)
        w = places.weights()
        listed = np.stack([scaled(bits, total(w)) for bits in PROBABILITIES], axis=1)
        v = np.zeros(w.shape, U64)
        for number in range(len(PROBABILITIES)):
            tokens = self.model.drafted[contexts, number][:, None]
            v += np.where(places.ids == tokens, listed[:, number, None].astype(U64), U64(0))
        own = np.take_along_axis(listed, which[:, None], 1)[:, 0]
        return Drafted(places.ids, w, v, draft, own, places.noise)

    def by_rejection(self, at: int, places: Places, draws: Any) -> Tuple[Any, Any]:
        accepted, replaced = tested(self.drafted(places, self.contexts(at), at))
        methods, n = np.full(self.length, RACE), 0
        while self.length - n > self.setting.depth:  # a step with drafts; those after it draw one token
            for n in range(n, n + self.setting.depth):
                draws[n], methods[n] = replaced[n], ACCEPTED if accepted[n] else REPLACED
                if not accepted[n]:
                    break
            else:
                n += 1  # every draft is accepted: the row behind them draws
            n += 1
        return draws, methods

    def by_blocks(self, at: int, places: Places, draws: Any) -> Tuple[Any, Any]:
        """Answers blocks at every position where a step may begin, and follows the steps."""
        depth, starts = self.setting.depth, np.arange(self.length - self.setting.depth)
        before, last = (self.history[at, self.prompt - back + starts] for back in (2, 1))
        numbers = np.full(len(starts), self.numbers[at])
        drafting: List[Drafted] = []
        for ahead in range(depth + 1):
            contexts, positions = self.model.context(last, before), self.prompt + starts + ahead
            bits = canonical(self.model.rows(contexts, numbers, positions))
            noise = (places.low[:len(starts)], places.high[:len(starts)]), positions, places.stream[:len(starts)]
            reached, _ = places_of(self.setting.compiled[0], bits, noise)
            if ahead < depth:
                drafting.append(self.drafted(reached, contexts, at))
                before, last = last, drafting[-1].draft
        ends, after = blocks(drafting, reached.noise, reached.draws())
        methods, n = np.full(self.length, RACE), 0
        while self.length - n > depth:
            end, start = int(ends[n]), n
            draws[start:start + end] = [rows.draft[start] for rows in drafting[:end]]
            draws[start + end], n = after[start], start + end + 1
        return draws, methods

    def mask_digests(self) -> List[bytes]:
        if self.hidden is None:
            return []
        return [mask_digest(np.packbits(~hidden, bitorder="little").view("<u4")) for hidden in self.hidden]


def hidden_tokens(mask: Dict[str, int]) -> Any:
    """Which tokens are hidden, by the position modulo the period."""
    tokens, positions = np.arange(VOCABULARY), np.arange(mask["period"])[:, None]
    return (tokens + positions) % mask["period"] < mask["hidden"]


def noise_at(noise: Any, indices: Any) -> Any:
    (low, high), position, stream = noise
    return (low[indices], high[indices]), position[indices], stream[indices]
