"""The contract's SamplingParameters, as JSON with the contract's names, as options of the law."""

from typing import Any, Dict, List, Optional, Sequence, Tuple

from sortition_verify.option_table import BY_PRESENCE, DEFAULTS, ELSEWHERE, NESTED, ORDERS
from sortition_verify.options import compile_options
from sortition_verify.row import Compiled

PRESETS = {"PRESET_UNSPECIFIED": "vllm", "PRESET_VLLM": "vllm", "PRESET_LLAMA_CPP": "llama_cpp", "PRESET_HF": "hf"}


def preset(parameters: Dict[str, Any]) -> str:
    return PRESETS[parameters.get("chain", {}).get("preset", "PRESET_UNSPECIFIED")]


def within(parameters: Dict[str, Any], phase: int) -> Dict[str, Any]:
    """The parameters that hold in a phase: 1 for the first one, 0 outside of all."""
    inner = parameters["phases"][phase - 1].get("parameters", {}) if phase else {}
    outer = {name: value for name, value in parameters.items() if name != "phases"}
    return {**outer, **{name: value for name, value in inner.items() if value != []}}


def listed_samplers(parameters: Dict[str, Any]) -> List[str]:
    """The samplers that `chain` lists."""
    listed: List[str] = parameters.get("chain", {}).get("explicit", {}).get("samplers", [])
    return ["temperature" if name == "dynamic_temperature" else name for name in listed]


def order(parameters: Dict[str, Any]) -> Sequence[str]:
    """The samplers' order that `chain` names."""
    return listed_samplers(parameters) or ORDERS[preset(parameters)]


def sampler_options(parameters: Dict[str, Any], live: Optional[int] = None) -> Dict[str, Any]:
    """The options of compile_options; of a live vocabulary, top_k is off from its size on. Raises ValueError for a
    field that this program does not know."""
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
    if live is not None and options.get("top_k", 0) >= live:
        options["top_k"] = 0
    return options


def compile_parameters(parameters: Dict[str, Any], live: Optional[int] = None) -> Tuple[Compiled, bool]:
    """The law's integers, and whether NaN is masked."""
    compiled = compile_options(sampler_options(parameters, live), order(parameters))
    return compiled, parameters.get("nan_policy") == "NAN_POLICY_MASK"
