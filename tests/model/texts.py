"""The consequences of a history alone: its hash, its phase, and why it may end.

The pages are proto/history_hash.md, LAW.md section 2, and docs/semantics.md, "Ends of texts". Parameters are
SamplingParameters as JSON with the contract's names.
"""

import hashlib
import struct

WORD = (1 << 64) - 1
START = 0x736F72746974696F
LLAMA_CPP, HF = "PRESET_LLAMA_CPP", "PRESET_HF"
DEFAULT_SCOPE = [0, 1, 0]  # window, which of repetition (1) and frequency (2) count the prompt, ignored prefix


# --- the hash of a history


def mix(x):
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & WORD
    x = (x ^ x >> 27) * 0x94D049BB133111EB & WORD
    return x ^ x >> 31


def absorb(h, word):
    return mix((h ^ word) + 0x9E3779B97F4A7C15 & WORD)


def float_word(value):
    """The bits of an f32; -0 has the bits of 0."""
    return struct.unpack("<I", struct.pack("<f", value + 0.0))[0]


def penalty_words(p):
    return [float_word(p.get("repetition_penalty", 1.0)), float_word(p.get("frequency_penalty", 0.0)),
            float_word(p.get("presence_penalty", 0.0))]


def listed(sequences):
    """Lists of tokens, each as its length and its tokens."""
    return [word for tokens in sequences for word in [len(tokens), *tokens]]


def penalises(p):
    return penalty_words(p) != [0x3F800000, 0, 0]


def preset(p):
    return p.get("chain", {}).get("preset", "PRESET_VLLM")


def scope_words(p):
    """The words of the penalties' scope."""
    given, llama = p.get("penalty_scope", {}), preset(p) == LLAMA_CPP
    default = 64 if llama else 0
    window = given.get("window", default)
    counts = given.get("repetition_counts_prompt", True) + 2 * given.get("frequency_counts_prompt", llama)
    return [window, counts, given.get("ignored_prefix", 0)]


def dry_words(dry):
    breakers = sorted(item["tokens"] for item in dry.get("sequence_breakers", []))
    return [float_word(dry["multiplier"]), float_word(dry.get("base", 1.75)), dry.get("allowed_length", 2),
            dry.get("window", 0), len(breakers), *listed(breakers)]


def phase_words(p):
    for phase in p["phases"]:
        budget = phase.get("max_tokens")
        then = phase.get("then") or (phase.get("end", []) if budget is not None else [])
        yield from listed([phase.get("begin", []), phase.get("end", []), then])
        yield from [int(budget is not None), budget or 0]
        yield from penalty_words({**p, **phase.get("parameters", {})})


def mark_words(p, mark_id):
    mark = p["watermark"]
    skips = bool(mark.get("skip_repeated_contexts"))
    key = int(mark["key"])
    if mark_id is not None:
        key = struct.unpack("<Q", hashlib.sha256(mark_id.encode()).digest()[:8])[0] or 1
    flags = [skips + 2 * (mark_id is not None)] if skips or mark_id is not None else []
    return [key, mark.get("context_width", 4), *flags]


def repetition_stop(p):
    """(repeats, min_period, max_period, min_length, min_tokens); None where it is off."""
    stop = p.get("repetition_stop", {})
    if not stop.get("repeats"):
        return None
    return [stop["repeats"], stop.get("min_period", 1), stop.get("max_period", 256), stop.get("min_length", 256),
            stop.get("min_tokens", 0)]


def penalised_anywhere(p):
    return penalises(p) or any(penalises({**p, **phase.get("parameters", {})}) for phase in p.get("phases", []))


def digest(opened, p, mark_id=None):
    """The digest of a sequence; `opened` has the words of its open, `mark_id` names the operator's key."""
    words = [opened["law_version"], opened["seed"], opened["choice_index"], opened["vocabulary_size"], opened["live"]]
    words += penalty_words(p)
    if penalised_anywhere(p) and scope_words(p) != DEFAULT_SCOPE:
        words += [8, *scope_words(p)]
    if p.get("dry", {}).get("multiplier"):
        words += [32, *dry_words(p["dry"])]
    if p.get("no_repeat_ngram_size"):
        words += [33, p["no_repeat_ngram_size"]]
    if p.get("min_tokens"):
        stops = sorted(p["stop_token_ids"])
        words += [34, p["min_tokens"], len(stops), *stops]
    bad = sorted((word["tokens"] for word in p.get("bad_words", []) if len(word["tokens"]) > 1),
                 key=lambda word: (word[-2], word[-1], word))
    if bad:
        words += [36, int(preset(p) == HF), len(bad), *listed(bad)]
    if p.get("phases"):
        words += [37, len(p["phases"]), *phase_words(p)]
    if "watermark" in p:
        words += [38, *mark_words(p, mark_id)]
    if repetition_stop(p):
        words += [44, *repetition_stop(p)]
    phrases = sorted((item["tokens"] for item in p.get("banned_phrases", [])), key=lambda words: (words[-1], words))
    if phrases:
        words += [45, len(phrases), *listed(phrases)]
    h = START
    for word in words:
        h = absorb(h, word)
    return h


def token_hash(tokens, h=START):
    for token in tokens:
        h = absorb(h, token)
    return h


def history_hash(chain, prompt, digest_word):
    return absorb(absorb(chain, prompt), digest_word)


# --- phases


def then_of(phase):
    return phase.get("then") or phase.get("end", [])


def ends_with(tokens, since, tag):
    """True if the last tokens are the tag, all of it behind `since`."""
    return bool(tag) and len(tokens) - since >= len(tag) and tokens[len(tokens) - len(tag):] == tag


class PhaseReader:
    """Reads a history token by token: which phase holds after it, and which token is forced."""

    def __init__(self, p, prompt, budget_slip=0):
        self.phases, self.prompt, self.slip = p.get("phases", []), prompt, budget_slip
        self.now, self.since = 0, 0

    def end_of_budget(self):
        """The position of the first token of `then`; None without a budget."""
        budget = self.phases[self.now - 1].get("max_tokens")
        if budget is None:
            return None
        end = self.since + budget + self.slip
        return max(end, self.prompt) if self.since <= self.prompt else end

    def read(self, tokens, count):
        """Advances to the first `count` tokens; called with 0, 1, 2, ..."""
        if not self.phases:
            return
        tokens = tokens[:count]
        if self.now and count:
            phase, end = self.phases[self.now - 1], self.end_of_budget()
            if end is not None and count > end:
                over = count == end + len(then_of(phase))
            else:
                over = ends_with(tokens, self.since, phase.get("end", []))
            if over:
                self.now, self.since = 0, count
        elif count:
            for number, phase in enumerate(self.phases, 1):
                if ends_with(tokens, self.since, phase.get("begin", [])):
                    self.now, self.since = number, count
                    break
        if not self.now and count == self.prompt:
            for number, phase in enumerate(self.phases, 1):
                if not phase.get("begin"):
                    self.now, self.since = number, count

    def forced(self, count):
        """The token that is emitted after `count` tokens; None where one is drawn."""
        end = self.end_of_budget() if self.now else None
        if end is None or count < end:
            return None
        return then_of(self.phases[self.now - 1])[count - end]


def phase_at(p, tokens, prompt, budget_slip=0):
    """The phase of the token after `tokens`, and the token that is forced there or None."""
    reader = PhaseReader(p, prompt, budget_slip)
    for count in range(len(tokens) + 1 if reader.phases else 0):
        reader.read(tokens, count)
    return reader.now, reader.forced(len(tokens))


# --- ends


def repeats_at_end(p, output):
    """True if the output ends in a repetition."""
    stop = repetition_stop(p)
    if stop is None or len(output) < stop[4]:
        return False
    repeats, least, most, length, _ = stop
    for period in range(least, most + 1):
        count = max(repeats * period, length)
        if count > len(output):
            if repeats * period > len(output):
                break
            continue
        end = output[len(output) - count:]
        if all(end[i] == end[i - period] for i in range(period, count)):
            return True
    return False


def end_of(p, tokens, prompt):
    """Why a sequence may end after the last token: (finish reason's number, rewind's position and tokens or None)."""
    output = tokens[prompt:]
    reason = 0
    if tokens[-1] in p.get("stop_token_ids", []):
        reason = 1
    elif repeats_at_end(p, output):
        reason = 2
    found = [item["tokens"] for item in p.get("banned_phrases", []) if ends_with(output, 0, item["tokens"])]
    if not found:
        return reason, None
    phrase = max(found, key=len)
    return reason, (len(tokens) - len(phrase), phrase)
