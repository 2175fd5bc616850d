"""The sampler in this process: the same law, the same tokens, no server."""

from __future__ import annotations

import itertools
from typing import Any, List, Optional, Sequence

from sortition import _native
from sortition._native import CudaStep, CudaStream
from sortition.describe import describe, token_list
from sortition.step import OneRow, Result, Tokens, packed_masks, row_tasks, stream_of
from sortition.v1.parameters_pb2 import SamplingParameters

__all__ = ["CudaStep", "CudaStream", "Sampler"]


class Sampler(OneRow):
    """Samples on the calling thread, without the GIL. Takes the arguments of Client, and returns the same bits.

    Thread-safe. Rows in the host's memory are sampled one after the other; use several threads to sample more at a
    time. Rows on a CUDA device are sampled there, after the work queued on `stream` when the step begins: a
    torch.cuda.Stream.cuda_stream, by default torch's current one for its tensors and the default stream for others.
    Masks stay in the host's memory. Raises an Error if there is no driver, or if the package was built without CUDA
    kernels.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def open(self, request_id: Optional[str] = None, *, vocabulary_size: int, prompt: Any = (),
             seed: Optional[int] = None, choice_index: int = 0, live_vocabulary_size: Optional[int] = None,
             model: str = "", start_position: Optional[int] = None, parameters: Optional[SamplingParameters] = None,
             **sampling: Any) -> _native.LocalSequence:
        """As Client.open; request ids may repeat."""
        message = describe(request_id or f"sequence-{next(self._numbers)}", vocabulary_size, seed=seed,
                           choice_index=choice_index, live_vocabulary_size=live_vocabulary_size, model=model,
                           parameters=parameters, **sampling)
        return _native.LocalSequence(message, token_list(prompt), start_position)

    def fork(self, parent: _native.LocalSequence, request_id: Optional[str] = None, *, position: Optional[int] = None,
             vocabulary_size: Optional[int] = None, seed: Optional[int] = None, choice_index: int = 0,
             live_vocabulary_size: Optional[int] = None, model: str = "",
             parameters: Optional[SamplingParameters] = None, **sampling: Any) -> _native.LocalSequence:
        """As Client.fork."""
        message = describe(request_id or f"sequence-{next(self._numbers)}", vocabulary_size or parent.vocabulary_size,
                           seed=seed, choice_index=choice_index, live_vocabulary_size=live_vocabulary_size,
                           model=model, parameters=parameters, **sampling)
        return parent.fork(message, position)

    def step(self, sequences: Sequence[_native.LocalSequence], logits: Any, *,
             allowed: Optional[Sequence[Any]] = None, dtype: Optional[str] = None, timeout: Optional[float] = None,
             priority: int = 0, traceparent: str = "", stream: Optional[int] = None, **tasks: Any) -> List[Result]:
        """As Client.step. `timeout`, `priority` and `traceparent` are ignored, because the step does not wait."""
        return _native.step_local(list(sequences), logits, row_tasks(**tasks), packed_masks(allowed, sequences), dtype,
                                  stream_of(logits, stream))

    def draw_tokens(self, sequences: Sequence[_native.LocalSequence], logits: Any, *,
                    allowed: Optional[Sequence[Any]] = None, dtype: Optional[str] = None,
                    timeout: Optional[float] = None, stream: Optional[int] = None) -> Tokens:
        """As Client.draw_tokens. `timeout` is ignored, because the step does not wait."""
        return Tokens(*_native.draw_tokens_local(list(sequences), logits, packed_masks(allowed, sequences), dtype,
                                                 stream_of(logits, stream)))

    def close(self) -> None:
        """Does nothing: no resources are held."""
