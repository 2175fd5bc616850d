"""The plugin's samplers for vLLM's model runner of generation 2 (vllm.py is the plugin).

The runner keeps requests in slots and their texts on the device, and tells its sampler the slot of each request. The
sampler here leaves vLLM's records, which other parts of the runner read, to vLLM's sampler, and draws in its place.
"""

from __future__ import annotations

import importlib
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy
import torch

from sortition.errors import Error
from sortition.kept import kept_sets
from sortition.vllm_common import (Drawer, Proposal, Request, make_sampler, mode_of, refuse_speculation, thinking_of,
                                   tokens_of)
from sortition.vllm_processors import Others, raw_logprobs
from sortition.vllm_stream import LateLogprobs, LateStep, StreamDrawer, remember_texts


class Slots:
    """The requests in the runner's slots, with their texts."""

    def __init__(self, states: Any, config: Any) -> None:
        self._states, self._config = states, config  # vLLM's RequestState, which assigns slots, and its configuration
        self.requests: Dict[int, Tuple[str, Request]] = {}  # by slot, with vLLM's request id

    def add(self, slot: int, params: Any, seed: Optional[int], texts: Dict[str, List[int]]) -> None:
        """Replaces the request in the slot. A request without an id only warms kernels up, and is not added.

        `texts`: of requests whose text is known here, by id.
        """
        self._drop(slot)
        name = self._states.index_to_req_id.get(slot)
        if name is None:
            return
        text, prompt = texts.pop(name, []), int(self._states.prompt_len.np[slot])
        request = Request(params, text[:prompt], text[prompt:], thinking_of(self._config))
        request.seed = seed
        self.requests[slot] = (name, request)

    def known(self, slots: List[int]) -> List[Request]:
        """Returns the requests, with the texts that were known last. Empty if no slot has a request."""
        names = self._states.index_to_req_id
        for slot in [slot for slot, (name, _) in self.requests.items() if names.get(slot) != name]:
            self._drop(slot)
        requests = [self.requests[slot][1] for slot in slots if slot in self.requests]
        if not requests:
            return []
        if len(requests) != len(slots):
            raise RuntimeError("vLLM's batch has requests that its sampler was not told of")
        return requests

    def of(self, slots: List[int]) -> List[Request]:
        """Returns the requests, with their texts updated from the device. Blocks. Empty if no slot has a request."""
        requests = self.known(slots)
        if not requests:
            return []
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


class KeptMasks:
    """The kept tokens of a batch in vLLM's form, CSR. vLLM's own class copies a wide row a token from the device."""

    def __init__(self, tokens: numpy.ndarray, offsets: numpy.ndarray, several: bool):
        self._tokens, self._offsets, self._several = tokens, offsets, several

    @classmethod
    def of(cls, rows: List[int], draws: List[Any], requests: int, slots: int) -> "KeptMasks":
        """`rows` belong to the requests with an answer. With one slot a request, the others have an empty mask."""
        sets = kept_sets(draws)
        offsets = sets.offsets
        if slots == 1 and len(rows) < requests:
            lengths = numpy.zeros(requests, dtype=numpy.int64)
            lengths[rows] = sets.counts
            offsets = numpy.concatenate(([0], numpy.cumsum(lengths)))
        return cls(sets.ids, offsets, slots > 1)

    def to_cpu_nonblocking(self) -> "KeptMasks":
        return self

    def tolists(self, num_sampled_tokens: Optional[numpy.ndarray] = None) -> Any:
        lists = importlib.import_module("vllm.v1.outputs").SamplingMaskLists
        if not self._several:
            return lists(self._tokens, self._offsets, None)
        return lists(self._tokens, self._offsets, numpy.cumsum([0, *num_sampled_tokens]).tolist())


def _refuse_options(config: Any, options: Dict[str, Any]) -> None:
    refuse_speculation(config)
    if options.get("enable_trace_replay"):
        raise NotImplementedError("enable_trace_replay has no counterpart in Sortition's plugin")


def sampler_class() -> Any:
    base = importlib.import_module("vllm.v1.worker.gpu.sample.sampler")
    outputs = importlib.import_module("vllm.v1.outputs")

    class SortitionSampler(base.Sampler):
        """vLLM's sampler, which keeps its records and its type of result, but does not draw.

        `failed` has the errors of the last batch, by vLLM's request id, or `late` is the step that has them.
        """

        def __init__(self, vllm_config: Any, **options: Any):
            _refuse_options(vllm_config, options)
            self.others = Others(options.pop("custom_logits_processors", ()))
            super().__init__(vllm_config, custom_logits_processors=self.others.processors, **options)
            self.slots = Slots(self.req_states, vllm_config)
            sampler = make_sampler()
            self.drawer = Drawer(sampler, self.logprobs_mode, kept=getattr(self, "return_sampling_mask", False))
            self.failed: Dict[str, Error] = {}
            self.late: Optional[LateStep] = None
            self.stream = StreamDrawer.make(vllm_config, self.req_states, options["device"], self.drawer, sampler)
            self._texts = remember_texts(self.req_states) if self.stream is not None else {}
            parallel = getattr(vllm_config, "parallel_config", None)
            self._alike = getattr(parallel, "tensor_parallel_size", 1) > 1

        def add_request(self, req_idx: int, sampling_params: Any) -> None:
            super().add_request(req_idx, sampling_params)
            seed = sampling_params.seed
            if seed is None and self._alike:  # the other processes of the group have the same seed
                seed = int(self.sampling_states.seeds.np[req_idx]) % 2**64
            self.slots.add(req_idx, sampling_params, seed, self._texts)

        def __call__(self, logits: torch.Tensor, input_batch: Any) -> Any:
            slots = input_batch.idx_mapping_np.tolist()
            requests = self.slots.known(slots)
            if not requests:  # a run that warms up, or measures the memory needed
                return super().__call__(logits, input_batch)
            return self.after_others(logits, input_batch, lambda changed: (
                self.draw(self.slots.of(slots), changed, input_batch) if self.stream is None else
                self._queue(slots, requests, changed, input_batch)))

        def after_others(self, logits: torch.Tensor, batch: Any, draw: Callable[[torch.Tensor], Any]) -> Any:
            """Draws from the logits that the other processors make."""
            changed = self.others.apply(logits, batch)
            output = draw(changed)
            if changed is not logits and self.logprobs_mode == "raw_logprobs":
                output.logprobs_tensors = raw_logprobs(self, logits, batch, output.sampled_token_ids)
            return output

        def _queue(self, slots: List[int], requests: List[Request], logits: torch.Tensor, batch: Any) -> Any:
            """Queues a draw for the batch's requests. Waits only for those that need the host."""
            if logits.shape[0] != len(requests):
                raise RuntimeError("vLLM's batch has other rows of logits than its requests")

            def by_host(rows: List[int]) -> List[Any]:
                drawing = self.slots.of([slots[row] for row in rows])
                answers = self.drawer.draw(drawing, logits if len(rows) == len(requests) else logits[rows])
                for request, answer in zip(drawing, answers):
                    request.output += [0] if isinstance(answer, Error) else tokens_of(answer)
                return answers

            # The others have more prompt to come. Where nothing is drafted, this bound is the length.
            ends = batch.seq_lens_cpu_upper_bound.numpy()[:len(requests)]
            whole = ends >= self.req_states.prefill_len.np[slots]
            tokens, self.late, used = self.stream.queue(
                logits, slots, [request if draws else None for request, draws in zip(requests, whole)],
                [self.slots.requests[slot][0] for slot in slots], by_host)
            dimensions = self.get_logprobs_dims(batch.idx_mapping_np)
            lengths = batch.seq_lens[:len(requests)]
            counts = (lengths >= self.req_states.prefill_len.gpu[batch.idx_mapping.long()]).to(lengths.dtype)
            return base.SamplerOutput(
                sampled_token_ids=tokens,
                logprobs_tensors=None if dimensions is None else LateLogprobs(self.late, requests, self.drawer,
                                                                              max(dimensions), used),
                num_nans=base.get_num_nans(logits) if self.compute_nans else None,
                num_sampled=counts, num_rejected=torch.zeros_like(counts))

        def draw(self, requests: List[Request], logits: torch.Tensor, batch: Any,
                 drafts: Optional[List[Proposal]] = None, slots: int = 1) -> Any:
            """Draws for the batch's requests. With `drafts` of each, verifies them into `slots` tokens a request."""
            starts = batch.cu_num_logits.tolist()
            if len(starts) != len(requests) + 1 or starts[-1] != logits.shape[0]:
                raise RuntimeError("vLLM's batch has other rows of logits than its requests")
            lengths = batch.seq_lens[:len(requests)]
            whole = lengths >= self.req_states.prefill_len.gpu[batch.idx_mapping.long()]
            rows = whole.nonzero().flatten().tolist()  # the other requests have more prompt to come
            drawing = [requests[row] for row in rows]
            places = [start + place for start, row in ((starts[row], row) for row in rows)
                      for place in range(drafts[row].positions if drafts else 1)]
            used = logits if len(places) == logits.shape[0] else logits[places]
            width = max(self.get_logprobs_dims(batch.idx_mapping_np) or (), default=None)
            draws: List[Any] = []
            sampled = numpy.zeros((len(requests), slots), dtype=numpy.int64)
            counts = numpy.zeros(len(requests), dtype=numpy.int64)
            if drafts is None and width is None and not self.drawer.kept:
                tokens, errors = self.drawer.draw_tokens(drawing, used) if rows else ((), {})
                sampled[rows, 0], counts[rows] = tokens, 1
                for request, token in zip(drawing, sampled[rows, 0].tolist()):
                    request.output.append(token)
            else:
                draws = self.drawer.draw(drawing, used,
                                         drafts=[drafts[row] for row in rows] if drafts else None) if rows else []
                errors = {place: draw for place, draw in enumerate(draws) if isinstance(draw, Error)}
                for row, request, answer in zip(rows, drawing, draws):
                    own = [0] if isinstance(answer, Error) else tokens_of(answer)
                    sampled[row, :len(own)], counts[row] = own, len(own)
                    request.output += own
            self.failed = {self.slots.requests[int(batch.idx_mapping_np[rows[place]])][0]: error
                           for place, error in errors.items()}
            num_sampled = torch.from_numpy(counts).to(lengths.device, lengths.dtype)
            given = (batch.cu_num_logits[1:] - batch.cu_num_logits[:-1]).to(lengths.dtype)
            masks = {"sampling_mask_tensors": KeptMasks.of(rows, draws, len(requests), slots)
                     } if self.drawer.kept else {}
            return base.SamplerOutput(
                sampled_token_ids=torch.from_numpy(sampled).to(logits.device),
                logprobs_tensors=self._logprobs(width, rows, drawing, draws, starts, logits),
                num_nans=base.get_num_nans(logits) if self.compute_nans else None,
                num_sampled=num_sampled, num_rejected=torch.where(whole, given - num_sampled, 0).to(lengths.dtype),
                **masks)

        def _logprobs(self, width: Optional[int], rows: List[int], requests: List[Request], draws: List[Any],
                      starts: List[int], logits: torch.Tensor) -> Any:
            if width is None:
                return None
            firsts = [starts[row] for row in rows]
            parts = self.drawer.logprobs(requests, draws, width, logits, height=logits.shape[0],
                                         firsts=firsts, starts=firsts)
            several = logits.shape[0] != len(starts) - 1
            return outputs.LogprobsTensors(
                *((part if part.is_floating_point() else part.long()).to(logits.device) for part in parts),
                **({"cu_num_generated_tokens": starts} if several else {}))

    return SortitionSampler


def rejection_sampler_class() -> Any:
    base = importlib.import_module("vllm.v1.worker.gpu.spec_decode.rejection_sampler").RejectionSampler

    class SortitionRejectionSampler(base):
        """Verifies drafts in coupled mode: the text is the one without speculation, for every drafter.

        Those that a drafter has sampled are verified with its probabilities.
        """

        def __init__(self, sampler: Any, spec_config: Any, *more: Any, **options: Any):
            super().__init__(sampler, spec_config, *more, **options)
            self.mode = mode_of(spec_config)

        def __call__(self, logits: torch.Tensor, input_batch: Any, draft_logits: Optional[torch.Tensor] = None,
                     invalid_drafts: Optional[torch.Tensor] = None) -> Any:
            sampler = self.sampler
            requests = sampler.slots.of(input_batch.idx_mapping_np.tolist())
            if not requests:  # a run that warms up, or measures the memory needed
                return super().__call__(logits, input_batch, draft_logits, invalid_drafts)
            slots, width = input_batch.idx_mapping_np.tolist(), logits.shape[1]
            drafts = [Proposal(own, self.mode, self._probabilities(slot, request, len(own), draft_logits, width))
                      for slot, request, own in zip(slots, requests, self._drafts(input_batch, invalid_drafts))]
            return sampler.after_others(logits, input_batch, lambda changed: sampler.draw(
                requests, changed, input_batch, drafts, self.num_speculative_steps + 1))

        def _probabilities(self, slot: int, request: Request, count: int, draft_logits: Optional[torch.Tensor],
                           vocabulary: int) -> Optional[torch.Tensor]:
            """Returns the logits from which the drafter sampled; None if it took the likeliest tokens."""
            if draft_logits is None or request.greedy:
                return None
            # The drafter has scaled by the temperature alone, and may know fewer tokens.
            rows = draft_logits[slot, :count, :vocabulary].float() / request.params.temperature
            return torch.nn.functional.pad(rows.softmax(-1), (0, vocabulary - rows.shape[1]))

        def _drafts(self, batch: Any, invalid: Optional[torch.Tensor]) -> List[List[int]]:
            """Returns each request's drafts, up to the first that a grammar rejects or that is no token."""
            tokens = batch.input_ids[batch.logits_indices]
            positions, places = batch.positions[batch.logits_indices], batch.expanded_local_pos
            prefill = self.sampler.req_states.prefill_len.gpu[batch.expanded_idx_mapping.long()]
            # A step that starts within the prompt has placeholders in the places of drafts.
            tokens = tokens.masked_fill((places > 0) & (positions - places < prefill), -1)
            if invalid is not None:
                tokens = tokens.masked_fill(invalid, -1)
            row, starts = tokens.tolist(), batch.cu_num_logits.tolist()
            drafts = [row[start + 1:end] for start, end in zip(starts, starts[1:])]
            return [own[:own.index(-1)] if -1 in own else own for own in drafts]

    return SortitionRejectionSampler


def _without_watermark(base: Any) -> Any:
    class WatermarkRefused(base):
        """Replaces the runner's sampler for vLLM's own watermark, and refuses it."""

        def __init__(self, *_: Any, **__: Any):
            raise NotImplementedError("watermark_config has no counterpart in Sortition's plugin")

    return WatermarkRefused


def install(runner: Any) -> None:
    """Replaces the runner's samplers, unless this was done before."""
    if getattr(runner.Sampler, "__module__", "") == __name__:
        return
    runner.Sampler, runner.RejectionSampler = sampler_class(), rejection_sampler_class()
    if hasattr(runner, "GPUWatermarkSampler"):
        runner.GPUWatermarkSampler = _without_watermark(runner.GPUWatermarkSampler)
