"""Random parameters of sequences, as JSON.

GENERATE has a line for each field that worlds set. Samplers without a line have values of their range. Another field
of the contract without a line is met by no world.
"""

import struct

from sortition_verify.option_table import DEFAULTS, IN_PHASES, NESTED, NOT_GREEDY, ORDERS, RANGES
from sortition_verify.options import is_on
from sortition_verify.parameters import sampler_options, within

SAMPLERS = (*ORDERS["vllm"], "dynamic_temperature")
KINDS = ("raw_logprobs", "processed_logprobs", "tempered_logprobs")


def single(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


class Taste:
    """Draws values: `live` ids, some of them often, and a share of options that are set."""

    def __init__(self, random, live, share):
        self.random, self.live, self.share = random, live, share
        self.common = [random.randrange(live) for _ in range(3)]

    def chance(self, p):
        return self.random.random() < p

    def pick(self, *values):
        return self.random.choice(values)

    def between(self, low, high):
        return single(self.random.uniform(low, high))

    def token(self):
        return self.random.choice(self.common) if self.chance(0.4) else self.random.randrange(self.live)

    def tokens(self, least, most):
        return [self.token() for _ in range(self.random.randint(least, most))]

    def several(self, least, most):
        """Distinct ids."""
        return sorted(set(self.tokens(min(least, most), most)), key=lambda _: self.random.random())

    def sequences(self, least, most, length):
        found = {tuple(self.tokens(1, length)) for _ in range(self.random.randint(least, most))}
        return [{"tokens": list(tokens)} for tokens in sorted(found)]


def number(*values, low=0.0, high=1.0):
    return lambda t: single(t.pick(*values)) if values and t.chance(0.4) else t.between(low, high)


def whole(*values, low=0, high=10):
    return lambda t: t.pick(*values) if values and t.chance(0.4) else t.random.randint(low, high)


def flag(t):
    return t.chance(0.8)


def parts(**fields):
    """A message with random fields; `_name` is always set."""
    def made(t):
        return {name.lstrip("_"): make(t) for name, make in fields.items() if name[0] == "_" or t.chance(0.6)}
    return made


def biases(t):
    return [{"token": token, "bias": t.pick(0.0, single(t.between(-3, 3)), -70.0, 5.0, -65503.0)}
            for token in t.several(1, 4)]


def logprobs(t):
    return {} if t.chance(0.3) else {"top": t.pick(0, 1, 3, 1000, t.live)}


def chain(t):
    if t.chance(0.6):
        return {"preset": t.pick("PRESET_VLLM", "PRESET_LLAMA_CPP", "PRESET_HF")}
    return {"explicit": {"samplers": []}}  # completed where the samplers are known


WITHIN = {
    "temperature": number(0.0, 0.01, 1.0, 100.0, low=0.1, high=2.5),
    "top_k": lambda t: t.pick(0, 1, 2, 3, 5, t.live - 1, t.live, t.live + 7, t.random.randint(1, max(1, t.live))),
    "top_p": number(1.0, 1e-9, 0.5, low=0.05, high=1.0),
    "min_p": number(0.0, 1.0, 1e-20, 0.5, low=0.0, high=0.6),
    "repetition_penalty": number(1.0, 0.01, 100.0, low=0.5, high=2.0),
    "frequency_penalty": number(0.0, -100.0, 100.0, low=-1.0, high=1.0),
    "presence_penalty": number(0.0, -0.0, low=-1.0, high=1.0),
    "logit_bias": biases,
    "allowed_token_ids": lambda t: t.several(max(2, t.live // 2), t.live),
    "banned_token_ids": lambda t: t.several(1, max(1, t.live // 4)),
    "top_n_sigma": number(0.0, 0.01, 100.0, low=0.1, high=3.0),
    "epsilon_cutoff": number(0.0, 1.0, 0.1, low=0.0, high=0.3),
    "eta_cutoff": number(0.0, 1.0, 0.1, low=0.0, high=0.3),
    "xtc": parts(_probability=number(0.0, 1.0, 1.0), threshold=number(0.1, 0.5, 0.6, 0.05, low=0.001, high=0.6)),
    "dynamic_temperature": parts(range=number(0.0, 0.5, 100.0, low=0.0, high=2.0),
                                 exponent=number(1.0, 0.01, 10.0, low=0.1, high=3.0)),
    "quadratic_smoothing": parts(factor=number(0.0, 100.0, 0.3, low=0.0, high=2.0),
                                 curve=number(1.0, 3.0, low=1.0, high=3.0)),
    "min_keep": whole(0, 1, 2, 1000, low=1, high=6),
}


def in_range(option):
    """The ends of its range, what is off, and values between."""
    if isinstance(DEFAULTS[option], bool):
        return flag
    form, low, high = RANGES[option]
    ends = [DEFAULTS[option], high] + [low] * (form != "AboveLow")
    make = number if isinstance(DEFAULTS[option], float) else whole
    return make(*ends, low=low, high=min(high, 5))


for sampler in (name for name in ORDERS["vllm"] if name in IN_PHASES and name not in WITHIN):
    WITHIN[sampler] = (parts(**{part: in_range(option) for part, option in NESTED[sampler].items()})
                       if sampler in NESTED else in_range(sampler))


def phase(t):
    made = {"begin": t.tokens(1, 2)} if t.chance(0.8) else {}
    if t.chance(0.7):
        made["end"] = t.tokens(1, 2)
    if t.chance(0.7) or "end" not in made:
        made["max_tokens"] = t.pick(0, 1, 2, 3, 5, 8)
        if t.chance(0.5) or "end" not in made:
            made["then"] = t.tokens(1, 3)
    if t.chance(0.8):
        made["parameters"] = {name: make(t) for name, make in WITHIN.items() if t.chance(t.share)}
    return made


GENERATE = {
    **WITHIN,
    "penalty_scope": parts(window=whole(0, 1, 3, 64, low=1, high=30), repetition_counts_prompt=lambda t: t.chance(0.5),
                           frequency_counts_prompt=lambda t: t.chance(0.5), ignored_prefix=whole(0, 1, 2, 100)),
    "nan_policy": lambda t: t.pick("NAN_POLICY_FAIL", "NAN_POLICY_MASK"),
    "raw_logprobs": logprobs, "processed_logprobs": logprobs, "tempered_logprobs": logprobs,
    "logprob_token_ids": lambda t: t.several(1, 4),
    "entropy": flag, "kept_log_mass": flag,
    "kept_set": parts(count=flag, tokens=flag),
    "chain": chain,
    "mirostat": parts(_version=whole(1, 2, low=0, high=2), tau=number(5.0, 0.1, 20.0, low=0.1, high=8.0),
                      eta=number(0.1, 1.0, low=0.01, high=1.0), m=whole(2, 100, 1000, low=2, high=30)),
    "adaptive_p": parts(_target=number(0.0, 1.0, low=0.0, high=1.0), decay=number(0.0, 0.9, 0.99, low=0.0, high=0.99)),
    "dry": parts(_multiplier=number(0.0, 100.0, 0.8, low=0.1, high=3.0),
                 base=number(1.0, 1.75, 100.0, low=1.01, high=3.0), allowed_length=whole(1, 2, low=1, high=4),
                 window=whole(0, 5, low=1, high=30), sequence_breakers=lambda t: t.sequences(1, 3, 2)),
    "no_repeat_ngram_size": whole(0, 1, 2, 3, low=2, high=5),
    "min_tokens": whole(0, 1, 5, 1000, low=1, high=20),
    "stop_token_ids": lambda t: t.several(1, 3),
    "bad_words": lambda t: t.sequences(1, 4, 3),
    "phases": lambda t: phases(t),
    "watermark": parts(_key=lambda t: str(t.random.getrandbits(t.pick(3, 64))),
                       context_width=whole(1, 2, 4, 64, low=1, high=5), skip_repeated_contexts=flag),
    "repetition_stop": parts(_repeats=whole(0, 2, 2, 3, low=2, high=5), min_period=whole(1, 2, low=1, high=3),
                             max_period=whole(3, 4, 256, low=3, high=10),
                             min_length=whole(0, 1, 6, 256, low=0, high=12),
                             min_tokens=whole(0, 3, low=0, high=15)),
    "banned_phrases": lambda t: t.sequences(1, 3, 3),
}


def phases(t):
    made, begins = [], []
    for _ in range(t.pick(1, 1, 2, 3)):
        new = phase(t)
        begin = new.get("begin", [])
        if not any(contains(begin, other) or contains(other, begin) for other in begins):
            made.append(new)
            begins.append(begin)
    return made


def contains(outer, inner):
    return any(outer[i:i + len(inner)] == inner for i in range(len(outer) - len(inner) + 1))


def make_parameters(t, wanted=()):
    """Parameters of a sequence. `wanted` are paths that are set: "dry.window"."""
    names = {path.split(".")[0].split("=")[0] for path in wanted}
    p = {name: make(t) for name, make in GENERATE.items() if name in names or t.chance(t.share)}
    for path in wanted:
        insist(t, p, path)
    complete(t, p, names)
    return p


def insist(t, p, path):
    """Tries a few times to make a field come out as the path says."""
    path, _, value = path.partition("=")
    first, *rest = path.split(".")
    if value and first in ("nan_policy",):
        p[first] = value
        return
    for _ in range(30):
        if has(p, [first, *rest], value):
            return
        if rest[:1] == ["parameters"] and p.get(first):
            inner = p[first][0].setdefault("parameters", {})
            if len(rest) > 1 and rest[1] in WITHIN:
                inner[rest[1]] = WITHIN[rest[1]](t)
                continue
        if path == "chain.preset":
            p["chain"] = {"preset": value}
        elif path.startswith("chain.explicit"):
            p["chain"] = {"explicit": {"samplers": []}}
        else:
            p[first] = GENERATE[first](t)


def has(value, path, wanted):
    for part in path:
        if isinstance(value, list):
            return any(has(item, path[path.index(part):], wanted) for item in value)
        if part not in value:
            return False
        value = value[part]
    return not wanted or value == wanted


def on(p, name, live=1 << 20):
    options = {**DEFAULTS, **sampler_options(p)}
    if name == "top_k" and options["top_k"] >= live:
        return False
    if name == "dynamic_temperature":
        return options["dynamic_temperature_range"] != 0
    return is_on({key: single(v) if isinstance(v, float) else v for key, v in options.items()}, name)


def greedy_conflicts(p):
    return [name for name in (*NOT_GREEDY, "dynamic_temperature") if p.get("temperature") == 0 and on(p, name)]


def complete(t, p, names):
    """Makes most contradictions go away, but those between the wanted names."""
    if "mirostat" in p and "adaptive_p" in p and t.chance(0.9) and not {"mirostat", "adaptive_p"} <= names:
        del p[t.pick("mirostat", "adaptive_p")]
    if t.chance(0.97):
        for place in [p, *(inner.get("parameters", {}) for inner in p.get("phases", []))]:
            scopes = [within(p, number) for number in range(len(p.get("phases", [])) + 1)]
            if place.get("temperature") == 0 and any(greedy_conflicts(scope) for scope in scopes):
                place["temperature"] = t.between(0.3, 1.5)
    if p.get("min_tokens") and not p.get("stop_token_ids") and t.chance(0.95):
        p["stop_token_ids"] = t.several(1, 3)
    if p.get("logprob_token_ids") and not any(kind in p for kind in KINDS) and t.chance(0.95):
        p[t.pick(*KINDS)] = logprobs(t)
    stop = p.get("repetition_stop")
    if stop and stop["repeats"] == 1:
        stop["repeats"] = 2
    if "explicit" in p.get("chain", {}):
        p["chain"]["explicit"]["samplers"] = explicit_order(t, p)


def explicit_order(t, p):
    places = [p, *(inner.get("parameters", {}) for inner in p.get("phases", []))]
    names = [name for name in SAMPLERS if any(name in place for place in places) or t.chance(0.2)]
    if "dynamic_temperature" in names and "temperature" in names:
        names.remove(t.pick("dynamic_temperature", "temperature"))
    t.random.shuffle(names)
    last = [name for name in ("mirostat", "adaptive_p") if name in names]
    keep = [name for name in last if name in p][:1] or last[:1]
    return [name for name in names if name not in last] + keep
