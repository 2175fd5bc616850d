"""The adapters' sampler by its setting, what their engine's log says of it, and the way of their logits to it: within
their GPU if a server shares its memory, otherwise by the host.
"""

from __future__ import annotations

import logging
from typing import Any, Optional

from sortition._native import CPU_KERNELS, LAW_VERSION, VERSION, CudaRows, DeviceMemory
from sortition.client import Client
from sortition.errors import Error
from sortition.local import Sampler as LocalSampler

IN_PROCESS = "in_process"
_log = logging.getLogger("sortition")


def sampler_of(setting: str) -> Any:
    """Returns the sampler that a setting names: targets, in_process, or both (in process while no target answers)."""
    names = [name.strip() for name in setting.split(",") if name.strip()]
    targets = [name for name in names if name != IN_PROCESS]
    if not targets:
        return LocalSampler()
    return Client(targets, fallback=IN_PROCESS if IN_PROCESS in names else "none", rows="auto")


def tensor_of(rows: Any, like: Any) -> Any:
    """Returns the memory as a torch tensor with the shape and type of `like`, without a copy."""
    import torch
    whole = torch.from_dlpack(rows)
    return whole[:like.numel() * like.element_size()].view(like.dtype).view(like.shape)


class LogitsTransfer:
    """Moves matrices of logits to memory from which `sampler`, a Client or a local Sampler, takes them. For one thread.

    `path` is the way of the last step's logits: "device" (copied within their GPU, to memory that the server reads
    there, or of which first tokens are sent to it), "host", or "" before the first step. `note` is the reason why
    logits of a GPU took the host. The engine's `log` is told where rows are sampled. Changes are logged before the next
    step.
    """

    def __init__(self, sampler: Any, log: logging.Logger = _log):
        self._client: Optional[Client] = sampler if isinstance(sampler, Client) else None
        self._log = log
        self._in_process = self._is_in_process()
        if self._client is not None and self._in_process:
            self._log.warning("Sortition %s, law %d: no target answers. %s", VERSION, LAW_VERSION, self._where())
        else:
            self._log.info("Sortition %s, law %d. %s", VERSION, LAW_VERSION, self._where())
        self._rows: Optional[CudaRows] = None
        self._memory: Optional[DeviceMemory] = None
        self._refused = ""  # why no more memory was shared
        self.path = ""
        self.note = ""

    def move(self, logits: Any) -> Any:
        """Returns the same logits in such memory. They must be stepped before the next call."""
        self._look()
        logits = logits.detach()
        if not logits.is_cuda:
            self._take("host", "")
            return logits.cpu()
        why_not = self._share(logits)
        if why_not:
            self._take("host", why_not)
            return logits.cpu()
        self._take("device", "")
        there = tensor_of(self._rows, logits)
        there.copy_(logits)  # on the stream that the step waits for
        return there

    def _is_in_process(self) -> bool:
        return self._client is None or self._client.in_process

    def _where(self) -> str:
        if self._in_process:
            return f"Tokens are drawn in process, by the CPU kernels {CPU_KERNELS}"
        rows = ("rows whole" if self._client.rows == "full" else
                "rows in shared memory" if self._client.rows == "auto" and self._client.row_memory else
                "long rows compact" if self._client.rows == "auto" else "rows compact")
        return f"Tokens are drawn by the service over {self._client.transport}, {rows}"

    def _look(self) -> None:
        """Logs a fall-back to this process, and the return to the service."""
        before, self._in_process = self._in_process, self._is_in_process()
        if self._in_process and not before:
            self._log.warning("Sortition: no target answers. %s", self._where())
        elif before and not self._in_process:
            self._log.info("Sortition: a target answers. %s", self._where())

    def _share(self, logits: Any) -> str:
        """Shares memory for these logits. Returns the reason if they must go through the host, else ""."""
        if self._client is None:
            return "they are sampled in this process"
        device, size = logits.device.index, logits.numel() * logits.element_size()
        if self._rows is None or self._rows.device != device or self._rows.bytes < size:
            if not self._refused:
                self._allocate(device, size)
            if self._refused:
                return self._refused
        if self._memory.shared or self._memory.is_stated(logits.shape[-1], logits.element_size()):
            return ""
        return self._memory.note

    def _allocate(self, device: int, size: int) -> None:
        before = self._rows.bytes if self._rows is not None and self._rows.device == device else 0
        try:
            rows = CudaRows(device, max(size, 2 * before))
            memory = self._client.share_device(rows)
        except Error as error:
            self._refused = str(error)
            return
        if before and self._memory.shared and not memory.shared:
            self._refused = memory.note  # the memory so far stays for smaller batches
            return
        if self._memory is not None:
            self._memory.close()
        self._rows, self._memory = rows, memory

    def _take(self, path: str, note: str) -> None:
        if (path, note) == (self.path, self.note):
            return
        self.path, self.note = path, note
        if path == "device":
            self._log.info("logits stay in the GPU's memory")
        elif note:
            self._log.warning("logits of a GPU are copied to the host at each step: %s", note)
