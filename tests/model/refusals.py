"""Refusals of an open's parameters that the pages demand."""

from parameters import KINDS, SAMPLERS, greedy_conflicts, on, single
from sequence import Refused
from sortition_verify.parameters import within

LISTS = ("allowed_token_ids", "banned_token_ids", "bad_words")


def refusals(p, live):
    """The refusals of these parameters; a server names one of them."""
    found = []
    for number in range(len(p.get("phases", [])) + 1):
        inner = within(p, number)
        for name in greedy_conflicts(inner):
            found.append(Refused("CONTRADICTION", *named(number, ["temperature", name])))
        if p.get("mirostat", {}).get("version") and "adaptive_p" in p:
            found.append(Refused("CONTRADICTION", "open.parameters.mirostat", "open.parameters.adaptive_p"))
        if "explicit" in p.get("chain", {}):
            listed = p["chain"]["explicit"].get("samplers", [])
            for name in SAMPLERS:
                if on(inner, name, live) and name not in listed and not (
                        name in ("temperature", "dynamic_temperature")
                        and {"temperature", "dynamic_temperature"} & set(listed)):
                    found.append(Refused("CONTRADICTION", "open.parameters.chain.explicit.samplers",
                                         *named(number, [name])))
        within_lists = p["phases"][number - 1].get("parameters", {}) if number else inner
        looked_at = bool(set(LISTS) & set(within_lists)) if number else not p.get("phases")
        if looked_at and not set(inner.get("allowed_token_ids") or range(live)) - always_banned(inner):
            found.append(Refused("CONTRADICTION", *named(number, LISTS)))
    if "adaptive_p" in p and "target" not in p["adaptive_p"]:
        found.append(Refused("MISSING_FIELD", "open.parameters.adaptive_p.target"))
    if "watermark" in p and "key" not in p["watermark"]:
        found.append(Refused("MISSING_FIELD", "open.parameters.watermark.key"))
    if p.get("min_tokens") and not p.get("stop_token_ids"):
        found.append(Refused("CONTRADICTION", "open.parameters.min_tokens"))
    if p.get("logprob_token_ids") and not any(kind in p for kind in KINDS):
        found.append(Refused("CONTRADICTION", "open.parameters.logprob_token_ids"))
    return found


def unmarked(p, live):
    """The refusals of parameters that leave one token, where a policy marks the text."""
    for number in range(len(p.get("phases", [])) + 1 if live > 1 else 0):
        inner = within(p, number)
        names = ["temperature"] if inner.get("temperature") == 0 else []
        if len(set(inner.get("allowed_token_ids") or range(live)) - always_banned(inner)) == 1:
            names += LISTS
        if inner.get("min_keep", 0) < 2:
            alone = {"top_k": inner.get("top_k") == 1, "min_p": inner.get("min_p") == 1,
                     "epsilon_cutoff": inner.get("epsilon_cutoff", 0) > 0.5,
                     "top_h": 0 < inner.get("top_h", 0) <= single(0.01), "top_p": inner.get("top_p", 1) * live <= 1}
            names += [name for name, is_alone in alone.items() if is_alone]
        if names:
            yield Refused("CONTRADICTION", *named(number, names))


def always_banned(p):
    return set(p.get("banned_token_ids", [])) | {word["tokens"][0] for word in p.get("bad_words", [])
                                                 if len(word["tokens"]) == 1}


def named(number, names):
    """Paths of fields: the sequence's, and within the phase."""
    for name in names:
        yield f"open.parameters.{name}"
        if number:
            yield f"open.parameters.phases[{number - 1}].parameters.{name}"
