"""Arguments and results of a step: drafts, masks, streams of a CUDA device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Mapping, Optional, Sequence, Union

import numpy

from sortition import _native
from sortition.describe import token_list
from sortition.errors import Error

Result = Union[_native.Draw, _native.Verify, _native.Score, Error]

_CUDA = 2  # DLPack's kDLCUDA


def raised(result: Result) -> Any:
    """Returns the result of one row, or raises it if it is an Error."""
    if isinstance(result, Error):
        raise result
    return result


@dataclass(frozen=True)
class Drafts:
    """What a drafter proposes. A step with it takes a row of logits, and a mask, for each draft and one more.

    `mode` is "coupled" (the text is that of no speculation, whatever the drafter), "rejection" (tokens are distributed
    as without speculation) or "greedy" (for temperature 0). `parents` make a tree of the drafts: the index of each
    one's parent, which comes before it, or -1. For rejection `probabilities` are the drafter's, a matrix [tokens,
    vocabulary], or `sparse_probabilities` name those that are not 0, a mapping for each draft; without either the
    drafts were certain. `return_probabilities` asks for the target's, after every filter.
    """

    tokens: Any
    mode: str = "coupled"
    parents: Optional[Any] = None
    probabilities: Optional[Any] = None
    sparse_probabilities: Sequence[Mapping[int, float]] = ()
    return_probabilities: bool = False

    def __post_init__(self) -> None:
        # Plain lists, as the native module reads them.
        object.__setattr__(self, "tokens", token_list(self.tokens))
        if self.parents is not None:
            object.__setattr__(self, "parents", token_list(self.parents))
        object.__setattr__(self, "sparse_probabilities",
                           [(list(draft.keys()), list(draft.values())) for draft in self.sparse_probabilities])


def scored_lists(scored: Optional[Sequence[Any]]) -> Optional[list]:
    """One for each row: None, or the tokens to be scored."""
    return None if scored is None else [None if tokens is None else token_list(tokens) for tokens in scored]


def pack_mask(allowed: Any) -> numpy.ndarray:
    """Booleans, one a token, as words of 32 bits, least significant bit first; of a matrix, a mask for each row."""
    flags = numpy.asarray(allowed)
    if flags.dtype != numpy.bool_ or flags.ndim not in (1, 2):
        raise TypeError(f"allowed: a vector of booleans, or a matrix, not {flags.dtype} of shape {flags.shape}")
    packed = numpy.packbits(flags, axis=-1, bitorder="little")
    room = [(0, 0)] * (flags.ndim - 1) + [(0, -packed.shape[-1] % 4)]
    return numpy.ascontiguousarray(numpy.pad(packed, room)).view(numpy.uint32)


def packed_masks(masks: Optional[Sequence[Any]]) -> Optional[List[Any]]:
    """One for each row: None, packed words, or booleans, which are packed here."""
    if masks is None:
        return None
    return [pack_mask(mask) if mask is not None and "bool" in str(mask.dtype) else mask for mask in masks]


def _first(logits: Any) -> Any:
    return logits[0] if isinstance(logits, (list, tuple)) and logits else logits


def stream_of(logits: Any, stream: Optional[int]) -> int:
    """The stream that is named, else torch's current one for its tensors, else the default one."""
    if stream is not None:
        return int(stream)
    first = _first(logits)
    if not getattr(first, "is_cuda", False):
        return 0
    import torch  # the tensor is one of torch's
    return torch.cuda.current_stream(first.device).cuda_stream


def stream_of_step(logits: Any, stream: Optional[int], ready: Any, results: Any = None) -> int:
    """The same, where a word may say when the logits are there, and results may go to a device."""
    takes_part = results is not None or isinstance(ready, _native.CudaReady)
    if stream is None and takes_part and not on_cuda(logits):
        raise ValueError("stream: to be named with CudaReady and CudaResults, where logits in the host's memory do not"
                         " say which")
    if stream is not None and isinstance(ready, _native.ReadyWord) and not takes_part:
        raise ValueError("stream: not with a word of a Ready, which says by itself when the logits are there")
    return stream_of(logits, stream)


def on_cuda(logits: Any) -> bool:
    """Whether they lie on a CUDA device, so that a step without a word waits for a stream."""
    device = getattr(_first(logits), "__dlpack_device__", None)
    return device is not None and int(device()[0]) == _CUDA
