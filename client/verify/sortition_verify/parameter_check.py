"""Parameters that no server of this law takes, with any limits: ranges, counts and contradictions.

Fields, ranges and limits are those of option_table.py. Each list is read once, so a check takes time by its words.
"""

from typing import Any, Dict, List, NoReturn, Sequence

from sortition_verify.option_table import DEFAULTS, ELSEWHERE, LIMITS, NESTED, NOT_GREEDY, OF_PARTS, ORDERS, RANGES
from sortition_verify.options import is_on, single
from sortition_verify.parameters import listed_samplers, sampler_options, within

MOST_BIAS = 65504
LAST = ("mirostat", "adaptive_p")  # samplers that have to be the last of their order
Parameters = Dict[str, Any]


def refuse(name: str, why: str) -> NoReturn:
    raise ValueError(f"{name}: {why}")


def check_parameters(parameters: Parameters, live: int) -> None:
    """Raises ValueError for parameters that no server takes for a live vocabulary of `live` tokens."""
    check_numbers(parameters, live)
    check_lists(parameters, live)
    for name, strings in (("dry.sequence_breakers", parameters.get("dry", {}).get("sequence_breakers", [])),
                          ("bad_words", parameters.get("bad_words", [])),
                          ("banned_phrases", parameters.get("banned_phrases", []))):
        check_strings(name, strings, live)
    if parameters.get("min_tokens", 0) and not parameters.get("stop_token_ids"):
        refuse("min_tokens", "there are no stop_token_ids to hold back")
    check_repetition(parameters.get("repetition_stop", {}))
    phases = parameters.get("phases", [])
    check_tags(phases, live)
    for number, phase in enumerate(phases):
        own, inside = phase.get("parameters", {}), within(parameters, number + 1)
        check_numbers(inside, live)
        check_lists(own, live)
        if ("allowed_token_ids" in own or "banned_token_ids" in own) and not count_allowed(inside, live):
            refuse(f"phases[{number}]", "it masks every token")
    if not phases and not count_allowed(parameters, live):
        refuse("allowed_token_ids, banned_token_ids, bad_words", "they mask every token")


# --- numbers


def check_numbers(parameters: Parameters, live: int) -> None:
    """Checks all numbers, and what they allow of each other."""
    given = sampler_options(parameters, live)
    named = [*given.items(), *parameters.items()]
    named += [(f"{message}.{name}", value) for message in ELSEWHERE if isinstance(parameters.get(message), dict)
              for name, value in parameters[message].items()]
    for name, value in named:
        if name in RANGES and not isinstance(value, dict) and not is_in_range(value, *RANGES[name]):
            refuse(name, f"{value} is out of range")
    for message, parts in NESTED.items():
        for part, option in parts.items():
            if RANGES[option][0] == "Required" and message in parameters and part not in parameters[message]:
                refuse(f"{message}.{part}", "it must be set")
    options = {**DEFAULTS, **given}
    if all(is_on(options, name) for name in LAST):
        refuse(" and ".join(LAST), "both are on")
    if options["temperature"] == 0 and (
            any(is_on(options, name) for name in NOT_GREEDY) or options["dynamic_temperature_range"] != 0):
        refuse("temperature", "0 with a sampler that needs another one")
    check_order(parameters, [name for name in ORDERS["vllm"] if is_on(options, name)])


def is_in_range(value: float, form: str, low: float, high: float) -> bool:
    is_in = single(low) <= value <= single(high) and not (form == "AboveLow" and value == low)
    return is_in or form == "ZeroOr" and value == 0 or form == "OneOr" and value == 1


def check_order(parameters: Parameters, samplers_on: List[str]) -> None:
    chain = parameters.get("chain", {})
    if "explicit" not in chain:
        return
    listed = listed_samplers(parameters)
    lacking = [name for name in samplers_on if name not in listed]
    if "preset" in chain:
        refuse("chain", "a preset and an explicit order")
    if len(set(listed)) < len(listed) or not set(listed) <= set(ORDERS["vllm"]):
        refuse("chain.explicit", "a sampler twice, or a name of none")
    if lacking:
        refuse("chain.explicit", f"it lacks {', '.join(lacking)}")
    after = [name for at, name in enumerate(listed) if set(listed[:at]) & set(LAST)]
    if not set(after) <= set(LAST):
        refuse("chain.explicit", f"a sampler after one of {', '.join(LAST)}")


# --- lists


def check_count(name: str, count: int, limit: str) -> None:
    if count > LIMITS[limit]:
        refuse(name, f"{count}, {limit} is at most {LIMITS[limit]}")


def check_tokens(name: str, tokens: Sequence[int], live: int, limit: str = "max_listed_tokens") -> None:
    check_count(name, len(tokens), limit)
    if tokens and max(tokens) >= live:
        refuse(name, f"token {max(tokens)} is not in the live vocabulary of {live}")


def check_lists(parameters: Parameters, live: int) -> None:
    """Checks lists that are sets of tokens."""
    biases = parameters.get("logit_bias", [])
    if any(not abs(item.get("bias", 0)) < MOST_BIAS for item in biases):
        refuse("logit_bias", f"a bias of {MOST_BIAS} or more")
    sets = {"logit_bias": [item.get("token", 0) for item in biases]}
    for name in ("allowed_token_ids", "banned_token_ids", "stop_token_ids"):
        sets[name] = parameters.get(name, [])
    for name, tokens in sets.items():
        check_tokens(name, tokens, live)
        if len(set(tokens)) < len(tokens):
            refuse(name, "a token twice")


def check_strings(name: str, strings: List[Parameters], live: int) -> None:
    """Checks sequences of tokens that form a set."""
    found = [tuple(item.get("tokens", ())) for item in strings]
    for string in found:
        if not string:
            refuse(name, "one without tokens")
        check_tokens(name, string, live, "max_string_tokens")
    if len(set(found)) < len(found):
        refuse(name, "one of them twice")
    check_count(name, sum(map(len, found)), "max_listed_tokens")


def count_allowed(parameters: Parameters, live: int) -> int:
    """The number of tokens that the lists leave."""
    banned = set(parameters.get("banned_token_ids", []))
    banned.update(item["tokens"][0] for item in parameters.get("bad_words", []) if len(item["tokens"]) == 1)
    allowed = parameters.get("allowed_token_ids", [])
    return sum(token not in banned for token in allowed) if allowed else live - len(banned)


# --- parts of the text


def check_repetition(stop: Parameters) -> None:
    repeats, least, most = (stop.get(part, OF_PARTS[f"repetition_stop.{part}"])
                            for part in ("repeats", "min_period", "max_period"))
    if repeats and least > most:
        refuse("repetition_stop.min_period", f"{least} is above max_period")
    if repeats * most > RANGES["repetition_stop.min_length"][2]:
        refuse("repetition_stop.repeats", f"{repeats} periods of up to {most} tokens are too long")


def check_tags(phases: List[Parameters], live: int) -> None:
    """Checks how phases begin and end."""
    check_count("phases", len(phases), "max_phases")
    begins: List[List[int]] = []
    tokens = 0
    for number, phase in enumerate(phases):
        name = f"phases[{number}]"
        begin, end, then = (phase.get(part, []) for part in ("begin", "end", "then"))
        check_tokens(f"{name}.begin", begin, live, "max_tag_tokens")
        check_tokens(f"{name}.end", end, live, "max_tag_tokens")
        check_tokens(f"{name}.then", then, live)
        if "max_tokens" not in phase and (then or not end):
            refuse(name, "without a budget it has an end, and nothing to emit")
        if "max_tokens" in phase and not then and not end:
            refuse(name, "a budget, and nothing to emit after it")
        check_count(f"{name}.max_tokens", phase.get("max_tokens", 0) + len(then or end), "max_history")
        if any(contains(begin, other) or contains(other, begin) for other in begins):
            refuse(f"{name}.begin", "it contains that of another phase, or is contained in it")
        begins.append(begin)
        tokens += len(begin) + len(end) + len(then)
    check_count("phases", tokens, "max_listed_tokens")


def contains(tokens: List[int], part: List[int]) -> bool:
    """True if `part` stands in `tokens`. No tokens are in no tokens alone."""
    if not part:
        return not tokens
    return any(tokens[at:at + len(part)] == part for at in range(len(tokens) - len(part) + 1))
