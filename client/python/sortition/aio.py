"""The client, for asyncio."""

from __future__ import annotations

import asyncio
from typing import Any, List, Optional, Sequence

from sortition import _native
from sortition.client import Client
from sortition.step import Drafts, Result, on_cuda, one_row, raised


class AsyncClient:
    """A Client whose calls are awaited. Its tasks, of one event loop or of several, share one stream.

    A step occupies no thread while it runs; connecting, opening, forking and closing use one of the loop's threads.
    Make an AsyncClient with `await AsyncClient.connect(...)`, which takes the arguments of Client.
    """

    def __init__(self, client: Client):
        self.client = client

    @classmethod
    async def connect(cls, *arguments: Any, **options: Any) -> "AsyncClient":
        return cls(await asyncio.to_thread(Client, *arguments, **options))

    async def open(self, request_id: Optional[str] = None, **options: Any) -> _native.Sequence:
        """As Client.open."""
        return await asyncio.to_thread(self.client.open, request_id, **options)

    async def fork(self, parent: _native.Sequence, request_id: Optional[str] = None, **options: Any
                   ) -> _native.Sequence:
        """As Client.fork."""
        return await asyncio.to_thread(self.client.fork, parent, request_id, **options)

    async def step(self, sequences: Sequence[_native.Sequence], logits: Any, **options: Any) -> List[Result]:
        """As Client.step. The step of a cancelled task ends by itself; its tensors are kept alive until then.

        Without `ready`, logits on a device occupy one of the loop's threads until their stream is done. A CudaReady
        waits for the work that is queued on the stream when the task runs. For results in a device's memory use
        Client.submit.
        """
        loop = asyncio.get_running_loop()
        answered: "asyncio.Future[List[Result]]" = loop.create_future()

        def deliver(results: List[Result]) -> None:
            if not answered.done():
                answered.set_result(results)

        def on_results(results: List[Result]) -> None:
            try:
                loop.call_soon_threadsafe(deliver, results)
            except RuntimeError:
                pass  # the loop is closed: no task waits any more

        start = self.client.prepare_step(on_results, sequences, logits, results=None, **options)
        if on_cuda(logits) and options.get("ready") is None:
            await asyncio.to_thread(start)
        else:
            start()
        return await answered

    async def draw(self, sequence: _native.Sequence, logits: Any, **options: Any) -> _native.Draw:
        """As Client.draw."""
        return raised((await self.step([sequence], logits, **one_row(**options)))[0])

    async def verify(self, sequence: _native.Sequence, logits: Any, drafts: Drafts, *, allowed: Any = None,
                     draw_salt: int = 0, dtype: Optional[str] = None, timeout: Optional[float] = None,
                     stream: Optional[int] = None) -> _native.Verify:
        """As Client.verify."""
        options = one_row(allowed, None, draw_salt, dtype, timeout, stream)
        return raised((await self.step([sequence], logits, drafts=[drafts], **options))[0])

    async def score(self, sequence: _native.Sequence, logits: Any, tokens: Any, *, allowed: Any = None,
                    dtype: Optional[str] = None, timeout: Optional[float] = None, stream: Optional[int] = None
                    ) -> _native.Score:
        """As Client.score."""
        options = one_row(allowed, None, 0, dtype, timeout, stream)
        return raised((await self.step([sequence], logits, scored=[tokens], **options))[0])

    async def ready(self) -> _native.Ready:
        """As Client.ready."""
        return await asyncio.to_thread(self.client.ready)

    async def cuda_ready(self, device: int = 0) -> _native.CudaReady:
        """As Client.cuda_ready."""
        return await asyncio.to_thread(self.client.cuda_ready, device)

    async def share_device(self, rows: _native.CudaRows) -> _native.DeviceMemory:
        """As Client.share_device."""
        return await asyncio.to_thread(self.client.share_device, rows)

    @property
    def worker_session(self) -> str:
        return self.client.worker_session

    @property
    def in_process(self) -> bool:
        return self.client.in_process

    async def close(self) -> None:
        await asyncio.to_thread(self.client.close)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()
