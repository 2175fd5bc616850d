"""Other logits processors beside the vLLM plugin: they change the logits, and the law draws from what they made.

They run before biases, penalties and temperature. Raw log probabilities are of the logits before them, as under vLLM
alone, in vLLM's arithmetic.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any, List, Optional, Set

import torch

from sortition.vllm_common import tracker_class


def _float_copy(logits: torch.Tensor) -> torch.Tensor:
    """Returns what processors of vLLM get: f32 that they may change in place."""
    return torch.empty_like(logits, dtype=torch.float32).copy_(logits)


# --- generation 1

@functools.lru_cache(maxsize=1)  # a runner has the same ones at each step
def _others(processors: Any) -> List[Any]:
    """Returns the processors in vLLM's order, without this plugin's and those of options that the law has."""
    builtin = importlib.import_module("vllm.v1.sample.logits_processor")
    known = (tracker_class(), builtin.MinPLogitsProcessor, builtin.MinTokensLogitsProcessor,
             builtin.LogitBiasLogitsProcessor)
    return [processor for processor in (*processors.non_argmax_invariant, *processors.argmax_invariant)
            if not isinstance(processor, known)]


def after_others(forward: Any) -> Any:
    """Makes a sampler's `forward` draw from the logits that the other processors of its batch have made."""
    @functools.wraps(forward)
    def after(self: Any, logits: torch.Tensor, sampling_metadata: Any, *arguments: Any, **options: Any) -> Any:
        others = _others(sampling_metadata.logitsprocs)
        if not others:
            return forward(self, logits, sampling_metadata, *arguments, **options)
        changed = _float_copy(logits)
        for processor in others:
            changed = processor.apply(changed)
        output = forward(self, changed, sampling_metadata, *arguments, **options)
        if output.logprobs_tensors is not None and self.logprobs_mode == "raw_logprobs":
            output.logprobs_tensors = _raw_logprobs(self, logits, sampling_metadata, output.sampled_token_ids)
        return output

    return after


def _raw_logprobs(sampler: Any, logits: torch.Tensor, metadata: Any, tokens: torch.Tensor) -> Any:
    raw, drawn = sampler.compute_logprobs(logits), tokens[:, 0].long()
    if getattr(metadata, "logprob_token_ids", None):
        return sampler.gather_specific_token_logprobs(raw, metadata.logprob_token_ids, drawn)
    return sampler.gather_logprobs(raw, metadata.max_num_logprobs, token_ids=drawn)


# --- generation 2

class _Asked:
    """Another processor, which remembers the slots whose logits it wants to change."""

    def __init__(self, processor: Any):
        self._processor = processor
        self.slots: Set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._processor, name)

    def add_request(self, slot: int, params: Any) -> bool:
        wants = self._processor.add_request(slot, params)
        (self.slots.add if wants else self.slots.discard)(slot)
        return wants


class Others:
    """The other processors of a sampler. Its `processors` are to be given to vLLM's sampler in their place."""

    def __init__(self, processors: Any):
        self.processors = [processor if isinstance(processor, tracker_class()) else _Asked(processor)
                           for processor in processors]
        self._others = [processor for processor in self.processors if isinstance(processor, _Asked)]

    def apply(self, logits: torch.Tensor, batch: Any) -> torch.Tensor:
        """Returns the logits that they make; the same ones if none wants to change a request of the batch."""
        slots = set(batch.idx_mapping_np.tolist())
        if not any(other.slots & slots for other in self._others):
            return logits
        interface = importlib.import_module("vllm.v1.worker.gpu.sample.logits_processor")
        context = interface.LogitsContext(
            expanded_idx_mapping=batch.expanded_idx_mapping, idx_mapping=batch.idx_mapping,
            idx_mapping_np=batch.idx_mapping_np, expanded_local_pos=batch.expanded_local_pos,
            input_ids=batch.input_ids[batch.logits_indices], pos=batch.positions[batch.logits_indices],
            seq_lens_upper_bound_np=batch.seq_lens_cpu_upper_bound.numpy())
        changed = _float_copy(logits)
        for other in self._others:
            changed = other.apply(changed, context)
        return changed


def raw_logprobs(sampler: Any, logits: torch.Tensor, batch: Any, tokens: torch.Tensor) -> Optional[Any]:
    """Returns log probabilities of the logits before processors, in vLLM's form; None if the batch requests none.

    `tokens`: drawn, [requests, slots].
    """
    dimensions = sampler.get_logprobs_dims(batch.idx_mapping_np)
    if dimensions is None:
        return None
    starts = batch.cu_num_logits.long()
    requests = torch.arange(len(tokens), device=starts.device).repeat_interleave(starts[1:] - starts[:-1])
    drawn = tokens[requests, batch.expanded_local_pos[:logits.shape[0]].long()]
    several = logits.shape[0] != len(tokens)
    scores = importlib.import_module("vllm.v1.worker.gpu.sample.logprob")
    return scores.compute_topk_scores(
        logits, dimensions[0], drawn, starts.tolist() if several else None,
        logprob_token_ids_state=sampler.logprob_token_ids_state, expanded_idx_mapping=batch.expanded_idx_mapping,
        max_per_req_token_ids=dimensions[1])
