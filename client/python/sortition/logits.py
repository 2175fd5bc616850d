"""How the adapters' logits come to the sampler: within their GPU where a server shares its memory, else by the host."""

from __future__ import annotations

import logging
from typing import Any, Optional

from sortition._native import CudaRows, DeviceMemory
from sortition.client import Client
from sortition.errors import Error

_log = logging.getLogger("sortition")


def tensor_of(rows: Any, like: Any) -> Any:
    """The memory as a tensor of torch's with the shape and type of `like`, without a copy."""
    import torch
    whole = torch.from_dlpack(rows)
    return whole[:like.numel() * like.element_size()].view(like.dtype).view(like.shape)


class LogitsTransfer:
    """Brings matrices of logits to where `sampler`, a Client or a local Sampler, takes them. For one thread.

    `path` says how those of the last step came: "device" (copied within their GPU, in memory that the server reads
    there), "host", or "" where there was none; `note`, why logits of a GPU came by the host. A change is logged.
    """

    def __init__(self, sampler: Any):
        self._client: Optional[Client] = sampler if isinstance(sampler, Client) else None
        self._rows: Optional[CudaRows] = None
        self._memory: Optional[DeviceMemory] = None
        self._refused = ""  # why there is no more memory than this
        self.path = ""
        self.note = ""

    def move(self, logits: Any) -> Any:
        """The same logits, to be stepped before the next ones are moved."""
        logits = logits.detach()
        if not logits.is_cuda:
            self._take("host", "")
            return logits.cpu()
        why_not = self._share(logits.device.index, logits.numel() * logits.element_size())
        if why_not:
            self._take("host", why_not)
            return logits.cpu()
        self._take("device", "")
        there = tensor_of(self._rows, logits)
        there.copy_(logits)  # in the stream that the step waits for
        return there

    def _share(self, device: int, size: int) -> str:
        """Has the server share as much; why it does not."""
        if self._client is None:
            return "they are sampled in this process"
        if self._rows is None or self._rows.device != device or self._rows.bytes < size:
            if not self._refused:
                self._allocate(device, size)
            if self._refused:
                return self._refused
        return "" if self._memory.shared else self._memory.note

    def _allocate(self, device: int, size: int) -> None:
        before = self._rows.bytes if self._rows is not None and self._rows.device == device else 0
        try:
            rows = CudaRows(device, max(size, 2 * before))
            memory = self._client.share_device(rows)
        except Error as error:
            self._refused = str(error)
            return
        if before and self._memory.shared and not memory.shared:
            self._refused = memory.note  # smaller batches have what there is
            return
        if self._memory is not None:
            self._memory.close()
        self._rows, self._memory = rows, memory

    def _take(self, path: str, note: str) -> None:
        if (path, note) == (self.path, self.note):
            return
        self.path, self.note = path, note
        if path == "device":
            _log.info("logits stay in the GPU's memory, where the server reads them")
        elif note:
            _log.warning("logits of a GPU are copied to the host at each step: %s", note)
