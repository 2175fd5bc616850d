"""Samplers that look at the history against their formulas in float64, written from the peers' definitions.

    history_test.py HISTORY_PATCHES

Each case is an OpenSequence with a history; HISTORY_PATCHES prints the service's edits for it. Bans and repetitions
must be equal, penalties and DRY within 1e-5 of logits.
"""

import json
import random
import subprocess
import sys
from typing import Dict, List, NamedTuple, Optional, Set

SEED = 20240501
CASES = 1500
VOCABULARY = 40
TOLERANCE = 1e-5

# A penalty of this size masks every live logit, so larger ones have the same effect.
MASKS_ANY = 131008.0


class Expected(NamedTuple):
    banned: Set[int]
    repeated: Set[int]
    penalty: Dict[int, float]
    forced: Optional[int]


def counted(scope: dict, tokens: List[int], prompt: int, prompt_counts: bool) -> List[int]:
    """The tokens that a penalty of this scope counts, each as often as it occurs."""
    first = max(0, len(tokens) - scope.get("window", 0)) if scope.get("window", 0) else 0
    found = []
    for i in range(first, len(tokens)):
        if i >= prompt or (prompt_counts and i >= scope.get("ignored_prefix", 0)):
            found.append(tokens[i])
    return found


def breaker_limit(breakers: List[List[int]], window: List[int]) -> int:
    """llama.cpp: tokens after the restart sequence whose head is nearest to the end; the longest of those there."""
    for back in range(len(window)):
        at = len(window) - 1 - back
        lengths = [len(b) for b in breakers if window[at : at + len(b)] == b]
        if lengths:
            return back + 1 - max(lengths)
    return len(window)


def dry(options: dict, tokens: List[int]) -> Dict[int, float]:
    """llama.cpp's DRY: for each earlier end of a repeat the token after it, with the longest repeat there."""
    size = options.get("window", 0)
    window = tokens[-size:] if size else tokens
    breakers = [b["tokens"] for b in options.get("sequence_breakers", [])]
    allowed = options.get("allowed_length", 2)
    limit = breaker_limit(breakers, window)
    longest: Dict[int, int] = {}
    for at in range(1, len(window)):
        length = 0
        while length < at and window[at - 1 - length] == window[len(window) - 1 - length]:
            length += 1
        length = min(length, limit)
        if length >= allowed:
            longest[window[at]] = max(length, longest.get(window[at], 0))
    single = {b[0] for b in breakers if len(b) == 1}
    base = options.get("base", 1.75)
    return {
        token: options["multiplier"] * base ** (length - allowed)
        for token, length in longest.items()
        if token not in single
    }


def repeated_ngrams(n: int, tokens: List[int]) -> Set[int]:
    """Transformers' NoRepeatNGramLogitsProcessor."""
    followers: Dict[tuple, Set[int]] = {}
    for at in range(len(tokens) - n + 1):
        followers.setdefault(tuple(tokens[at : at + n - 1]), set()).add(tokens[at + n - 1])
    start = len(tokens) + 1 - n
    return followers.get(tuple(tokens[start:]), set()) if start >= 0 else set()


def bad_words(words: List[List[int]], output: List[int]) -> Set[int]:
    """vLLM's bad words: the prefix must be the end of the output."""
    return {w[-1] for w in words if len(w) - 1 <= len(output) and (len(w) == 1 or output[-(len(w) - 1) :] == w[:-1])}


def expected(p: dict, tokens: List[int], prompt: int) -> Expected:
    output = tokens[prompt:]
    banned = bad_words([w["tokens"] for w in p.get("bad_words", [])], output)
    if p.get("no_repeat_ngram_size", 0):
        banned |= repeated_ngrams(p["no_repeat_ngram_size"], tokens)
    if len(output) < p.get("min_tokens", 0):
        banned |= set(p["stop_token_ids"])
    scope = p.get("penalty_scope", {})
    repeated = set()
    if p.get("repetition_penalty", 1) != 1:
        repeated = set(counted(scope, tokens, prompt, scope.get("repetition_counts_prompt", True)))
    penalty: Dict[int, float] = {}
    frequency, presence = p.get("frequency_penalty", 0), p.get("presence_penalty", 0)
    if frequency or presence:
        frequent = counted(scope, tokens, prompt, scope.get("frequency_counts_prompt", False))
        for token in set(frequent):
            penalty[token] = frequency * frequent.count(token) + presence
    if "dry" in p:
        for token, term in dry(p["dry"], tokens).items():
            penalty[token] = penalty.get(token, 0) + term
    budget = p.get("phases", [{}])[0]  # begins with the output
    at = len(output) - budget.get("max_tokens", 0)
    hit = budget["then"][at] if budget and 0 <= at < len(budget["then"]) else None
    return Expected(banned, repeated, penalty, hit)


def f32(value: float) -> float:
    """A number that float32 holds, so that both sides start from the same one."""
    return round(value * 64) / 64


def string(rng: random.Random, least: int, most: int) -> dict:
    return {"tokens": [rng.randrange(VOCABULARY // 4) for _ in range(rng.randint(least, most))]}


def strings(rng: random.Random, least: int, most: int) -> List[dict]:
    chosen = {tuple(string(rng, least, most)["tokens"]) for _ in range(rng.randint(1, 4))}
    return [{"tokens": list(tokens)} for tokens in sorted(chosen)]


def parameters(rng: random.Random) -> dict:
    p: dict = {}
    if rng.random() < 0.5:
        p["repetition_penalty"] = f32(rng.uniform(1.1, 2))
    if rng.random() < 0.5:
        p["frequency_penalty"] = f32(rng.uniform(-2, 2))
        p["presence_penalty"] = f32(rng.uniform(-2, 2))
    if rng.random() < 0.5:
        p["penalty_scope"] = {
            "window": rng.choice([0, 5, 64]),
            "ignored_prefix": rng.choice([0, 3, 50]),
            "repetition_counts_prompt": rng.random() < 0.5,
            "frequency_counts_prompt": rng.random() < 0.5,
        }
    if rng.random() < 0.6:
        p["dry"] = {"multiplier": f32(rng.uniform(0.1, 3))}
        if rng.random() < 0.5:
            p["dry"].update(base=f32(rng.uniform(1.1, 3)), allowed_length=rng.randint(1, 4))
        if rng.random() < 0.5:
            p["dry"]["window"] = rng.choice([0, 10, 100])
        if rng.random() < 0.5:
            p["dry"]["sequence_breakers"] = strings(rng, 1, 3)
    if rng.random() < 0.3:
        p["no_repeat_ngram_size"] = rng.randint(1, 4)
    if rng.random() < 0.3:
        p["bad_words"] = strings(rng, 1, 3)
    if rng.random() < 0.3:
        p["stop_token_ids"] = rng.sample(range(VOCABULARY), 3)
        p["min_tokens"] = rng.randint(1, 200)
    if rng.random() < 0.2:
        p["phases"] = [{"max_tokens": rng.randint(0, 100), "then": string(rng, 1, 60)["tokens"]}]
    # Something that keeps a state, or there is nothing to look at.
    if not p.keys() & {"repetition_penalty", "frequency_penalty", "dry", "no_repeat_ngram_size", "phases"}:
        p["presence_penalty"] = 1.0
    return p


def history(rng: random.Random) -> List[int]:
    """Text that repeats itself."""
    tokens: List[int] = []
    length = rng.randint(0, 150)
    while len(tokens) < length:
        if len(tokens) > 10 and rng.random() < 0.2:
            start = rng.randrange(len(tokens) - 5)
            tokens += tokens[start : start + rng.randint(1, 40)]
        else:
            tokens.append(rng.randrange(rng.choice([3, VOCABULARY])))
    return tokens


def main() -> int:
    rng = random.Random(SEED)
    cases = []
    for _ in range(CASES):
        tokens = history(rng)
        cases.append((parameters(rng), tokens, rng.randint(0, len(tokens))))
    lines = [
        json.dumps(
            {
                "request_id": "case",
                "law_version": 1,
                "seed": 1,
                "vocabulary_size": VOCABULARY,
                "parameters": p,
                "history": {"tokens": tokens, "prompt_length": prompt},
            }
        )
        for p, tokens, prompt in cases
    ]
    run = subprocess.run([sys.argv[1]], input="\n".join(lines) + "\n", capture_output=True, text=True, check=False)
    if run.returncode != 0:
        print(run.stderr)
        return 1
    answers = run.stdout.splitlines()
    assert len(answers) == CASES, f"{len(answers)} answers to {CASES} cases"
    worst, bans, terms = 0.0, 0, 0
    for number, ((p, tokens, prompt), answer) in enumerate(zip(cases, answers)):
        edits, forced = json.loads(answer)
        want = expected(p, tokens, prompt)
        where = f"case {number}: {p} after {tokens} of which {prompt} are prompt"
        assert {t for t, banned, _, _ in edits if banned} == want.banned, f"bans of {where}"
        assert {t for t, _, repeated, _ in edits if repeated} == want.repeated, f"repetitions of {where}"
        assert forced == want.forced, f"forced token of {where}"
        got = {t: -penalty for t, _, _, penalty in edits}
        for token in range(VOCABULARY):
            a, b = got.get(token, 0.0), want.penalty.get(token, 0.0)
            if a >= MASKS_ANY and b >= MASKS_ANY:
                continue
            # A penalty is an f32: half a unit in its last place is 2^-24 of it.
            assert abs(a - b) <= TOLERANCE + abs(b) * 2.0**-24, f"penalty of token {token}, {a} for {b}, in {where}"
            if abs(b) < 100:
                worst = max(worst, abs(a - b))
        bans += len(want.banned)
        terms += len(want.penalty)
    assert bans > CASES and terms > CASES, "too little was compared"
    print(f"{CASES} cases, {bans} bans and {terms} penalties; largest difference below 100: {worst:.2g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
