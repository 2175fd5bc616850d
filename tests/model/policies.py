"""The operator's policies: random ones, and a policy's effect on an open (docs/operations.md, "Policies")."""

import copy
import json
import random

import numpy as np

from parameters import KINDS, WITHIN, Taste, single
from refusals import named, unmarked
from sequence import Refused
from sortition_verify.option_table import DEFAULTS, EFFECTS

KEYS = (("first", 11, 4), ("second", 2**64 - 1, 2), ("third", 5, 1))
# Fields that worlds bound: bounds to choose from, the law's value of an absent field, and whether larger is looser.
LIMITS = {
    "temperature": ((0.3, 0.9, 1.2), 1.0), "top_k": ((1, 3, 5), 0), "top_p": ((0.5, 0.9), 1.0),
    "min_p": ((0.1, 0.3), 0.0), "repetition_penalty": ((0.8, 1.0, 1.3), 1.0),
    "frequency_penalty": ((-0.5, 0.0, 0.5), 0.0), "presence_penalty": ((-0.5, 0.5), 0.0),
    "typical_p": ((0.5, 0.9), 1.0), "top_n_sigma": ((0.5, 2.0), 0.0),
    "epsilon_cutoff": ((0.05, 0.3), 0.0), "top_h": ((0.4, 0.8), 0.0), "min_keep": ((1, 3), 0),
    "raw_logprobs.top": ((0, 2), 0), "dry.multiplier": ((0.5, 1.0), 0.0), "xtc.probability": ((0.5,), 0.0),
    "mirostat.tau": ((2.0, 6.0), 5.0), "min_k.tau": ((1.0, 4.0), 3.0),
}
LARGEST = (1 << 20) - 1  # vocabulary, in which a policy is read
ZERO_IS_ALL = [name for name, effect in EFFECTS.items() if effect != "FewerAbove" and not DEFAULTS.get(name)]
BANNED = ("logit_bias", "dry", "phases", "xtc", "stop_token_ids", "banned_phrases", "raw_logprobs", "chain", "top_k",
          "temperature", "mirostat", "logprob_token_ids")
STRICT = {name: {"FewerBelow": "max", "FewerAbove": "min"}.get(effect) for name, effect in EFFECTS.items()}


def make_policies(seed, folder, count):
    """Policies of tenants by name: JSON of the contract. Keys are written to the folder."""
    r = random.Random(seed)
    keys = folder / "keys"
    keys.write_text("".join(f"{name} {key} {width}\n" for name, key, width in KEYS), encoding="ascii")
    return {f"tenant-{number}": make_policy(r, f"tenant-{number}", str(keys)) for number in range(count)}


def make_policy(r, tenant, keys):
    made = {"tenant": tenant}
    limits = []
    for field in r.sample(sorted(LIMITS), r.randint(0, 3)):
        bounds = sorted(LIMITS[field][0])
        limit = {"field": field, "violation": r.choice(["VIOLATION_APPLY", "VIOLATION_REFUSE"])}
        if r.random() < 0.6:
            limit["max"] = bounds[-1]
        if "max" not in limit or r.random() < 0.3:
            limit["min"] = bounds[0]
        limits.append(limit)
    for field in r.sample(BANNED, r.randint(0, 2)):
        if not any(limit["field"].split(".")[0] == field for limit in limits):
            limits.append({"field": field, "banned": True,
                           "violation": r.choice(["VIOLATION_APPLY", "VIOLATION_REFUSE"])})
    if limits:
        made["limits"] = limits
    taste = Taste(r, 2, 0.1)
    bounded = {limit["field"].split(".")[0] for limit in limits}
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "top_h", "p_less", "min_keep", "xtc")
    defaults = {name: WITHIN[name](taste) for name in names if r.random() < 0.25 and name not in bounded}
    if defaults.get("temperature") == 0 or "xtc" in defaults:
        defaults.pop("temperature", None)
    if any(STRICT.get(limit["field"]) in limit or limit["field"] == "top_k" for limit in limits):
        defaults.pop("min_keep", None)
    if r.random() < 0.3:
        defaults["entropy"] = True
    if defaults and r.random() < 0.6:
        made["defaults"] = defaults
    if r.random() < 0.3:
        made["watermark"] = {"keys": keys, **({"skip_repeated_contexts": True} if r.random() < 0.5 else {})}
        for refused in unmarked(defaults, LARGEST):
            for field in refused.fields:
                defaults.pop(field.removeprefix("open.parameters."), None)
    return made


def file_of(policies):
    return json.dumps({"policies": [policy for policy in policies.values() if policy is not None]})


class Effect:
    """Changes and refusals of an open by a policy."""

    def __init__(self, p):
        self.p, self.applied, self.removed = p, {}, []
        self.mark_id, self.refusals = None, []

    def refuse(self, reason, *fields):
        self.refusals.append(Refused(reason, *fields))

    def put(self, path, value):
        first, *rest = path.split(".")
        for place in (self.p, self.applied):
            place[first] = {**place.get(first, {}), rest[0]: value} if rest else value


def apply(policy, given, key_id, live):
    """The effect of a policy on parameters, with its refusals."""
    effect = Effect(copy.deepcopy(given))
    mark = policy.get("watermark")
    if mark is not None and "watermark" in given:
        effect.refuse("CONTRADICTION", "open.parameters.watermark")
    if mark is None and key_id:
        effect.refuse("CONTRADICTION", "open.watermark_key_id")
    for name, value in policy.get("defaults", {}).items():
        if name not in given:
            effect.put(name, value)
    for limit in policy.get("limits", []):
        hold(policy, limit, effect, given)
    for limit in policy.get("limits", []):
        hold_beside(policy, limit, effect)
    if mark is not None:
        chosen = [key for key in KEYS if key[0] == (key_id or KEYS[0][0])]
        if not chosen:
            effect.refuse("CONTRADICTION", "open.watermark_key_id")
            return effect
        effect.mark_id, key, width = chosen[0]
        effect.p["watermark"] = {"key": str(key), "context_width": width,
                                 "skip_repeated_contexts": bool(mark.get("skip_repeated_contexts"))}
        effect.refusals += unmarked(effect.p, live)
    return effect


def hold(policy, limit, effect, given):
    """Applies a limit to its own field, and to the phases' fields."""
    field, refuses = limit["field"], limit["violation"] == "VIOLATION_REFUSE"
    first, *rest = field.split(".")
    for number, phase in enumerate(effect.p.get("phases", []), 1):
        inner = phase.get("parameters", {})
        if first in inner:
            value = inner[first] if not rest else inner[first].get(rest[0], LIMITS[field][1])
            if limit.get("banned") or moved(limit, value) is not None:
                effect.refuse("OUT_OF_RANGE", *named(number, [field]))
    if limit.get("banned"):
        if first in effect.p:
            if refuses:
                effect.refuse("OUT_OF_RANGE", *named(0, [field]))
                return
            del effect.p[first]
            effect.applied.pop(first, None)
            effect.removed.append(first)
        return
    if rest and first not in effect.p:
        return
    value = effect.p[first].get(rest[0], LIMITS[field][1]) if rest else effect.p.get(first, LIMITS[field][1])
    bound = moved(limit, value)
    if bound is not None:
        if refuses:
            effect.refuse("OUT_OF_RANGE", *named(0, [field]))
            return
        effect.put(field, bound)


def moved(limit, value):
    """The bound that a value is beyond; None if it is within."""
    order = float("inf") if limit["field"] in ZERO_IS_ALL and not value else value
    if "max" in limit and order > single(limit["max"]):
        return single(limit["max"]) if isinstance(limit["max"], float) else limit["max"]
    if "min" in limit and order < single(limit["min"]):
        return single(limit["min"]) if isinstance(limit["min"], float) else limit["min"]
    return None


def hold_beside(policy, limit, effect):
    """A limit against other fields that would pass it."""
    field = limit["field"]
    own = any(other["field"] == "min_keep" for other in policy["limits"])
    if field == "temperature" and not limit.get("banned"):
        raise_range(limit, effect)
    most = None
    if field == "top_k" and "max" in limit:
        most = limit["max"]
    if STRICT.get(field) in limit and not own:
        most = 1
    if most is None:
        return
    for number, phase in enumerate(effect.p.get("phases", []), 1):
        if phase.get("parameters", {}).get("min_keep", 0) > most:
            effect.refuse("OUT_OF_RANGE", *named(number, ["min_keep", field]))
    if effect.p.get("min_keep", 0) > most:
        if limit["violation"] == "VIOLATION_REFUSE":
            effect.refuse("OUT_OF_RANGE", *named(0, ["min_keep", field]))
            return
        effect.put("min_keep", most)


def raise_range(limit, effect):
    """The range of dynamic temperature within a limit of the temperature."""
    temperature = effect.p.get("temperature", 1.0)
    spread, room = effect.p.get("dynamic_temperature", {}).get("range", 0.0), widest(limit, temperature)
    if spread > room:
        if limit["violation"] == "VIOLATION_REFUSE":
            effect.refuse("OUT_OF_RANGE", *named(0, ["dynamic_temperature.range", "temperature"]))
        else:
            effect.put("dynamic_temperature.range", room)
            spread = room
    for number, phase in enumerate(effect.p.get("phases", []), 1):
        inner = phase.get("parameters", {})
        if {"temperature", "dynamic_temperature"} & set(inner):
            own = inner["dynamic_temperature"].get("range", 0.0) if "dynamic_temperature" in inner else spread
            if own > widest(limit, inner.get("temperature", temperature)):
                effect.refuse("OUT_OF_RANGE", *named(number, ["dynamic_temperature.range", "temperature"]))


def widest(limit, temperature):
    """The widest range, an f32, about a temperature that keeps within a limit; at least 0."""
    t, most, least = np.float32(temperature), np.float32(limit.get("max", 3e38)), np.float32(limit.get("min", 0))
    room = max(most - t, np.float32(0))
    if least > 0:
        room = min(room, max(t - least, np.float32(0)))
    while room > 0 and (t + room > most or least > 0 and t - room < least):
        room = np.nextafter(room, np.float32(0))
    return float(room)


__all__ = ["KINDS", "apply", "file_of", "make_policies"]
