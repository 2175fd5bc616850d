"""Sortition under SGLang: an out-of-tree plugin that registers the sampling backend "sortition".

The wheel registers SGLang's extension point sglang.srt.plugins. It does nothing unless SORTITION_SGLANG is set, to
targets ("127.0.0.1:50051,unix:PATH"), to "in_process", or to both. SGLang adds penalties, biases and grammars to the
logits; the law draws from them, by temperature, top-p, top-k, min-p, seed and position. Such a row has no history.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import weakref
from typing import Any, Dict, List, Optional

import torch

from sortition.errors import Error
from sortition.local import Sampler as LocalSampler
from sortition.logits import LogitsTransfer, sampler_of

SETTING = "SORTITION_SGLANG"
BACKEND = "sortition"
# Versions of SGLang with which the plugin is tested.
VERSIONS = ("0.5.23",)
_REQUESTS = "sortition_requests"  # of SGLang's batch: its requests, by row
# SGLang's deterministic mode gives this seed to requests without one.
_SEED_OF_DETERMINISTIC_MODE = 42
_ORDER = {"explicit": {"samplers": ["temperature", "top_p", "top_k", "min_p"]}}


def parameters_of(params: Any) -> Dict[str, Any]:
    """Converts SGLang's SamplingParams to fields of Sortition's: those that follow penalties, biases and grammars.

    SGLang takes top-p of the whole distribution, and top-k's tokens of that, which is the order here.
    """
    if params.top_k <= 1:  # SGLang's form of temperature 0
        return {"temperature": 0.0}
    every = importlib.import_module("sglang.srt.sampling.sampling_params").TOP_K_ALL
    return {"temperature": params.temperature, "top_p": params.top_p, "min_p": params.min_p,
            "top_k": 0 if params.top_k >= every else params.top_k, "chain": _ORDER}


def seed_of(request: Any, deterministic: bool) -> int:
    """Returns the request's seed modulo 2^64. Without one it follows from the request's id, alike in all ranks."""
    seed = request.sampling_params.sampling_seed
    if seed is None:
        name = hashlib.blake2b(str(request.rid).encode(), digest_size=8).digest()
        seed = _SEED_OF_DETERMINISTIC_MODE if deterministic else int.from_bytes(name, "little")
    return seed % 2**64


class Rows:
    """Sequences of SGLang's requests, each opened at its first row and again where SGLang goes back in a text."""

    def __init__(self, sampler: Any, deterministic: bool):
        self._sampler, self._deterministic = sampler, deterministic
        self._logits = LogitsTransfer(sampler)
        self._sequences: "weakref.WeakKeyDictionary[Any, Any]" = weakref.WeakKeyDictionary()
        self._errors: "weakref.WeakKeyDictionary[Any, Error]" = weakref.WeakKeyDictionary()

    def draw(self, requests: List[Any], logits: torch.Tensor, positions: List[int]) -> List[Any]:
        """Returns a Draw for each request, or the Error that ends it. `positions`: of the tokens to draw."""
        live = []
        for row, request in enumerate(requests):
            if request not in self._errors:
                try:
                    self._open(request, logits.shape[1], positions[row])
                except Error as error:
                    self._errors[request] = error
                else:
                    live.append(row)
        if live:
            moved = self._logits.move(logits)
            rows = moved if len(live) == len(requests) else [moved[row] for row in live]
            for row, answer in zip(live, self._sampler.step([self._sequences[requests[row]] for row in live], rows)):
                if isinstance(answer, Error):
                    self._errors[requests[row]] = answer
                else:
                    positions[row] = answer
        return [self._errors.get(request, positions[row]) for row, request in enumerate(requests)]

    def _open(self, request: Any, vocabulary: int, position: int) -> None:
        sequence = self._sequences.get(request)
        if sequence is not None and sequence.position == position:
            return
        if sequence is not None:
            getattr(sequence, "close", lambda: None)()
        made = self._sampler.open(vocabulary_size=vocabulary, seed=seed_of(request, self._deterministic),
                                  start_position=position, **parameters_of(request.sampling_params))
        self._sequences[request] = made
        if hasattr(made, "close"):
            weakref.finalize(request, made.close)


def _refuse_config() -> None:
    """Refuses, when the engine starts, what draws tokens elsewhere or otherwise than the sampler here."""
    arguments = importlib.import_module("sglang.srt.layers.sampler").get_server_args()
    for name in ("speculative_algorithm", "dllm_algorithm", "rl_on_policy_target", "enable_watermark"):
        if getattr(arguments, name, None):
            raise NotImplementedError(f"{name} has no counterpart in Sortition's plugin")


def _end(request: Any, position: int, error: Error) -> None:
    """Makes SGLang abort the request. Its text ends before the token that was not drawn."""
    abort = importlib.import_module("sglang.srt.managers.schedule_batch").FINISH_ABORT
    if request.to_finish is None and not request.finished():
        request.finished_len = position - len(request.origin_input_ids)
        request.to_finish = abort(str(error), 500, "SortitionError")


def sampler_class() -> Any:
    base = importlib.import_module("sglang.srt.layers.sampler")

    class SortitionSampler(base.Sampler):
        """Replaces SGLang's sampler. Log probabilities are SGLang's arithmetic, for the law's tokens."""

        def __init__(self) -> None:
            _refuse_config()
            super().__init__()
            self.rows = Rows(sampler_of(os.environ.get(SETTING, "")), self.enable_deterministic)

        def forward(self, logits_output: Any, sampling_info: Any, return_logprob: bool, top_logprobs_nums: List[int],
                    token_ids_logprobs: List[List[int]], positions: torch.Tensor, *,
                    logprob_logits: Optional[torch.Tensor] = None) -> torch.Tensor:
            requests = getattr(sampling_info, _REQUESTS, None)
            logits = logits_output.next_token_logits
            if requests is None or len(requests) != logits.shape[0]:
                raise RuntimeError("SGLang's batch has requests that Sortition's sampler was not told of")
            if logprob_logits is not None or sampling_info.sampling_mask_batch_indices is not None:
                raise RuntimeError("SGLang's batch has a watermark or a sampling mask, which are refused at admission")
            if sampling_info.has_custom_logit_processor:
                base.apply_custom_logit_processor(logits, sampling_info)
            after = [int(position) + 1 for position in positions.tolist()]
            draws = self.rows.draw(requests, logits, list(after))
            for request, position, draw in zip(requests, after, draws):
                if isinstance(draw, Error):
                    _end(request, position, draw)
            tokens = torch.tensor([getattr(draw, "token", 0) for draw in draws], dtype=torch.int64,
                                  device=logits.device)
            if return_logprob:
                original = sampling_info.is_all_greedy or base.SGLANG_RETURN_ORIGINAL_LOGPROB
                scaled = logits if original else logits / sampling_info.temperatures
                self.output_logprob_processor.compute_logprobs(
                    torch.log_softmax(scaled, dim=-1), top_logprobs_nums, token_ids_logprobs,
                    tokens).write_output_to(logits_output)
            self._sync_token_ids_across_tp(tokens, sampling_info)
            return tokens

    return SortitionSampler


def _told(made: Any, *arguments: Any, **options: Any) -> Any:
    """Gives a new batch its requests, by row."""
    batch = options["batch"] if "batch" in options else arguments[1]  # the first is the class
    setattr(made, _REQUESTS, list(batch.reqs))
    return made


def _filtered(_: Any, info: Any, keep_indices: List[int], *__: Any, **___: Any) -> None:
    setattr(info, _REQUESTS, [getattr(info, _REQUESTS)[index] for index in keep_indices])


def _merged(_: Any, info: Any, other: Any) -> None:
    setattr(info, _REQUESTS, getattr(info, _REQUESTS) + getattr(other, _REQUESTS))


def _copied(made: Any, info: Any) -> Any:
    setattr(made, _REQUESTS, list(getattr(info, _REQUESTS)))
    return made


def check(params: Any) -> None:
    """Refuses, with an Error or ValueError that names the field, what no row can be drawn with."""
    if (params.beam_width or 1) > 1:
        raise ValueError("beam_width: beams have no counterpart in Sortition's plugin")
    if params.watermark is not None:
        raise ValueError("watermark has no counterpart in Sortition's plugin")
    LocalSampler().open(vocabulary_size=2, **parameters_of(params))


def _admitted(_: Any, params: Any, *__: Any, **___: Any) -> None:
    """Refuses a request when SGLang checks its parameters. SGLang answers it with HTTP 400."""
    try:
        check(params)
    except Error as error:
        field = error.field.replace("open.", "").replace("parameters.", "")
        raise ValueError(f"{field} ({error.limit}): {error.message}") from None


def _validated(_: Any, __: Any, request: Any, *___: Any, **____: Any) -> None:
    if getattr(request, "return_sampling_mask", False):
        raise ValueError("return_sampling_mask has no counterpart in Sortition's plugin")


def register() -> None:
    """Installs the plugin, as SGLang's general plugin. SGLang logs what it raises, and knows no such backend then."""
    if not os.environ.get(SETTING, ""):
        return
    version = importlib.import_module("sglang.version").__version__
    if version not in VERSIONS:
        raise RuntimeError(f"Sortition's plugin supports SGLang {' and '.join(VERSIONS)}, not {version}")
    hooks = importlib.import_module("sglang.srt.plugins.hook_registry")
    info = "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo"
    for target, hook in ((f"{info}.from_schedule_batch", _told), (f"{info}.adjusted_filter_batch", _filtered),
                         (f"{info}.adjusted_merge_batch", _merged), (f"{info}.copy_for_forward", _copied),
                         ("sglang.srt.sampling.sampling_params.SamplingParams.verify", _admitted),
                         ("sglang.srt.managers.tokenizer_manager.TokenizerManager._validate_one_request", _validated)):
        hooks.HookRegistry.register(target, hook, hooks.HookType.AFTER)
    importlib.import_module("sglang.srt.layers.sampler").register_sampler_backend(BACKEND, lambda: sampler_class()())
