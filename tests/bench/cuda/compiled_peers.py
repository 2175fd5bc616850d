"""Peers whose packages do not travel: FlashInfer's kernels, compiled, and vLLM's Triton kernel without vLLM.

Both come from a folder that deploy/gpu_day/make.sh fills."""

from __future__ import annotations

import ctypes
import importlib.util
import pathlib
import sys
import types
from typing import Any, Callable, Dict

import torch

ROW_STATES_BYTES = 1 << 20
TYPES = {torch.float32: 0, torch.bfloat16: 1}
Sampler = Callable[[torch.Tensor], torch.Tensor]


class FlashInfer:
    """FlashInfer's two ways to top-k and top-p: `by_number`, one k for all rows, and `by_tensor`, a k for each row."""

    def __init__(self, path: pathlib.Path, top_k: int, top_p: float, temperature: float) -> None:
        self.library = ctypes.CDLL(str(path))
        self.top_k, self.top_p, self.temperature = top_k, top_p, temperature
        self.row_states = torch.zeros(ROW_STATES_BYTES, dtype=torch.uint8, device="cuda")
        self.seed = torch.full((1,), 7, dtype=torch.int64, device="cuda")
        self.offset = torch.zeros(1, dtype=torch.int64, device="cuda")

    def call(self, function: str, *arguments: Any) -> None:
        given = [ctypes.c_void_p(argument.data_ptr()) if isinstance(argument, torch.Tensor) else argument
                 for argument in arguments]
        error = getattr(self.library, function)(*given, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        if error != 0:
            raise RuntimeError(f"{function}: CUDA error {error}")

    def top_p_of(self, probabilities: torch.Tensor) -> torch.Tensor:
        rows, count = probabilities.shape
        drawn = torch.empty(rows, dtype=torch.int32, device="cuda")
        valid = torch.empty(rows, dtype=torch.uint8, device="cuda")
        self.call("SortitionPeerTopP", probabilities, drawn, valid, ctypes.c_uint32(rows), ctypes.c_float(self.top_p),
                  ctypes.c_uint32(count), self.seed, self.offset)
        return drawn

    def by_number(self, x: torch.Tensor) -> torch.Tensor:
        x = x / self.temperature
        rows, vocabulary = x.shape
        values = torch.empty(rows, self.top_k, dtype=x.dtype, device="cuda")
        tokens = torch.empty(rows, self.top_k, dtype=torch.int32, device="cuda")
        self.call("SortitionPeerTopK", ctypes.c_int(TYPES[x.dtype]), x, tokens, values, ctypes.c_uint32(rows),
                  ctypes.c_uint32(self.top_k), ctypes.c_uint32(vocabulary), self.row_states)
        drawn = self.top_p_of(values.float().softmax(dim=-1))
        return tokens.gather(1, drawn.view(-1, 1).long())

    def by_tensor(self, x: torch.Tensor) -> torch.Tensor:
        x = x.float() / self.temperature
        rows, vocabulary = x.shape
        k = torch.full((rows,), self.top_k, dtype=torch.int32, device="cuda")
        masked = torch.empty_like(x)
        self.call("SortitionPeerMaskTopK", x, masked, k, ctypes.c_uint32(rows), ctypes.c_uint32(vocabulary),
                  self.row_states)
        return self.top_p_of(masked.softmax(dim=-1))


def stub(name: str, **members: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__.update(members, __path__=[])
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)
    return module


def next_power_of_2(n: int) -> int:
    return 1 if n < 1 else 1 << (n - 1).bit_length()


class Platform:
    device_type = "cuda"

    def is_cuda(self) -> bool:
        return True

    def is_cuda_alike(self) -> bool:
        return True


def multiprocessors(device: int = 0) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def vllm_masker(folder: pathlib.Path) -> Callable[..., torch.Tensor]:
    """vLLM's apply_top_k_top_p_triton, from its file and the two that launch kernels, over stubs of all else."""
    # pylint: disable=import-outside-toplevel
    import contextlib

    import triton
    import triton.language

    stub("vllm")
    stub("vllm.envs", VLLM_TRITON_JIT_WARMUP_NUM_THREADS=1)
    stub("vllm.platforms", current_platform=Platform())
    stub("vllm.triton_utils", triton=triton, tl=triton.language, HAS_TRITON=True)
    stub("vllm.utils")
    stub("vllm.utils.gpu_sync_debug", gpu_sync_allowed=contextlib.nullcontext)
    stub("vllm.utils.math_utils", next_power_of_2=next_power_of_2)
    stub("vllm.utils.platform_utils", num_compute_units=multiprocessors)
    stub("vllm.model_executor")
    stub("vllm.model_executor.warmup")
    loaded: Dict[str, Any] = {}
    for name in ("jit_warmup", "jit_warmup_triton_helper", "topk_topp_triton"):
        full = f"vllm.model_executor.warmup.{name}"
        spec = importlib.util.spec_from_file_location(full, folder / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[full] = module
        spec.loader.exec_module(module)
        loaded[name] = module
    return loaded["topk_topp_triton"].apply_top_k_top_p_triton
