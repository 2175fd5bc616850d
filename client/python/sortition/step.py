"""Arguments and results of a step: drafts, masks, streams of a CUDA device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Union

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
    """Drafts of a sequence's next tokens. Their step takes a row of logits, and a mask, for each draft and one more.

    `mode` is "coupled" (the text equals that without speculation, for every drafter), "rejection" (tokens have the
    distribution that they have without speculation), "block" (as rejection, but the drafts are tested together, so that
    more are accepted) or "greedy" (for temperature 0). `parents` turn the drafts into a tree: the index of each one's
    parent, which precedes it, or -1. For rejection and block, `probabilities` are the drafter's, as a matrix [tokens,
    vocabulary], or `sparse_probabilities` are those above 0, as a mapping for each draft; rejection without either
    takes the drafts as certain. `return_probabilities` requests the target's, after every filter.

    A tree has one row of probabilities, or one mapping, for each place that drafts follow: the root, if drafts follow
    it, then each such draft in order. `sampling` says how the drafts of a place were drawn, in their order:
    "without_replacement", or "with_replacement", where a token that was drawn twice is named twice.
    """

    tokens: Any
    mode: str = "coupled"
    parents: Optional[Any] = None
    probabilities: Optional[Any] = None
    sparse_probabilities: Sequence[Mapping[int, float]] = ()
    return_probabilities: bool = False
    sampling: Optional[str] = None

    def __post_init__(self) -> None:
        # The native module reads plain lists.
        object.__setattr__(self, "tokens", token_list(self.tokens))
        if self.parents is not None:
            object.__setattr__(self, "parents", token_list(self.parents))
        object.__setattr__(self, "sparse_probabilities",
                           [(list(draft.keys()), list(draft.values())) for draft in self.sparse_probabilities])


class Tokens(NamedTuple):
    """The tokens of a step whose rows draw, and of which nothing else is asked."""

    tokens: numpy.ndarray  # int32, one for each row; -1 where the row failed
    errors: Dict[int, Error]  # by row


@dataclass(frozen=True)
class Scored:
    """Tokens to be scored, with more than their log probabilities.

    `requested` has a list of ids for each token: their log probabilities are returned at its position, in place of
    logprob_token_ids. `race` returns where each token stands in the race of its position (Score.race).
    """

    tokens: Any
    requested: Optional[Sequence[Any]] = None
    race: bool = False


def _scored_lists(scored: Optional[Sequence[Any]]) -> Optional[list]:
    """Returns an entry for each row: None, or its tokens to be scored, their requested ids, and whether it requests
    places in the race."""
    def entry(tokens: Any) -> Optional[tuple]:
        if tokens is None:
            return None
        if not isinstance(tokens, Scored):
            return token_list(tokens), [], False
        return token_list(tokens.tokens), [token_list(ids) for ids in tokens.requested or ()], tokens.race

    return None if scored is None else [entry(tokens) for tokens in scored]


def _banned_lists(banned: Optional[Sequence[Any]], drafts: Optional[Sequence[Any]]) -> Optional[list]:
    """Returns an entry for each row: None, or a list of tokens for each position that drafts give it, or for all."""
    def entry(tokens: Any, verifies: bool) -> Optional[list]:
        if tokens is None:
            return None
        return [token_list(position) for position in tokens] if verifies else [token_list(tokens)]

    if banned is None:
        return None
    return [entry(tokens, drafts is not None and index < len(drafts) and drafts[index] is not None)
            for index, tokens in enumerate(banned)]


def row_tasks(drafts: Optional[Sequence[Optional[Drafts]]] = None, scored: Optional[Sequence[Any]] = None,
              banned: Optional[Sequence[Any]] = None, draw_salts: Sequence[int] = ()) -> tuple:
    """Returns the lists that the native module reads (tasks.h), with an entry for each row, or None."""
    return drafts, _scored_lists(scored), _banned_lists(banned, drafts), list(draw_salts) or None


def one_row(allowed: Any = None, banned: Any = None, draw_salt: int = 0, dtype: Optional[str] = None,
            timeout: Optional[float] = None, stream: Optional[int] = None) -> Dict[str, Any]:
    """Returns the arguments of a step of one row."""
    return {"allowed": None if allowed is None else [allowed], "banned": None if banned is None else [banned],
            "draw_salts": [draw_salt] if draw_salt else (), "dtype": dtype, "timeout": timeout, "stream": stream}


class OneRow:
    """Steps of one row, for a class with `step`."""

    step: Callable[..., List[Result]]

    def draw(self, sequence: Any, logits: Any, *, allowed: Any = None, banned: Any = None, draw_salt: int = 0,
             dtype: Optional[str] = None, timeout: Optional[float] = None,
             stream: Optional[int] = None) -> _native.Draw:
        """Draws a token from one row of one sequence. Raises its Error."""
        return raised(self.step([sequence], logits, allowed=None if allowed is None else [allowed],
                                banned=None if banned is None else [banned],
                                draw_salts=[draw_salt] if draw_salt else (), dtype=dtype, timeout=timeout,
                                stream=stream)[0])

    def verify(self, sequence: Any, logits: Any, drafts: Drafts, *, allowed: Any = None, draw_salt: int = 0,
               dtype: Optional[str] = None, timeout: Optional[float] = None,
               stream: Optional[int] = None) -> _native.Verify:
        """Verifies drafts of one sequence, whose logits are a matrix. Raises its Error."""
        return raised(self.step([sequence], logits, drafts=[drafts],
                                **one_row(allowed, None, draw_salt, dtype, timeout, stream))[0])

    def score(self, sequence: Any, logits: Any, tokens: Any, *, allowed: Any = None, dtype: Optional[str] = None,
              timeout: Optional[float] = None, stream: Optional[int] = None) -> _native.Score:
        """Scores tokens that follow one sequence, whose logits are a matrix. Raises its Error."""
        return raised(self.step([sequence], logits, scored=[tokens],
                                **one_row(allowed, None, 0, dtype, timeout, stream))[0])


def pack_mask(allowed: Any) -> numpy.ndarray:
    """Packs booleans, one a token, into 32-bit words, least significant bit first. A matrix has a mask in each row."""
    flags = numpy.asarray(allowed)
    if flags.dtype != numpy.bool_ or flags.ndim not in (1, 2):
        raise TypeError(f"allowed: a vector of booleans, or a matrix, not {flags.dtype} of shape {flags.shape}")
    packed = numpy.packbits(flags, axis=-1, bitorder="little")
    room = [(0, 0)] * (flags.ndim - 1) + [(0, -packed.shape[-1] % 4)]
    return numpy.ascontiguousarray(numpy.pad(packed, room)).view(numpy.uint32)


def packed_masks(masks: Optional[Sequence[Any]], sequences: Sequence[Any]) -> Optional[List[Any]]:
    """Returns an entry for each row: None or packed words. Booleans are packed, one for each token of the row."""
    if masks is None:
        return None
    packed = list(masks)
    for index, mask in enumerate(packed):
        if "bool" not in str(getattr(mask, "dtype", "")):
            continue
        packed[index] = pack_mask(mask)
        # The native module refuses another number of masks than of sequences.
        size = sequences[index].vocabulary_size if index < len(sequences) else mask.shape[-1]
        if mask.shape[-1] != size:
            raise ValueError(f"allowed[{index}]: a mask of {mask.shape[-1]} booleans; the vocabulary has {size}")
    return packed


def _first(logits: Any) -> Any:
    return logits[0] if isinstance(logits, (list, tuple)) and logits else logits


def stream_of(logits: Any, stream: Optional[int]) -> int:
    """Returns the given stream, otherwise torch's current one for its tensors, otherwise the default one."""
    if stream is not None:
        return int(stream)
    first = _first(logits)
    if not getattr(first, "is_cuda", False):
        return 0
    import torch  # it is there: the tensor is one of torch's
    return torch.cuda.current_stream(first.device).cuda_stream


def stream_of_step(logits: Any, stream: Optional[int], ready: Any, results: Any = None) -> int:
    """Returns the stream of a step that may have a ready word, or results in a device's memory."""
    takes_part = results is not None or isinstance(ready, _native.CudaReady)
    if stream is None and takes_part and not on_cuda(logits):
        raise ValueError("stream: required with CudaReady and CudaResults if the logits are in the host's memory")
    if stream is not None and isinstance(ready, _native.ReadyWord) and not takes_part:
        raise ValueError("stream: not allowed with a word of a Ready, which says by itself when the logits are written")
    return stream_of(logits, stream)


def on_cuda(logits: Any) -> bool:
    """True if the logits are on a CUDA device, so that a step without a ready word waits for a stream."""
    device = getattr(_first(logits), "__dlpack_device__", None)
    return device is not None and int(device()[0]) == _CUDA
