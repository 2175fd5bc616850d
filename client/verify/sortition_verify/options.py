"""Options as people write them, compiled to the law's integers (LAW.md sections 2, 4 and 6, CHAIN.md section 5)."""

import math
import struct
from typing import Any, Dict, List, Sequence

from sortition_verify import chain as stages
from sortition_verify.functions import canonical_constant
from sortition_verify.option_table import DEFAULTS, OPERANDS, ORDERS
from sortition_verify.row import Compiled

OFF = 0xFFFFFFFF  # a threshold that drops nothing


def single(value: float) -> float:
    """The double rounded to f32."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def single_bits(value: float) -> int:
    return struct.unpack("<I", struct.pack("<f", value))[0]


def units(value: float, bits: int) -> int:
    """value * 2^bits rounded half to even."""
    return round(math.ldexp(value, bits))


def mass_units(p: float) -> int:
    """P of top-p: at least 1, and 0 where it is off."""
    rounded = units(p, 32)
    return 0 if rounded >= 1 << 32 else max(1, rounded)


def threshold_distance(p: float) -> int:
    """floor(-log2(p) * 2^26), exactly, of an f32; OFF at 2^-63 or less."""
    if p <= 2.0**-63:
        return OFF
    fraction, exponent = math.frexp(p)  # in [1/2, 1)
    mantissa, octaves = round(fraction * 2**24), 1 - exponent
    if mantissa == 1 << 23:
        return octaves << 26
    # 26 bits of log2 of a number in (1, 2), by squaring. 2^-160 is far below what decides a bit of a 24-bit mantissa.
    log, x = 0, mantissa << 137
    for _ in range(26):
        x = x * x >> 160
        log <<= 1
        if x >> 161:
            log, x = log + 1, x >> 1
    return (octaves << 26) - log - 1


def temperature_constants(t: float) -> List[int]:
    """Multiplier, exponent and window of LAW.md section 4."""
    fraction, exponent = math.frexp(float.fromhex("0x1.71547652b82fep+0") / t)
    multiplier = units(fraction, 31)
    if multiplier == 1 << 31:
        multiplier, exponent = 1 << 30, exponent + 1
    return [multiplier, exponent - 1, 126 + math.frexp(float.fromhex("0x1.5d589f2fe5107p+5") * t)[1]]


def is_on(p: Dict[str, Any], name: str) -> bool:
    if name == "temperature":
        return p["temperature"] != 1 or p["dynamic_temperature_range"] != 0
    if name == "quadratic_smoothing":
        return p["smoothing_factor"] != 0
    if OPERANDS.get(name) == "Mass":
        return mass_units(p[name]) != 0
    if OPERANDS.get(name) == "Threshold":
        return threshold_distance(p[name]) != OFF
    if name == "xtc":
        return p["xtc_probability"] != 0 and p["xtc_threshold"] <= 0.5
    return bool(p[name])


def temperature_stage(p: Dict[str, Any]) -> List[int]:
    spread = p["dynamic_temperature_range"]
    if spread == 0:
        multiplier, exponent, window = temperature_constants(p["temperature"])
        return [stages.TEMPERATURE, multiplier, exponent & OFF, window, single_bits(p["temperature"])]
    low, high = units(max(0.0, p["temperature"] - spread), 24), units(p["temperature"] + spread, 24)
    return [stages.DYNAMIC_TEMPERATURE, low, high - low, units(p["dynamic_temperature_exponent"], 28)]


def operands_of(kind: str, value: Any) -> List[int]:
    operands = {"Threshold": threshold_distance, "Mass": mass_units, "Number": int}
    return [operands[kind](value)] if kind != "Flag" else []


def stage_of(p: Dict[str, Any], name: str) -> List[int]:
    factor, curve = p["smoothing_factor"], p["smoothing_curve"]
    made = [getattr(stages, name.upper()), *operands_of(OPERANDS[name], p[name])] if name in OPERANDS else {
        "temperature": lambda: temperature_stage(p),
        "quadratic_smoothing": lambda: [stages.QUADRATIC_SMOOTHING, int(canonical_constant(factor * (3 - curve) / 2)),
                                        int(canonical_constant(factor * (curve - 1) / 2))],
        "top_n_sigma": lambda: [stages.TOP_N_SIGMA, (7 << 26) - threshold_distance(p[name] / 128) & OFF],
        "top_h": lambda: [stages.TOP_H, units(p[name], 31)],
        "xtc": lambda: [stages.XTC, mass_units(p["xtc_probability"]) - 1 & OFF,
                        threshold_distance(p["xtc_threshold"])],
        "mirostat": lambda: [stages.MIROSTAT_1 if p[name] == 1 else stages.MIROSTAT_2, units(p["mirostat_tau"], 26),
                             units(p["mirostat_eta"], 30), p["mirostat_m"] if p[name] == 1 else 0],
        "adaptive_p": lambda: [stages.ADAPTIVE_P, min(OFF, units(p["adaptive_target"], 32)),
                               min(OFF, units(p["adaptive_decay"], 32))],
        "min_k": lambda: [stages.MIN_K, units(p["min_k_tau"], 24)],
    }[name]()
    if name == "top_k":
        made[1] = max(p[name], p["min_keep"])
    made += [0] * (5 - len(made))
    if made[0] in stages.LEAST_KEEPERS and p["min_keep"] > 1:
        made[4] = p["min_keep"]
    return made


def compile_options(options: Dict[str, Any], order: Sequence[str] = ORDERS["vllm"]) -> Compiled:
    """The integers of options by name, in an order of samplers.

    Values are rounded to f32. Ranges are the caller's business. Raises ValueError for a name that is no option, and for
    an order that lacks a sampler which is on.
    """
    for name in options:
        if name not in DEFAULTS:
            raise ValueError(f"{name} is no option of the law")
    p = {name: single(value) if isinstance(DEFAULTS[name], float) else value
         for name, value in {**DEFAULTS, **options}.items()}
    chain = []
    if p["temperature"] != 0:
        missing = [name for name in ORDERS["vllm"] if is_on(p, name) and name not in order]
        if missing:
            raise ValueError(f"the order lacks {', '.join(missing)}")
        chain = [stage_of(p, name) for name in order if is_on(p, name)]
    numbers = [stage[0] for stage in chain]
    compiled = Compiled(greedy=p["temperature"] == 0)
    if numbers == sorted(numbers) and all(
            stage[0] <= stages.TOP_P and (stage[0] == stages.TEMPERATURE or stage[4] == 0) for stage in chain):
        t = 1.0 if compiled.greedy else p["temperature"]
        compiled.multiplier, compiled.exponent, compiled.window = temperature_constants(t)
        compiled.temperature = t
        compiled.min_p_distance = threshold_distance(p["min_p"])
        compiled.top_k = max(p["top_k"], p["min_keep"]) if p["top_k"] else 0
        compiled.top_p = mass_units(p["top_p"])
    else:
        compiled.chain = chain
    repetition = p["repetition_penalty"]
    if repetition != 1:
        compiled.repetition = single_bits(repetition)
        compiled.inverse_repetition = single_bits(1.0 / repetition)
    return compiled


def first_state(chain: List[List[int]]) -> int:
    """The state of a chain before its first step."""
    if not chain or chain[-1][0] not in stages.STATEFUL:
        return 0
    return chain[-1][1] * (1 if chain[-1][0] == stages.ADAPTIVE_P else 2)
