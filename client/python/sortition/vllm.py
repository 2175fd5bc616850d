"""Sortition under vLLM: an out-of-tree plugin for its model runners of both generations.

The wheel registers two of vLLM's extension points. Both do nothing unless SORTITION_VLLM is set, to targets
("127.0.0.1:50051,unix:PATH"), to "in_process", or to both. One is a general plugin, which replaces the runner's
samplers by those of Sortition (generation 2: vllm_runner_2.py). The other is a logits processor, which changes no
logits, refuses requests at their admission, and tells generation 1 which request is in which row.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any, Dict, List, Optional

import numpy
import torch

from sortition.errors import Error
from sortition.vllm_common import (Drawer, Proposal, Request, Rows, make_sampler, mode_of, refuse_speculation, settings,
                                   tokens_of, tracker_class)
from sortition.vllm_engine import (admit_more, check_version, end_failed_requests, once, refuse_beam_search,
                                   serve_options_beside_drafts, tell_reasons)
from sortition.vllm_processors import after_others


@functools.lru_cache(maxsize=1)  # a runner has the same ones at each step
def _rows_of(processors: Any) -> Optional[Rows]:
    """Returns the plugin's rows; None for a run that only measures the memory needed, and has no processors."""
    every = list(processors.all)
    rows = next((processor.rows for processor in every if isinstance(processor, tracker_class())), None)
    if every and rows is None:
        raise RuntimeError("vLLM's batch lacks Sortition's processor, so that its sampler was not told of requests")
    return rows


def _requests_of(metadata: Any, count: int) -> Optional[List[Request]]:
    """Returns the requests in the batch's rows; None for a run that only measures the memory needed."""
    rows = _rows_of(metadata.logitsprocs)
    if rows is None or not rows.requests:
        return None
    # The law has the seeds. vLLM turns these back where a prompt is read in parts, which ends the engine on a CPU.
    metadata.generators.clear()
    return rows.first(count)


def _width_of(metadata: Any) -> Optional[int]:
    """Returns the most alternatives of a row for which the batch requests log probabilities; None without any."""
    named = getattr(metadata, "logprob_token_ids", None)
    widths = [*map(len, named.values())] if named else []
    if metadata.max_num_logprobs is not None:
        widths.append(metadata.max_num_logprobs)
    return max(widths, default=None)


def _errors(answers: List[Any]) -> Dict[int, Error]:
    return {row: answer for row, answer in enumerate(answers) if isinstance(answer, Error)}


def _sampler_class() -> Any:
    base = importlib.import_module("vllm.v1.sample.sampler").Sampler
    outputs = importlib.import_module("vllm.v1.outputs")

    class SortitionSampler(base):
        """Replaces vLLM's sampler, and returns its type of result. `failed` has the errors of the last batch's rows."""

        def __init__(self, logprobs_mode: str = "raw_logprobs", **options: Any):
            super().__init__(logprobs_mode, **options)
            self.drawer = Drawer(make_sampler(), logprobs_mode)
            self.failed: Dict[int, Error] = {}

        @after_others
        def forward(self, logits: torch.Tensor, sampling_metadata: Any, predict_bonus_token: bool = False,
                    logprobs_mode_override: Optional[str] = None) -> Any:
            requests = _requests_of(sampling_metadata, logits.shape[0])
            if requests is None:
                return super().forward(logits, sampling_metadata, predict_bonus_token, logprobs_mode_override)
            width = _width_of(sampling_metadata)
            logprobs = None
            if width is None:
                tokens, self.failed = self.drawer.draw_tokens(requests, logits)
            else:
                draws = self.drawer.draw(requests, logits)
                self.failed = _errors(draws)
                tokens = numpy.array([getattr(draw, "token", 0) for draw in draws], numpy.int32)
                logprobs = self.logprobs_of(width, requests, draws, logits)
            return outputs.SamplerOutput(sampled_token_ids=torch.from_numpy(tokens).unsqueeze(1).to(logits.device),
                                         logprobs_tensors=logprobs)

        def logprobs_of(self, width: Optional[int], requests: List[Request], answers: List[Any], logits: torch.Tensor,
                        **shape: Any) -> Any:
            if width is None:
                return None
            parts = self.drawer.logprobs(requests, answers, width, logits, **shape)
            return outputs.LogprobsTensors(*(part.to(logits.device) for part in parts))

    return SortitionSampler


def _rejection_sampler_class() -> Any:
    base = importlib.import_module("vllm.v1.sample.rejection_sampler").RejectionSampler
    outputs = importlib.import_module("vllm.v1.outputs")

    class SortitionRejectionSampler(base):
        """Verifies drafts in coupled mode: the text is the one without speculation, for every drafter.

        Those that a drafter has sampled are verified with its probabilities.
        """

        def __init__(self, sampler: Any, spec_config: Any = None, *more: Any, **options: Any):
            super().__init__(sampler, spec_config, *more, **options)
            self.mode = mode_of(spec_config)

        def forward(self, metadata: Any, draft_probs: Optional[torch.Tensor], logits: torch.Tensor,
                    sampling_metadata: Any) -> Any:
            counts = list(metadata.num_draft_tokens)
            requests = _requests_of(sampling_metadata, len(counts))
            if requests is None:
                return super().forward(metadata, draft_probs, logits, sampling_metadata)
            proposed, starts, rows = metadata.draft_token_ids.tolist(), [], []
            drafts: List[Proposal] = []
            for request, count in zip(requests, counts):
                first = sum(counts[:len(starts)])
                start, own = first + len(starts), proposed[first:first + count]
                # vLLM replaces drafts that a grammar does not allow by -1.
                own = own[:own.index(-1)] if -1 in own else own
                sampled = draft_probs is not None and not request.greedy
                drafts.append(Proposal(own, self.mode, draft_probs[first:first + len(own)] if sampled else None))
                starts.append(start)
                rows += range(start, start + len(own) + 1)
            used = logits if len(rows) == logits.shape[0] else logits[torch.tensor(rows, device=logits.device)]
            answers = self.sampler.drawer.draw(requests, used, drafts=drafts)
            self.sampler.failed = _errors(answers)
            slots = metadata.max_spec_len + 1
            tokens = torch.full((len(requests), slots), -1, dtype=torch.int32)
            for row, answer in enumerate(answers):
                drawn = [0] if isinstance(answer, Error) else tokens_of(answer)
                tokens[row, :len(drawn)] = torch.tensor(drawn, dtype=torch.int32)
            return outputs.SamplerOutput(
                sampled_token_ids=tokens.to(logits.device),
                logprobs_tensors=self.sampler.logprobs_of(
                    _width_of(sampling_metadata), requests, answers, logits, height=len(requests) * slots,
                    firsts=range(0, len(requests) * slots, slots), starts=starts))

    return SortitionRejectionSampler


def __getattr__(name: str) -> Any:
    """Makes the classes with vLLM's classes as bases, when they are first used."""
    makers = {"RequestTracker": tracker_class, "SortitionSampler": _sampler_class,
              "SortitionRejectionSampler": _rejection_sampler_class}
    if name in makers:
        globals()[name] = made = makers[name]()
        return made
    raise AttributeError(name)


@once
def _with_tracker(build: Any) -> Any:
    """Makes vLLM build the tracker in all cases: with speculation it builds no installed processors."""
    def build_logitsprocs(vllm_config: Any, device: Any, is_pin_memory: bool, is_pooling_model: bool,
                          *more: Any, **options: Any) -> Any:
        made = build(vllm_config, device, is_pin_memory, is_pooling_model, *more, **options)
        if is_pooling_model:
            return made
        refuse_speculation(vllm_config)
        if not any(isinstance(processor, tracker_class()) for processor in made.all):
            made.argmax_invariant.append(tracker_class()(vllm_config, device, is_pin_memory))
        return made

    return build_logitsprocs


def register() -> None:
    """Installs the plugin, as vLLM's general plugin. May be called several times."""
    if not settings():
        return
    check_version()
    own = importlib.import_module(__name__)
    runner_1 = importlib.import_module("vllm.v1.worker.gpu_model_runner")
    runner_1.Sampler, runner_1.RejectionSampler = own.SortitionSampler, own.SortitionRejectionSampler
    runner_1.build_logitsprocs = _with_tracker(runner_1.build_logitsprocs)
    runners = [runner_1.GPUModelRunner]
    try:
        runner_2 = importlib.import_module("vllm.v1.worker.gpu.model_runner")
    except ImportError:  # generation 2 does not run on this machine
        pass
    else:
        importlib.import_module("sortition.vllm_runner_2").install(runner_2)
        runners.append(runner_2.GPUModelRunner)
    end_failed_requests(*runners)
    tell_reasons()
    refuse_beam_search()
    serve_options_beside_drafts()
    admit_more()
