"""Sortition under vLLM: an out-of-tree plugin for its model runners of both generations.

The wheel registers two of vLLM's extension points. Both do nothing unless SORTITION_VLLM is set, to targets
("127.0.0.1:50051,unix:PATH") or to "in_process". One is a general plugin, which replaces the runner's sampler by one of
Sortition (generation 2: vllm_runner_2.py). The other is a logits processor, which changes no logits and tells
generation 1 which request is in which row. Written for vLLM 0.33. Speculative decoding and thinking budgets are refused
by name.
"""

from __future__ import annotations

import importlib
from typing import Any, Optional

import torch

from sortition.vllm_common import Drawer, make_sampler, settings, tracker_class


def _sampler_class() -> Any:
    base = importlib.import_module("vllm.v1.sample.sampler").Sampler
    outputs = importlib.import_module("vllm.v1.outputs")
    builtin = importlib.import_module("vllm.v1.sample.logits_processor")
    tracker = tracker_class()
    known = (tracker, builtin.MinPLogitsProcessor, builtin.MinTokensLogitsProcessor,
             builtin.LogitBiasLogitsProcessor)

    class SortitionSampler(base):
        """Replaces vLLM's sampler, and returns its type of result."""

        def __init__(self, logprobs_mode: str = "raw_logprobs", **options: Any):
            super().__init__(logprobs_mode, **options)
            self.drawer = Drawer(make_sampler(), logprobs_mode)

        def forward(self, logits: torch.Tensor, sampling_metadata: Any, predict_bonus_token: bool = False,
                    logprobs_mode_override: Optional[str] = None) -> Any:
            processors = list(sampling_metadata.logitsprocs.all)
            rows = next((processor.rows for processor in processors if isinstance(processor, tracker)), None)
            if rows is None or not rows.requests:  # a run that only measures the memory needed
                return super().forward(logits, sampling_metadata, predict_bonus_token, logprobs_mode_override)
            if predict_bonus_token or logprobs_mode_override or any(sampling_metadata.spec_token_ids or ()):
                raise NotImplementedError("Sortition's plugin does not do speculative decoding")
            for processor in processors:
                if not isinstance(processor, known):
                    raise NotImplementedError(f"{type(processor).__name__} has no counterpart in Sortition")
            if sampling_metadata.logprob_token_ids:
                raise NotImplementedError("logprob_token_ids has no counterpart in Sortition's plugin")
            most = sampling_metadata.max_num_logprobs
            if most is not None and most < 0:
                raise NotImplementedError("logprobs=-1: Sortition returns at most 1000 alternatives")
            draws = self.drawer.draw([rows.requests[row] for row in range(logits.shape[0])], logits)
            tokens = torch.tensor([[draw.token] for draw in draws], dtype=torch.int32, device=logits.device)
            tensors = None
            if most is not None:
                tensors = outputs.LogprobsTensors(*(part.to(logits.device)
                                                    for part in self.drawer.logprobs(draws, most)))
            return outputs.SamplerOutput(sampled_token_ids=tokens, logprobs_tensors=tensors)

    return SortitionSampler


def __getattr__(name: str) -> Any:
    """Makes the classes with vLLM's classes as bases, when they are first used."""
    makers = {"RequestTracker": tracker_class, "SortitionSampler": _sampler_class}
    if name in makers:
        globals()[name] = made = makers[name]()
        return made
    raise AttributeError(name)


def register() -> None:
    """Installs the plugin, as vLLM's general plugin. May be called several times."""
    if not settings():
        return
    importlib.import_module("vllm.v1.worker.gpu_model_runner").Sampler = importlib.import_module(
        __name__).SortitionSampler
    try:
        runner = importlib.import_module("vllm.v1.worker.gpu.model_runner")
    except ImportError:  # generation 2 does not run on this machine
        return
    importlib.import_module("sortition.vllm_runner_2").install(runner)
