"""The plugin's sampler for vLLM's model runner of generation 2 (vllm.py is the plugin).

The runner keeps requests in slots and their texts on the device, and tells its sampler the slot of each request. The
sampler here leaves vLLM's records, which other parts of the runner read, to vLLM's sampler, and draws in its place.
"""

from __future__ import annotations

import importlib
from typing import Any, Dict, List, Optional, Tuple

import torch

from sortition.errors import Error
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
    refused = [name for name in ("enable_trace_replay",) if options.get(name)]
    if getattr(config, "speculative_config", None) is not None:
        refused.append("speculative decoding")
    refused += [type(processor).__name__ for processor in options.get("custom_logits_processors", ())
                if not isinstance(processor, tracker)]
    if refused:
        raise NotImplementedError(f"{refused[0]} has no counterpart in Sortition's plugin")


def sampler_class() -> Any:
    base = importlib.import_module("vllm.v1.worker.gpu.sample.sampler")
    context = importlib.import_module("vllm.v1.worker.gpu.sample.logits_processor.interface").LogitsContext
    outputs = importlib.import_module("vllm.v1.outputs")
    tracker = tracker_class()

    class SortitionSampler(base.Sampler):
        """vLLM's sampler, which keeps its records and its type of result, but does not draw.

        `failed` has the errors of the last batch, by vLLM's request id.
        """

        def __init__(self, vllm_config: Any, **options: Any):
            _refuse_options(vllm_config, options, tracker)
            super().__init__(vllm_config, **options)
            self.slots = Slots(self.req_states)
            self.drawer = Drawer(make_sampler(), self.logprobs_mode, kept=getattr(self, "return_sampling_mask", False))
            self.failed: Dict[str, Error] = {}
            parallel = getattr(vllm_config, "parallel_config", None)
            self._alike = getattr(parallel, "tensor_parallel_size", 1) > 1

        def add_request(self, req_idx: int, sampling_params: Any) -> None:
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
            used = logits if len(rows) == len(requests) else logits[rows]
            forced = self._forced(logits, input_batch, rows)
            draws = self.drawer.draw(drawing, used, forced=forced) if rows else []
            self.failed = {self.slots.requests[int(indices[row])][0]: draw
                           for row, draw in zip(rows, draws) if isinstance(draw, Error)}
            sampled = torch.zeros((len(requests), 1), dtype=torch.int64)
            for row, request, draw in zip(rows, drawing, draws):
                sampled[row, 0] = getattr(draw, "token", 0)
                request.output.append(int(sampled[row, 0]))
            masks = self._masks(len(requests), rows, draws, logits) if self.drawer.kept else None
            return base.SamplerOutput(
                sampled_token_ids=sampled.to(logits.device),
                logprobs_tensors=self._logprobs(rows, drawing, draws, indices, used),
                num_nans=base.get_num_nans(logits) if self.compute_nans else None,
                num_sampled=whole.to(lengths.dtype), num_rejected=torch.zeros_like(lengths),
                **({"sampling_mask_tensors": masks} if masks is not None else {}))

        def _logprobs(self, rows: List[int], requests: List[Request], draws: List[Any], indices: Any,
                      logits: torch.Tensor) -> Any:
            dimensions = self.get_logprobs_dims(indices)
            if dimensions is None:
                return None
            parts = []
            for part in self.drawer.logprobs(requests, draws, max(dimensions), logits):
                whole = torch.zeros((len(indices), *part.shape[1:]), dtype=part.dtype)
                whole[rows] = part
                parts.append((whole if part.is_floating_point() else whole.long()).to(logits.device))
            return outputs.LogprobsTensors(*parts)

        def _forced(self, logits: torch.Tensor, batch: Any, rows: List[int]) -> Dict[int, int]:
            """Returns the tokens, by place in `rows`, that vLLM forces because a thinking budget is spent."""
            state = self.thinking_budget_state
            if not state.enabled or not state.use_thinking_budget[batch.idx_mapping_np].any():
                return {}
            probe = torch.zeros(logits.shape, device=logits.device)
            state.apply(probe, context(
                expanded_idx_mapping=batch.expanded_idx_mapping, idx_mapping=batch.idx_mapping,
                idx_mapping_np=batch.idx_mapping_np, expanded_local_pos=batch.expanded_local_pos,
                input_ids=batch.input_ids[batch.logits_indices], pos=batch.positions[batch.logits_indices],
                seq_lens_upper_bound_np=batch.seq_lens_cpu_upper_bound.numpy()))
            changed = set(probe.ne(0).any(-1).nonzero().flatten().tolist())
            return {place: int(probe[row].argmax()) for place, row in enumerate(rows) if row in changed}

        def _masks(self, count: int, rows: List[int], draws: List[Any], logits: torch.Tensor) -> Any:
            """Returns the kept tokens of each row in vLLM's form, which makes CSR of them."""
            kept: List[List[int]] = [[] for _ in range(count)]
            for row, draw in zip(rows, draws):
                kept[row] = list(getattr(draw, "kept_tokens", ()))
            widest = max(map(len, kept))
            tokens = torch.zeros((count, widest), dtype=torch.int32)
            for row, ids in enumerate(kept):
                tokens[row, :len(ids)] = torch.tensor(ids, dtype=torch.int32)
            counts = torch.tensor([len(ids) for ids in kept], dtype=torch.int32)
            # The packed form is for rows that are wider than `tokens`: here none is.
            packed = torch.zeros((count, 0), dtype=torch.uint8)
            return base.SamplingMaskTensors(*(part.to(logits.device) for part in (tokens, packed, counts)),
                                            logits.shape[1])

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
