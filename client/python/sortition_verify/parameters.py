"""The contract's SamplingParameters, as JSON with the contract's names, as options of the law."""

from typing import Any, Dict, List, Sequence, Tuple

from sortition_verify.options import DEFAULTS, ORDERS, compile_options, is_on, single
from sortition_verify.row import Compiled

# Messages among the fields: each part's name there, and the option's name.
NESTED = {
    "xtc": {"probability": "xtc_probability", "threshold": "xtc_threshold"},
    "dynamic_temperature": {"range": "dynamic_temperature_range", "exponent": "dynamic_temperature_exponent"},
    "mirostat": {"version": "mirostat", "tau": "mirostat_tau", "eta": "mirostat_eta", "m": "mirostat_m"},
    "adaptive_p": {"target": "adaptive_target", "decay": "adaptive_decay"},
    "quadratic_smoothing": {"factor": "smoothing_factor", "curve": "smoothing_curve"},
    "min_k": {"tau": "min_k_tau"},
}
# Fields that reach a row as its edits, allowed tokens or noise (history.py), or that ask for more in the answer.
ELSEWHERE = {"frequency_penalty", "presence_penalty", "penalty_scope", "logit_bias", "allowed_token_ids",
             "banned_token_ids", "nan_policy", "raw_logprobs", "processed_logprobs", "logprob_token_ids", "entropy",
             "kept_set", "tempered_logprobs", "kept_log_mass", "chain", "dry", "no_repeat_ngram_size", "min_tokens",
             "stop_token_ids", "bad_words", "phases", "watermark", "repetition_stop", "banned_phrases"}
# Least and largest value, and a value outside of them that is off. A least value in NOT_THE_LEAST is excluded.
RANGES = {
    "temperature": (0.01, 100, 0), "top_p": (0, 1, 1), "min_p": (0, 1, 0), "repetition_penalty": (0.01, 100, 1),
    "frequency_penalty": (-100, 100, 0), "presence_penalty": (-100, 100, 0), "typical_p": (0, 1, 1),
    "top_n_sigma": (0.01, 100, 0), "epsilon_cutoff": (0, 1, 0), "eta_cutoff": (0, 1, 0), "top_a": (0, 1, 0),
    "top_h": (0, 1, 0), "xtc_probability": (0, 1, 0), "xtc_threshold": (0, 1, 1),
    "dynamic_temperature_range": (0, 100, 0), "dynamic_temperature_exponent": (0.01, 10, 1),
    "smoothing_factor": (0, 100, 0), "smoothing_curve": (1, 3, 1), "mirostat": (0, 2, 0), "mirostat_tau": (0, 20, 5),
    "mirostat_eta": (0, 1, 1), "mirostat_m": (2, 1000, 2), "adaptive_target": (0, 1, 0), "adaptive_decay": (0, 0.99, 0),
    "min_k_tau": (0, 100, 0), "min_keep": (0, 1000, 0),
    "dry.multiplier": (0.01, 100, 0), "dry.base": (1.01, 100, 1), "dry.allowed_length": (1, 1024, 1),
    "logit_bias.bias": (-65503.996, 65503.996, 0)}
NOT_GREEDY = {"typical_p", "xtc", "mirostat", "adaptive_p"}
NOT_THE_LEAST = {"top_p", "typical_p", "xtc_threshold", "mirostat_tau", "mirostat_eta"}
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
    for name in ("adaptive_p", "min_k"):
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
    named += [(f"dry.{name}", value) for name, value in parameters.get("dry", {}).items()]
    named += [("logit_bias.bias", item.get("bias", 0)) for item in parameters.get("logit_bias", [])]
    for name, value in named:
        if name not in RANGES or isinstance(value, dict):
            continue
        least, most, off = (single(bound) for bound in RANGES[name])
        inside = least <= value <= most and not (name in NOT_THE_LEAST and value == least)
        if not inside and value != off:
            raise ValueError(f"{name}: {value}")
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
