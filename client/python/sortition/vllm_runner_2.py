"""The plugin's sampler for vLLM's model runner of generation 2 (vllm.py is the plugin).

The runner keeps requests in slots and their texts on the device, and tells its sampler the slot of each request. The
sampler here leaves vLLM's records, which other parts of the runner read, to vLLM's sampler, and draws in its place.
"""

from __future__ import annotations

import importlib
from typing import Any, Dict, List, Optional, Tuple

import torch

from sortition.vllm_common import Drawer, Request, make_sampler, tracker_class


class Slots:
    """The requests in the runner's slots, with their texts."""

    def __init__(self, states: Any) -> None:
        self._states = states  # vLLM's RequestState, which assigns slots
        self.requests: Dict[int, Tuple[str, Request]] = {}  # by slot, with vLLM's request id

    def add(self, slot: int, params: Any, seed: Optional[int]) -> None:
        """Replaces the request in the slot. A request without an id only warms kernels up, and is not added."""
        self._drop(slot)
        name = self._states.index_to_req_id.get(slot)
        if name is None:
            return
        request = Request(params, None, [])
        request.seed = seed
        self.requests[slot] = (name, request)

    def of(self, slots: List[int]) -> List[Request]:
        """Returns the requests, with their texts updated from the device. Blocks. Empty if no slot has a request."""
        names = self._states.index_to_req_id
        for slot in [slot for slot, (name, _) in self.requests.items() if names.get(slot) != name]:
            self._drop(slot)
        requests = [self.requests[slot][1] for slot in slots if slot in self.requests]
        if not requests:
            return []
        if len(requests) != len(slots):
            raise RuntimeError("vLLM's batch has requests that its sampler was not told of")
        texts = self._states.all_token_ids.gpu
        where = torch.tensor(slots, device=texts.device)
        lengths = self._states.total_len.gpu[where].long()
        ends = texts[where, lengths - 1]
        for slot, request, length, end in zip(slots, requests, lengths.tolist(), ends.tolist()):
            text = [*request.prompt[-1:], *request.output[-1:]]
            if length != len(request.prompt) + len(request.output) or end != text[-1]:
                whole = texts[slot, :length].tolist()
                prompt = int(self._states.prompt_len.np[slot])
                request.prompt = whole[:prompt]
                request.output[:] = whole[prompt:]
        return requests

    def _drop(self, slot: int) -> None:
        _, request = self.requests.pop(slot, (None, None))
        if request is not None:
            request.close()


def _refuse_options(config: Any, options: Dict[str, Any], tracker: Any) -> None:
    refused = [name for name in ("enable_trace_replay", "return_sampling_mask") if options.get(name)]
    if getattr(config, "speculative_config", None) is not None:
        refused.append("speculative decoding")
    refused += [type(processor).__name__ for processor in options.get("custom_logits_processors", ())
                if not isinstance(processor, tracker)]
    if refused:
        raise NotImplementedError(f"{refused[0]} has no counterpart in Sortition's plugin")


def _refuse_params(params: Any) -> None:
    if getattr(params, "logprob_token_ids", None):
        raise NotImplementedError("logprob_token_ids has no counterpart in Sortition's plugin")
    if params.logprobs is not None and params.logprobs < 0:
        raise NotImplementedError("logprobs=-1: Sortition returns at most 1000 alternatives")


def sampler_class() -> Any:
    base = importlib.import_module("vllm.v1.worker.gpu.sample.sampler")
    outputs = importlib.import_module("vllm.v1.outputs")
    tracker = tracker_class()

    class SortitionSampler(base.Sampler):
        """vLLM's sampler, which keeps its records and its type of result, but does not draw."""

        def __init__(self, vllm_config: Any, **options: Any):
            _refuse_options(vllm_config, options, tracker)
            super().__init__(vllm_config, **options)
            self.slots = Slots(self.req_states)
            self.drawer = Drawer(make_sampler(), self.logprobs_mode)
            parallel = getattr(vllm_config, "parallel_config", None)
            self._alike = getattr(parallel, "tensor_parallel_size", 1) > 1

        def add_request(self, req_idx: int, sampling_params: Any) -> None:
            _refuse_params(sampling_params)
            super().add_request(req_idx, sampling_params)
            seed = sampling_params.seed
            if seed is None and self._alike:  # the other processes of the group have the same seed
                seed = int(self.sampling_states.seeds.np[req_idx]) % 2**64
            self.slots.add(req_idx, sampling_params, seed)

        def __call__(self, logits: torch.Tensor, input_batch: Any) -> Any:
            indices = input_batch.idx_mapping_np
            requests = self.slots.of(indices.tolist())
            if not requests:  # a run that warms up, or measures the memory needed
                return super().__call__(logits, input_batch)
            if logits.shape[0] != len(requests):
                raise NotImplementedError("Sortition's plugin does not do speculative decoding")
            lengths = input_batch.seq_lens[:len(requests)]
            whole = lengths >= self.req_states.prefill_len.gpu[input_batch.idx_mapping.long()]
            rows = whole.nonzero().flatten().tolist()  # the other requests have more prompt to come
            drawing = [requests[row] for row in rows]
            draws = self.drawer.draw(drawing, logits if len(rows) == len(requests) else logits[rows]) if rows else []
            for request, draw in zip(drawing, draws):
                request.output.append(draw.token)
            sampled = torch.zeros((len(requests), 1), dtype=torch.int64)
            sampled[rows, 0] = torch.tensor([draw.token for draw in draws], dtype=torch.int64)
            return base.SamplerOutput(
                sampled_token_ids=sampled.to(logits.device),
                logprobs_tensors=self._logprobs(rows, draws, indices, logits.device),
                num_nans=base.get_num_nans(logits) if self.compute_nans else None,
                num_sampled=whole.to(lengths.dtype), num_rejected=torch.zeros_like(lengths))

        def _logprobs(self, rows: List[int], draws: List[Any], indices: Any, device: Any) -> Any:
            dimensions = self.get_logprobs_dims(indices)
            if dimensions is None:
                return None
            parts = []
            for part in self.drawer.logprobs(draws, dimensions[0]):
                whole = torch.zeros((len(indices), *part.shape[1:]), dtype=part.dtype)
                whole[rows] = part
                parts.append((whole if part.is_floating_point() else whole.long()).to(device))
            return outputs.LogprobsTensors(*parts)

    return SortitionSampler


def _without_watermark(base: Any) -> Any:
    class WatermarkRefused(base):
        """Replaces the runner's sampler for vLLM's own watermark, and refuses it."""

        def __init__(self, *_: Any, **__: Any):
            raise NotImplementedError("watermark_config has no counterpart in Sortition's plugin")

    return WatermarkRefused


def install(runner: Any) -> None:
    """Replaces the runner's sampler, unless this was done before."""
    if getattr(runner.Sampler, "__module__", "") == __name__:
        return
    runner.Sampler = sampler_class()
    if hasattr(runner, "GPUWatermarkSampler"):
        runner.GPUWatermarkSampler = _without_watermark(runner.GPUWatermarkSampler)
