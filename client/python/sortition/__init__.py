"""Token sampling for language-model inference: the client of the service, and the same sampler in this process.

    client = sortition.Client(["127.0.0.1:50051"])
    sequence = client.open("request-1", vocabulary_size=32000, prompt=[1, 15043], temperature=0.8, top_p=0.95)
    token = client.draw(sequence, logits).token

Logits are numpy arrays, torch tensors or other objects with DLPack or the buffer protocol: float32, float16 or
bfloat16, on the CPU. They are sent without a copy. They may also be on a CUDA device: for sampling in process
(sortition.local), and for a server on the same device in memory made by CudaRows.
"""

from sortition._native import (LAW_VERSION, CudaResults, CudaReady, CudaRows, DeviceMemory, Draw, Logprobs, Ready,
                               ReadyWord, Score, Sequence, Verify)
from sortition._native import VERSION as __version__
from sortition.aio import AsyncClient
from sortition.client import Client
from sortition.errors import Error
from sortition.kept import KeptSets, kept_sets
from sortition.options import Retry, Shard, Transport
from sortition.step import Drafts, Scored, Tokens, pack_mask
from sortition.view import StepView

__all__ = ["LAW_VERSION", "AsyncClient", "Client", "CudaResults", "CudaReady", "CudaRows", "DeviceMemory", "Drafts",
           "Draw", "Error", "KeptSets", "Logprobs", "Ready", "ReadyWord", "Retry", "Score", "Scored",
           "Sequence", "Shard",
           "StepView", "Tokens", "Transport", "Verify", "__version__", "kept_sets", "pack_mask"]
