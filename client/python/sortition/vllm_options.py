"""Options that vLLM's requests have no parameter for, by their names in extra_args (over HTTP: vllm_xargs).

A part of a message has a dotted name, or lies in a dict: {"mirostat.version": 2, "mirostat.tau": 4.0}. An element of a
list of token sequences is a token or a list of tokens.
"""

from __future__ import annotations

import functools
import importlib.metadata
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

from sortition.errors import Error
from sortition.v1.parameters_pb2 import SamplingParameters

# Names that vLLM reads itself.
_VLLMS, _VLLMS_PREFIX = ("kv_transfer_params", "ec_transfer_params", "kv_cache_report_mode"), "diffusion_"
# Options that vLLM has, with its name for each.
_BY_VLLM = {
    **{name: name for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "frequency_penalty",
                               "presence_penalty", "logit_bias", "allowed_token_ids", "logprob_token_ids", "min_tokens",
                               "stop_token_ids", "bad_words")},
    "raw_logprobs": "logprobs", "processed_logprobs": "logprobs", "kept_set": "return_sampling_mask",
    "repetition_stop": "repetition_detection", "phases": "thinking_token_budget"}
REFUSED = {
    **{ours: f"vLLM has {theirs}" for ours, theirs in _BY_VLLM.items()},
    **dict.fromkeys(("entropy", "tempered_logprobs", "kept_log_mass"), "vLLM's answers have no place for it"),
    "banned_phrases": "vLLM takes no token back that it has scheduled; bad_words ban the last token of a phrase"}


def refusal(field: str, limit: str, message: str) -> Error:
    return Error(message, "INVALID_ARGUMENT", "", field, limit)


@functools.lru_cache(maxsize=None)
def other_processors_installed() -> bool:
    """True if another package has a logits processor for vLLM."""
    points = importlib.metadata.entry_points()
    group = "vllm.logits_processors"
    found = points.select(group=group) if hasattr(points, "select") else points.get(group, ())
    return any(point.value.split(".")[0] != __package__ for point in found)


def options_of(extra: Optional[Mapping[str, Any]], shared: bool = False) -> Dict[str, Any]:
    """Converts extra_args to fields of SamplingParameters. Raises an Error that names what it cannot take.

    `shared`: other processors read extra_args, too. Names that are no option are left to them.
    """
    result: Dict[str, Any] = {}
    for name, value in _flat("", extra or {}):
        path = name.split(".")
        if value is None or path[0] in _VLLMS or path[0].startswith(_VLLMS_PREFIX):
            continue
        if shared and path[0] not in SamplingParameters.DESCRIPTOR.fields_by_name:
            continue
        if path[0] in REFUSED:
            raise refusal(f"extra_args.{name}", "", REFUSED[path[0]])
        made = _value(name, path, value)
        alone, place = made, result
        for part in reversed(path):
            alone = {part: alone}
        try:
            SamplingParameters(**alone)
        except (TypeError, ValueError) as error:
            raise refusal(f"extra_args.{name}", "", f"{value!r:.40}: {error}") from None
        for part in path[:-1]:
            place = place.setdefault(part, {})
        if made == {}:
            place.setdefault(path[-1], made)
        else:
            place[path[-1]] = made
    if len(result.get("chain", ())) > 1:
        raise refusal("extra_args.chain", "preset or explicit", "both are there")
    return result


def _flat(name: str, value: Any) -> Iterator[Tuple[str, Any]]:
    if isinstance(value, Mapping) and (value or not name):
        for part, inner in value.items():
            yield from _flat(f"{name}.{part}" if name else str(part), inner)
    else:
        yield name, value


def _value(name: str, path: List[str], value: Any) -> Any:
    """Returns the value in the form of its field. Refuses a name that the contract lacks."""
    message, field = SamplingParameters.DESCRIPTOR, None
    for part in path:
        field = None if message is None else message.fields_by_name.get(part)
        if field is None:
            raise refusal(f"extra_args.{name}", "", "there is no such option")
        message = field.message_type
    if message is not None and message.name == "TokenSequence" and isinstance(value, (list, tuple)):
        return [{"tokens": list(item) if isinstance(item, (list, tuple)) else [item]} for item in value]
    return value
