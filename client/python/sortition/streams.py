"""Which stream of a CUDA device writes the logits of a step."""

from __future__ import annotations

from typing import Any, Optional

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


def on_cuda(logits: Any) -> bool:
    """Whether they lie on a CUDA device, so that a step waits for a stream."""
    device = getattr(_first(logits), "__dlpack_device__", None)
    return device is not None and int(device()[0]) == _CUDA
