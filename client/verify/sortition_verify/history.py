"""Options that look at a history (kernels/law/LAW.md, section 2, and WATERMARK.md): a row's edits and noise.

Parameters are SamplingParameters as JSON, with the contract's names. Tokens are prompt and output, oldest first.
"""

from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from sortition_verify.functions import TAG_WATERMARK, U64, canonical_constant, philox
from sortition_verify.options import single
from sortition_verify.parameters import preset
from sortition_verify.row import BANNED, REPEATED

MASKS_ANY = 131008.0  # a penalty that masks every live logit
Edit = Tuple[int, int, int, int]  # token, flags, bias bits, penalty bits


def edits(parameters: Dict[str, Any], tokens: Sequence[int], prompt: int) -> List[Edit]:
    """The edits of the row after `tokens`, by token. The first `prompt` tokens are the prompt."""
    bias = {item.get("token", 0): canonical_constant(item.get("bias", 0)) for item in parameters.get("logit_bias", [])}
    banned = bans(parameters, tokens, prompt)
    repeated, counts = counted(parameters, tokens, prompt)
    terms = dry_terms(parameters["dry"], tokens) if parameters.get("dry", {}).get("multiplier") else {}
    found = []
    for token in sorted(set(bias) | banned | repeated | set(counts) | set(terms)):
        flags = (BANNED if token in banned else 0) | (REPEATED if token in repeated else 0)
        edit = (token, flags, bias.get(token, 0), penalty(parameters, counts.get(token, 0), terms.get(token, 0.0)))
        if any(edit[1:]):
            found.append(edit)
    return found


def phase_after(parameters: Dict[str, Any], tokens: Sequence[int], prompt: int) -> Tuple[int, Optional[int]]:
    """The phase in which the token after `tokens` is drawn, 1 for the first one and 0 outside; and the token that is
    forced there, if there is one."""
    phases, tokens, now, since = parameters.get("phases", []), list(tokens), 0, 0
    begins = [phase.get("begin", []) for phase in phases]
    for n in range(len(tokens) + 1 if phases else 0):
        read = tokens[since:n]
        if now:
            phase = phases[now - 1]
            then = budget_end(phase, since, prompt)
            if then is not None and n > then:
                over = n == then + len(then_of(phase))
            else:
                over = ends_with(read, phase.get("end", []))
            if over:
                now, since = 0, n
        else:
            found = [i + 1 for i, begin in enumerate(begins) if ends_with(read, begin)]
            if found:
                now, since = found[0], n
        if not now and n == prompt and [] in begins:
            now, since = begins.index([]) + 1, n
    then = budget_end(phases[now - 1], since, prompt) if now else None
    if then is None or len(tokens) < then:
        return now, None
    return now, then_of(phases[now - 1])[len(tokens) - then]


def budget_end(phase: Dict[str, Any], begin: int, prompt: int) -> Optional[int]:
    """The position of the first token of `then` in a phase that began at `begin`; None without a budget."""
    if "max_tokens" not in phase:
        return None
    end = begin + phase["max_tokens"]
    return max(end, prompt) if begin <= prompt else end


def then_of(phase: Dict[str, Any]) -> List[int]:
    return phase.get("then") or phase["end"]


def ends_with(tokens: List[int], tag: List[int]) -> bool:
    return bool(tag) and tokens[len(tokens) - len(tag):] == tag and len(tag) <= len(tokens)


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
    first, second = 0, 0
    for token in tokens[max(0, len(tokens) - width):]:
        x, y, _, _ = philox(np.full(1, first, U64), second, token, TAG_WATERMARK, (key & 0xFFFFFFFF, key >> 32))
        first, second = int(x[0]), int(y[0])
    return (first, second), 0, 0


# --- bans


def bans(parameters: Dict[str, Any], tokens: Sequence[int], prompt: int) -> set:
    tokens = list(tokens)
    output, found = tokens[prompt:], set(parameters.get("banned_token_ids", []))
    size = parameters.get("no_repeat_ngram_size", 0)
    if size and len(tokens) >= size - 1:
        end = tokens[len(tokens) - size + 1:]
        found |= {tokens[i + size - 1] for i in range(len(tokens) - size + 1) if tokens[i:i + size - 1] == end}
    text = tokens if preset(parameters) == "hf" else output
    for word in parameters.get("bad_words", []):
        *begin, last = word["tokens"]
        if len(begin) <= len(text) and text[len(text) - len(begin):] == begin:
            found.add(last)
    if len(output) < parameters.get("min_tokens", 0):
        found |= set(parameters.get("stop_token_ids", []))
    return found


# --- penalties


def counted(parameters: Dict[str, Any], tokens: Sequence[int], prompt: int) -> Tuple[set, Dict[int, int]]:
    """The tokens of the repetition penalty, and the others' counts."""
    scope, as_llama_cpp = parameters.get("penalty_scope", {}), preset(parameters) == "llama_cpp"
    window = scope.get("window", 64 if as_llama_cpp else 0)
    first = max(0, len(tokens) - window) if window else 0
    in_prompt = {"repeated": scope.get("repetition_counts_prompt", True),
                 "counts": scope.get("frequency_counts_prompt", as_llama_cpp)}
    repeats = single(parameters.get("repetition_penalty", 1)) != 1
    counts_any = parameters.get("frequency_penalty", 0) or parameters.get("presence_penalty", 0)
    repeated, counts = set(), {}
    for i in range(first, len(tokens)):
        if i < prompt and i < scope.get("ignored_prefix", 0):
            continue
        if repeats and (i >= prompt or in_prompt["repeated"]):
            repeated.add(tokens[i])
        if counts_any and (i >= prompt or in_prompt["counts"]):
            counts[tokens[i]] = counts.get(tokens[i], 0) + 1
    return repeated, counts


def penalty(parameters: Dict[str, Any], count: int, dry: float) -> int:
    """The bits of -(frequency * count + presence + dry)."""
    total = 0.0
    if count:
        total = single(parameters.get("frequency_penalty", 0)) * count + single(parameters.get("presence_penalty", 0))
    return canonical_constant(-(total + dry))


# --- DRY


def dry_terms(dry: Dict[str, Any], tokens: Sequence[int]) -> Dict[int, float]:
    """The term of each token that would continue a repetition."""
    window, least = dry.get("window", 0), dry.get("allowed_length", 2)
    h = list(tokens[len(tokens) - window:] if 0 < window < len(tokens) else tokens)
    breakers = [item["tokens"] for item in dry.get("sequence_breakers", [])]
    limit, longest = after_breaker(breakers, h), {}
    for i in range(1, len(h)):
        length = 0
        while length < min(i, limit) and h[i - 1 - length] == h[len(h) - 1 - length]:
            length += 1
        if length >= least and [h[i]] not in breakers:
            longest[h[i]] = max(longest.get(h[i], 0), length)
    table = term_table(single(dry["multiplier"]), single(dry.get("base", 1.75)))
    return {token: table[min(length - least, len(table) - 1)] for token, length in longest.items()}


def after_breaker(breakers: List[List[int]], h: List[int]) -> int:
    for i in reversed(range(len(h))):
        standing = [len(breaker) for breaker in breakers if h[i:i + len(breaker)] == breaker]
        if standing:
            return len(h) - i - max(standing)
    return len(h)


def term_table(multiplier: float, base: float) -> List[float]:
    table = [multiplier]
    while base != 1 and table[-1] < MASKS_ANY:
        table.append(table[-1] * base)
    return table
