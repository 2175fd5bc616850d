"""Which stream of a CUDA device writes the logits of a step, and begins after its answers."""

from __future__ import annotations

from typing import Any, Optional

from sortition import _native

_CUDA = 2  # DLPack's kDLCUDA


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


def stream_of_step(logits: Any, stream: Optional[int], ready: Any, answers: Any = None) -> int:
    """The same, where a word may say when the logits are there, and answers may go to a device."""
    takes_part = answers is not None or isinstance(ready, _native.CudaReady)
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
