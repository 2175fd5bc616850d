"""Options that look at a history (kernels/law/LAW.md, section 2, and WATERMARK.md): a row's edits and noise.

Parameters are SamplingParameters as JSON, with the contract's names. Tokens are prompt and output, oldest first.
"""

from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from sortition_verify.functions import I64, TAG_WATERMARK, U32, U64, canonical_constant, philox
from sortition_verify.options import single
from sortition_verify.parameters import preset
from sortition_verify.row import BANNED, REPEATED

MASKS_ANY = 131008.0  # a penalty that masks every live logit


def edits(parameters: Dict[str, Any], tokens: Sequence[int], prompt: int) -> Any:
    """The edits of the row after `tokens`: token, flags, bias bits and penalty bits of each, by token.

    The first `prompt` tokens are the prompt.
    """
    text = np.asarray(tokens, I64)
    bias = {item.get("token", 0): item.get("bias", 0) for item in parameters.get("logit_bias", [])}
    banned = bans(parameters, text, prompt)
    repeated, counted, counts = counted_tokens(parameters, text, prompt)
    terms = dry_terms(parameters["dry"], text) if parameters.get("dry", {}).get("multiplier") else {}
    parts = [np.array(sorted(part), I64) for part in (bias, banned, terms)] + [repeated, counted]
    named, _ = distinct(np.concatenate(parts))
    biased, hidden, dry, again, often = (np.searchsorted(named, part) for part in parts)
    found = np.zeros((len(named), 4), U32)
    found[:, 0] = named
    found[hidden, 1] |= U32(BANNED)
    found[again, 1] |= U32(REPEATED)
    found[biased, 2] = canonical_constant([bias[token] for token in sorted(bias)])
    penalties = np.zeros(len(named))
    penalties[often] = single(parameters.get("frequency_penalty", 0)) * counts
    penalties[often] += single(parameters.get("presence_penalty", 0))
    penalties[dry] += [terms[token] for token in sorted(terms)]
    found[:, 3] = canonical_constant(-penalties)
    return found[found[:, 1:].any(axis=1)]


def phases_along(parameters: Dict[str, Any], tokens: Sequence[int], prompt: int) -> Iterator[Tuple[int, Optional[int]]]:
    """For each number of tokens read, from none to all: the phase in which the next token is drawn, 1 for the first
    one and 0 outside; and the token that is forced there, if there is one."""
    phases, text, now, since = parameters.get("phases", []), list(tokens), 0, 0
    begins = [phase.get("begin", []) for phase in phases]
    for n in range(len(text) + 1):
        if now:
            then = budget_end(phases[now - 1], since, prompt)
            if then is not None and n > then:
                over = n == then + len(then_of(phases[now - 1]))
            else:
                over = ends_with(text, since, n, phases[now - 1].get("end", []))
            if over:
                now, since = 0, n
        else:
            found = [i + 1 for i, begin in enumerate(begins) if ends_with(text, since, n, begin)]
            if found:
                now, since = found[0], n
        if not now and n == prompt and [] in begins:
            now, since = begins.index([]) + 1, n
        then = budget_end(phases[now - 1], since, prompt) if now else None
        yield now, None if then is None or n < then else then_of(phases[now - 1])[n - then]


def phase_after(parameters: Dict[str, Any], tokens: Sequence[int], prompt: int) -> Tuple[int, Optional[int]]:
    """The last of phases_along."""
    *_, last = phases_along(parameters, tokens, prompt) if "phases" in parameters else [(0, None)]
    return last


def budget_end(phase: Dict[str, Any], begin: int, prompt: int) -> Optional[int]:
    """The position of the first token of `then` in a phase that began at `begin`; None without a budget."""
    if "max_tokens" not in phase:
        return None
    end = begin + phase["max_tokens"]
    return max(end, prompt) if begin <= prompt else end


def then_of(phase: Dict[str, Any]) -> List[int]:
    return phase.get("then") or phase["end"]


def ends_with(text: List[int], since: int, n: int, tag: List[int]) -> bool:
    """True if the tokens from `since` to before n end with all of a tag."""
    return bool(tag) and n - len(tag) >= since and text[n - len(tag):n] == tag


def watermark_noise(parameters: Dict[str, Any], tokens: Sequence[int]) -> Optional[Tuple[Tuple[int, int], int, int]]:
    """The key, position and stream of a row's noise with a watermark; None where no watermark marks it."""
    if "watermark" not in parameters:
        return None
    mark = parameters["watermark"]
    key, width = int(mark["key"]), mark.get("context_width", 4)
    if mark.get("skip_repeated_contexts", False) and len(tokens) > width:
        text = list(tokens)
        end = text[len(text) - width:]
        if any(text[at:at + width] == end for at in range(len(text) - width)):
            return None
    first, second = context_keys(key, np.asarray(tokens[max(0, len(tokens) - width):], I64))
    return (int(first), int(second)), 0, 0


def context_keys(key: int, contexts: Any) -> Tuple[Any, Any]:
    """The words of the noise's key after contexts, which are the last axis."""
    first = second = np.zeros(contexts.shape[:-1], U64)
    for place in range(contexts.shape[-1]):
        first, second, _, _ = philox(first, second, contexts[..., place], TAG_WATERMARK,
                                     (key & 0xFFFFFFFF, key >> 32))
    return first, second


# --- bans


def bans(parameters: Dict[str, Any], tokens: Any, prompt: int) -> set:
    output, found = tokens[prompt:], set(parameters.get("banned_token_ids", []))
    size = parameters.get("no_repeat_ngram_size", 0)
    if size and len(tokens) >= size:
        grams = np.lib.stride_tricks.sliding_window_view(tokens, size)
        same = (grams[:, :size - 1] == tokens[len(tokens) - size + 1:]).all(axis=1)
        found |= set(grams[same, size - 1].tolist())
    text = (tokens if preset(parameters) == "hf" else output).tolist()
    for word in parameters.get("bad_words", []):
        *begin, last = word["tokens"]
        if len(begin) <= len(text) and text[len(text) - len(begin):] == begin:
            found.add(last)
    if len(output) < parameters.get("min_tokens", 0):
        found |= set(parameters.get("stop_token_ids", []))
    return found


# --- penalties


def counted_tokens(parameters: Dict[str, Any], tokens: Any, prompt: int) -> Tuple[Any, Any, Any]:
    """The tokens of the repetition penalty, those of the others, and the counts of these."""
    scope, as_llama_cpp = parameters.get("penalty_scope", {}), preset(parameters) == "llama_cpp"
    window = scope.get("window", 64 if as_llama_cpp else 0)
    first = max(0, len(tokens) - window) if window else 0
    after_ignored = max(first, min(prompt, scope.get("ignored_prefix", 0)))

    def of(name: str, default: bool) -> Any:
        return tokens[after_ignored if scope.get(name, default) else max(first, prompt):]

    none = tokens[:0]
    repeats = single(parameters.get("repetition_penalty", 1)) != 1
    repeated = distinct(of("repetition_counts_prompt", True))[0] if repeats else none
    if not parameters.get("frequency_penalty", 0) and not parameters.get("presence_penalty", 0):
        return repeated, none, none
    return (repeated, *distinct(of("frequency_counts_prompt", as_llama_cpp)))


def distinct(tokens: Any) -> Tuple[Any, Any]:
    """The distinct tokens, ascending, and their counts."""
    counts = np.bincount(tokens)
    found = np.flatnonzero(counts)
    return found, counts[found]


# --- DRY


def dry_terms(dry: Dict[str, Any], tokens: Any) -> Dict[int, float]:
    """The term of each token that would continue a repetition."""
    window, least = dry.get("window", 0), dry.get("allowed_length", 2)
    h = tokens[len(tokens) - window:] if 0 < window < len(tokens) else tokens
    breakers = [item["tokens"] for item in dry.get("sequence_breakers", [])]
    limit, longest = after_breaker(breakers, h.tolist()), {}
    ends = np.arange(1, len(h))  # i before which `length` tokens equal the end of h
    for length in range(1, limit + 1):
        ends = ends[ends >= length]
        ends = ends[h[ends - length] == h[len(h) - length]]
        if not ends.size:
            break
        if length >= least:
            longest.update(dict.fromkeys(h[ends].tolist(), length))
    table = term_table(single(dry["multiplier"]), single(dry.get("base", 1.75)))
    return {token: table[min(length - least, len(table) - 1)] for token, length in longest.items()
            if [token] not in breakers}


def after_breaker(breakers: List[List[int]], h: List[int]) -> int:
    firsts = {breaker[0] for breaker in breakers if breaker}
    for i in reversed(range(len(h)) if breakers else ()):
        if h[i] in firsts:
            standing = [len(breaker) for breaker in breakers if h[i:i + len(breaker)] == breaker]
            if standing:
                return len(h) - i - max(standing)
    return len(h)


def term_table(multiplier: float, base: float) -> List[float]:
    table = [multiplier]
    while base != 1 and table[-1] < MASKS_ANY:
        table.append(table[-1] * base)
    return table
