"""The contract's SamplingParameters, as JSON with the contract's names, as options of the law."""

from typing import Any, Dict, List, Sequence, Tuple

from sortition_verify.options import DEFAULTS, ORDERS, compile_options
from sortition_verify.row import Compiled

# Messages among the fields: each part's name there, and the option's name.
NESTED = {
    "xtc": {"probability": "xtc_probability", "threshold": "xtc_threshold"},
    "dynamic_temperature": {"range": "dynamic_temperature_range", "exponent": "dynamic_temperature_exponent"},
    "mirostat": {"version": "mirostat", "tau": "mirostat_tau", "eta": "mirostat_eta", "m": "mirostat_m"},
    "adaptive_p": {"target": "adaptive_target", "decay": "adaptive_decay"},
    "quadratic_smoothing": {"factor": "smoothing_factor", "curve": "smoothing_curve"},
}
# Fields that reach a row as its edits, allowed tokens or noise (history.py), or that ask for more in the answer.
ELSEWHERE = {"frequency_penalty", "presence_penalty", "penalty_scope", "logit_bias", "allowed_token_ids",
             "banned_token_ids", "nan_policy", "raw_logprobs", "processed_logprobs", "logprob_token_ids", "entropy",
             "kept_set", "chain", "dry", "no_repeat_ngram_size", "min_tokens", "stop_token_ids", "bad_words",
             "forced_tokens", "watermark"}
PRESETS = {"PRESET_UNSPECIFIED": "vllm", "PRESET_VLLM": "vllm", "PRESET_LLAMA_CPP": "llama_cpp", "PRESET_HF": "hf"}


def preset(parameters: Dict[str, Any]) -> str:
    return PRESETS[parameters.get("chain", {}).get("preset", "PRESET_UNSPECIFIED")]


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
    if "adaptive_p" in parameters:
        options["adaptive_p"] = True
    return options


def compile_parameters(parameters: Dict[str, Any]) -> Tuple[Compiled, bool]:
    """The law's integers, and whether NaN is masked."""
    compiled = compile_options(sampler_options(parameters), order(parameters))
    return compiled, parameters.get("nan_policy") == "NAN_POLICY_MASK"
