"""Sortition under SGLang: an out-of-tree plugin that registers the sampling backend "sortition".

The wheel registers SGLang's extension point sglang.srt.plugins. It does nothing unless SORTITION_SGLANG is set, to
targets ("127.0.0.1:50051,unix:PATH"), to "in_process", or to both. Grammars and the minimum length reach the law as
masked logits, and so does what custom logit processors make of a row. The law does all else: penalties, biases,
temperature, top-p, top-k, min-p, by seed and position.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import weakref
from typing import Any, Dict, List, Optional

import torch

from sortition import interfaces
from sortition.errors import Error
from sortition.local import Sampler as LocalSampler
from sortition.logits import LogitsTransfer, sampler_of

SETTING = "SORTITION_SGLANG"
_log = logging.getLogger("sglang.sortition")  # SGLang's own loggers have its modules' names
BACKEND = "sortition"
_REQUESTS = "sortition_requests"  # of SGLang's batch: its requests, by row
# SGLang's deterministic mode gives this seed to requests without one.
_SEED_OF_DETERMINISTIC_MODE = 42
_ORDER = {"explicit": {"samplers": ["temperature", "top_p", "top_k", "min_p"]}}
# The largest vocabulary of the law: admission does not know the model's.
_LARGEST_VOCABULARY = (1 << 20) - 1


def has_penalties(params: Any) -> bool:
    return (params.repetition_penalty, params.frequency_penalty, params.presence_penalty) != (1, 0, 0)


def parameters_of(params: Any) -> Dict[str, Any]:
    """Converts SGLang's SamplingParams to fields of Sortition's.

    SGLang's penalties count the output alone. It takes top-p of the whole distribution, and top-k's tokens of that.
    """
    result: Dict[str, Any] = {}
    if has_penalties(params):
        result.update(repetition_penalty=params.repetition_penalty, frequency_penalty=params.frequency_penalty,
                      presence_penalty=params.presence_penalty, penalty_scope={"repetition_counts_prompt": False})
    if params.logit_bias:
        # "1" and "01" are one token. The last bias counts, as in SGLang.
        result["logit_bias"] = [{"token": token, "bias": bias} for token, bias in
                                {int(token): float(bias) for token, bias in params.logit_bias.items()}.items()]
    if params.top_k <= 1:  # SGLang's form of temperature 0
        return {**result, "temperature": 0.0}
    every = importlib.import_module("sglang.srt.sampling.sampling_params").TOP_K_ALL
    return {**result, "temperature": params.temperature, "top_p": params.top_p, "min_p": params.min_p,
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
        self._logits = LogitsTransfer(sampler, _log)
        self._sequences: "weakref.WeakKeyDictionary[Any, Any]" = weakref.WeakKeyDictionary()
        self._errors: "weakref.WeakKeyDictionary[Any, Error]" = weakref.WeakKeyDictionary()

    def draw(self, requests: List[Any], logits: torch.Tensor, positions: List[int]) -> List[Any]:
        """Returns a Draw for each request, or the Error that ends it. `positions`: the drawn tokens'."""
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

    def outputs(self, requests: List[Any], positions: List[int]) -> List[List[int]]:
        """Returns the drawn tokens before the positions, for requests whose penalties count them."""
        made = []
        for request, position in zip(requests, positions):
            counted = has_penalties(request.sampling_params) and request in self._sequences
            prompt = len(request.origin_input_ids)
            made.append(list(self._sequences[request].tokens[prompt:position]) if counted else [])
        return made

    def _open(self, request: Any, vocabulary: int, position: int) -> None:
        sequence = self._sequences.get(request)
        if sequence is not None and sequence.position == position:
            return
        if sequence is not None:
            getattr(sequence, "close", lambda: None)()
        output: List[int] = []
        if has_penalties(request.sampling_params):
            text = [*request.origin_input_ids, *request.output_ids][:position]
            if len(text) < position:
                raise Error(f"penalties need the {position} tokens before, of which SGLang has told {len(text)}",
                            "FAILED_PRECONDITION")
            prompt = len(request.origin_input_ids)
            where, output = {"prompt": text[:prompt]}, text[prompt:]
        else:
            where = {"start_position": position}
        kept = {"kept_set": {"tokens": True}} if request.return_sampling_mask else {}
        made = self._sampler.open(vocabulary_size=vocabulary, seed=seed_of(request, self._deterministic), **where,
                                  **parameters_of(request.sampling_params), **kept)
        if output:
            made.append(output)
        self._sequences[request] = made
        if hasattr(made, "close"):
            weakref.finalize(request, made.close)


def with_edits(logits: torch.Tensor, requests: List[Any], outputs: List[List[int]]) -> torch.Tensor:
    """Returns logits with biases and penalties, in the law's order, for log probabilities."""
    edited = logits
    for row, (request, output) in enumerate(zip(requests, outputs)):
        params = request.sampling_params
        if not params.logit_bias and not has_penalties(params):
            continue
        if edited is logits:
            edited = logits.float().clone()
        for token, bias in (params.logit_bias or {}).items():
            edited[row, int(token)] += bias
        if output and has_penalties(params):
            tokens, counts = torch.tensor(output, device=logits.device).unique(return_counts=True)
            there = edited[row, tokens]
            there = torch.where(there < 0, there * params.repetition_penalty, there / params.repetition_penalty)
            edited[row, tokens] = there - params.frequency_penalty * counts - params.presence_penalty
    return edited


def masks_of(draws: List[Any], logits: torch.Tensor, with_support: List[bool], most: int) -> Any:
    """Returns the kept sets of the draws in SGLang's form, and log probabilities over them, by SGLang's arithmetic.

    `logits`: a row for each draw, as processed and scaled by the temperature. `with_support`: whether a draw's kept
    tokens all get a log probability. More than `most` kept tokens end a request, as SGLang does it.
    """
    base = importlib.import_module("sglang.srt.layers.logits_processor")
    sets = [[] if isinstance(draw, Error) else list(draw.kept_tokens) for draw in draws]
    width = min(most, max(map(len, sets)))
    tokens = torch.zeros((len(sets), width), dtype=torch.int32)
    values = torch.zeros((len(sets), width), dtype=torch.float32)
    selected = torch.zeros(len(sets), dtype=torch.float32)
    statuses = torch.full((len(sets),), int(base.SamplingMaskStatus.OK), dtype=torch.int32)
    for row, (kept, draw) in enumerate(zip(sets, draws)):
        if not kept:  # the request has ended
            continue
        logprobs = logits[row, torch.tensor(kept, device=logits.device)].float().log_softmax(-1).cpu()
        selected[row] = logprobs[kept.index(draw.token)]
        tokens[row, :len(kept)] = torch.tensor(kept[:width])
        values[row, :len(kept)] = logprobs[:width]
        if len(kept) > most:
            statuses[row] = int(base.SamplingMaskStatus.OVERFLOW)
    device, support = logits.device, [row for row, wanted in enumerate(with_support) if wanted]
    return base.SamplingMaskOutput(
        token_ids=tokens.to(device), lengths=torch.tensor([min(len(kept), width) for kept in sets], device=device),
        selected_logprobs=selected.to(device), support_logprobs=values[support].to(device) if support else None,
        statuses=statuses.to(device))


def _refuse_config() -> None:
    """Refuses, at the engine's start, settings with which tokens are drawn elsewhere or otherwise than here."""
    arguments = importlib.import_module("sglang.srt.layers.sampler").get_server_args()
    for name in ("speculative_algorithm", "dllm_algorithm", "rl_on_policy_target", "enable_watermark"):
        if getattr(arguments, name, None):
            raise NotImplementedError(f"{name} has no counterpart in Sortition's plugin")


def _end(request: Any, position: int, error: Error) -> None:
    """Makes SGLang abort the request. Its text ends before the token that was not drawn."""
    abort = importlib.import_module("sglang.srt.managers.schedule_batch").FINISH_ABORT
    if request.to_finish is None and not request.finished():
        request.finished_len = position - len(request.origin_input_ids)
        _log.error("request %s ends: %s", request.rid, error)
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
            if logprob_logits is not None:
                raise RuntimeError("SGLang's batch has a watermark, which is refused at admission")
            if sampling_info.has_custom_logit_processor:
                base.apply_custom_logit_processor(logits, sampling_info)
            after = [int(position) + 1 for position in positions.tolist()]
            draws = self.rows.draw(requests, logits, list(after))
            for request, position, draw in zip(requests, after, draws):
                if isinstance(draw, Error):
                    _end(request, position, draw)
            tokens = torch.tensor([getattr(draw, "token", 0) for draw in draws], dtype=torch.int64,
                                  device=logits.device)
            masked = [row for row, request in enumerate(requests) if request.return_sampling_mask]
            edited = (with_edits(logits, requests, self.rows.outputs(requests, after)) if return_logprob or masked
                      else logits)
            if return_logprob:
                original = sampling_info.is_all_greedy or base.SGLANG_RETURN_ORIGINAL_LOGPROB
                scaled = edited if original else edited / sampling_info.temperatures
                self.output_logprob_processor.compute_logprobs(
                    torch.log_softmax(scaled, dim=-1), top_logprobs_nums, token_ids_logprobs,
                    tokens).write_output_to(logits_output)
            if masked:
                logits_output.sampling_mask_output = masks_of(
                    [draws[row] for row in masked], (edited / sampling_info.temperatures)[masked],
                    [requests[row].sampling_logprobs_mode == "support" for row in masked],
                    self.sampling_mask_max_tokens)
            self._sync_token_ids_across_tp(tokens, sampling_info)
            return tokens

    return SortitionSampler


def _draws_here() -> bool:
    """True if this process's sampler is the one here, so that SGLang need not change logits."""
    info = importlib.import_module("sglang.srt.sampling.sampling_batch_info")
    return info.get_exec().kernel.sampling_backend == BACKEND


def _unless_drawn_here(required: bool, *_: Any, **__: Any) -> bool:
    return required and not _draws_here()


def _told(made: Any, *arguments: Any, **options: Any) -> Any:
    """Gives a new batch its requests, by row, and takes its biases, which the law adds."""
    batch = options["batch"] if "batch" in options else arguments[1]  # the first is the class
    setattr(made, _REQUESTS, list(batch.reqs))
    if _draws_here():
        made.logit_bias = None
    return made


def _filtered(_: Any, info: Any, keep_indices: List[int], *__: Any, **___: Any) -> None:
    setattr(info, _REQUESTS, [getattr(info, _REQUESTS)[index] for index in keep_indices])


def _merged(_: Any, info: Any, other: Any) -> None:
    setattr(info, _REQUESTS, getattr(info, _REQUESTS) + getattr(other, _REQUESTS))


def _copied(made: Any, info: Any) -> Any:
    setattr(made, _REQUESTS, list(getattr(info, _REQUESTS)))
    return made


def check(params: Any) -> None:
    """Refuses parameters with which no row can be drawn, with an Error or ValueError that names the field."""
    if (params.beam_width or 1) > 1:
        raise ValueError("beam_width: beams have no counterpart in Sortition's plugin")
    if params.watermark is not None:
        raise ValueError("watermark has no counterpart in Sortition's plugin")
    LocalSampler().open(vocabulary_size=_LARGEST_VOCABULARY, **parameters_of(params))


def _admitted(_: Any, params: Any, *__: Any, **___: Any) -> None:
    """Refuses a request when SGLang checks its parameters. SGLang answers it with HTTP 400."""
    try:
        check(params)
    except Error as error:
        field = error.field.replace("open.", "").replace("parameters.", "")
        raise ValueError(f"{field} ({error.limit}): {error.message}") from None


def register() -> None:
    """Installs the plugin, as SGLang's general plugin. SGLang logs what it raises, and knows no such backend then."""
    if not os.environ.get(SETTING, ""):
        return
    interfaces.check("SGLang", importlib.import_module("sglang.version").__version__, _log)
    hooks = importlib.import_module("sglang.srt.plugins.hook_registry")
    info = "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo"
    for target, hook in ((f"{info}.from_schedule_batch", _told), (f"{info}.adjusted_filter_batch", _filtered),
                         (f"{info}.adjusted_merge_batch", _merged), (f"{info}.copy_for_forward", _copied),
                         ("sglang.srt.sampling.sampling_params.SamplingParams.verify", _admitted)):
        hooks.HookRegistry.register(target, hook, hooks.HookType.AFTER)
    for name in ("frequency", "presence", "repetition"):
        hooks.HookRegistry.register(
            f"sglang.srt.sampling.penaltylib.{name}_penalty.Batched{name.capitalize()}Penalizer._is_required",
            _unless_drawn_here, hooks.HookType.AFTER)
    importlib.import_module("sglang.srt.layers.sampler").register_sampler_backend(BACKEND, lambda: sampler_class()())
