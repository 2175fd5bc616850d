"""The contract's SamplingParameters, as JSON with the contract's names, as options of the law."""

from typing import Any, Dict, List, Sequence, Tuple

from sortition_verify.option_table import BY_PRESENCE, DEFAULTS, ELSEWHERE, NESTED, NOT_GREEDY, ORDERS, RANGES
from sortition_verify.options import compile_options, is_on, single
from sortition_verify.row import Compiled

PRESETS = {"PRESET_UNSPECIFIED": "vllm", "PRESET_VLLM": "vllm", "PRESET_LLAMA_CPP": "llama_cpp", "PRESET_HF": "hf"}


def preset(parameters: Dict[str, Any]) -> str:
    return PRESETS[parameters.get("chain", {}).get("preset", "PRESET_UNSPECIFIED")]


def within(parameters: Dict[str, Any], phase: int) -> Dict[str, Any]:
    """The parameters that hold in a phase: 1 for the first one, 0 outside of all."""
    inner = parameters["phases"][phase - 1].get("parameters", {}) if phase else {}
    outer = {name: value for name, value in parameters.items() if name != "phases"}
    return {**outer, **{name: value for name, value in inner.items() if value != []}}


def order(parameters: Dict[str, Any]) -> Sequence[str]:
    """The samplers' order that `chain` names."""
    listed: List[str] = parameters.get("chain", {}).get("explicit", {}).get("samplers", [])
    return ["temperature" if name == "dynamic_temperature" else name for name in listed] or ORDERS[preset(parameters)]


def sampler_options(parameters: Dict[str, Any]) -> Dict[str, Any]:
    """The options of compile_options. Raises ValueError for a field that this program does not know."""
    options: Dict[str, Any] = {}
    for name, value in parameters.items():
        if name in NESTED:
            options.update({NESTED[name][part]: given for part, given in value.items()})
        elif name in DEFAULTS:
            options[name] = value
        elif name not in ELSEWHERE:
            raise ValueError(f"parameters.{name}: this program does not know the field")
    for name in BY_PRESENCE:
        if name in parameters:
            options[name] = True
    return options


def compile_parameters(parameters: Dict[str, Any]) -> Tuple[Compiled, bool]:
    """The law's integers, and whether NaN is masked."""
    compiled = compile_options(sampler_options(parameters), order(parameters))
    return compiled, parameters.get("nan_policy") == "NAN_POLICY_MASK"


def check_ranges(parameters: Dict[str, Any], vocabulary: int) -> None:
    """Raises ValueError for a value that no server of this law takes."""
    named = [*sampler_options(parameters).items(), *parameters.items()]
    named += [(f"{message}.{name}", value) for message in ELSEWHERE if isinstance(parameters.get(message), dict)
              for name, value in parameters[message].items()]
    for name, value in named:
        if name not in RANGES or isinstance(value, dict):
            continue
        form, low, high = RANGES[name]
        least, most = single(low), single(high)
        is_in = least <= value <= most and not (form == "AboveLow" and value == least)
        if not is_in and not (form == "ZeroOr" and value == 0) and not (form == "OneOr" and value == 1):
            raise ValueError(f"{name}: {value}")
    if any(not abs(item.get("bias", 0)) < 65504 for item in parameters.get("logit_bias", [])):
        raise ValueError("logit_bias: a bias of 65504 or more")
    options = {**DEFAULTS, **sampler_options(parameters)}
    chosen = any(is_on(options, name) for name in NOT_GREEDY) or options["dynamic_temperature_range"] != 0
    if options["temperature"] == 0 and chosen:
        raise ValueError("temperature: 0 with a sampler that needs another one")
    tokens = [item.get("token", 0) for item in parameters.get("logit_bias", [])]
    for name in ("allowed_token_ids", "banned_token_ids", "stop_token_ids"):
        tokens += parameters.get(name, [])
    tokens += [item["tokens"][-1] for item in parameters.get("bad_words", [])]
    for phase in parameters.get("phases", []):
        tokens += [token for name in ("begin", "end", "then") for token in phase.get(name, [])]
        if "max_tokens" in phase and not (phase.get("then") or phase.get("end")):
            raise ValueError("a phase with a budget and nothing to emit after it")
    for phase in range(1, len(parameters.get("phases", [])) + 1):
        check_ranges(within(parameters, phase), vocabulary)
    if not 0 < vocabulary < 1 << 20 or max(tokens, default=0) >= vocabulary:
        raise ValueError(f"a token that is not in the vocabulary of {vocabulary}")
