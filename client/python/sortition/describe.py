"""Makes the contract's description of a sequence from keyword arguments."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from sortition.v1.parameters_pb2 import SamplingParameters
from sortition.v1.sampling_pb2 import OpenSequence


def parameters_of(parameters: Optional[SamplingParameters], sampling: Dict[str, Any]) -> SamplingParameters:
    """Returns `parameters` with the fields in `sampling` set. Raises TypeError for a field that the contract lacks."""
    result = SamplingParameters()
    if parameters is not None:
        result.CopyFrom(parameters)
    given = {name: value for name, value in sampling.items() if value is not None}
    for name in given:
        if name not in SamplingParameters.DESCRIPTOR.fields_by_name:
            raise TypeError(f"there is no sampling parameter {name!r}")
    try:
        changes = SamplingParameters(**given)
    except (TypeError, ValueError) as error:
        raise type(error)(f"sampling parameters {given!r}: {error}") from None
    for name in given:  # given fields replace the old values, also lists
        result.ClearField(name)
    result.MergeFrom(changes)
    return result


def describe(request_id: str, vocabulary_size: int, *, seed: Optional[int] = None, choice_index: int = 0,
             live_vocabulary_size: Optional[int] = None, model: str = "", watermark_key_id: str = "",
             parameters: Optional[SamplingParameters] = None, **sampling: Any) -> bytes:
    """Returns a serialized OpenSequence without history."""
    return OpenSequence(request_id=request_id, vocabulary_size=vocabulary_size, seed=seed, choice_index=choice_index,
                        live_vocabulary_size=live_vocabulary_size, model=model, watermark_key_id=watermark_key_id,
                        parameters=parameters_of(parameters, sampling)).SerializeToString()


def token_list(tokens: Any) -> List[int]:
    """Converts a list or an array to plain integers."""
    return tokens.tolist() if hasattr(tokens, "tolist") else list(tokens)
