"""The vLLM plugin's hold on the engine: versions that it knows, and the end of a single request whose row failed.

A sampler of vLLM has no way to fail a row: an exception ends the engine for everybody. So the sampler keeps the errors,
the runner hands them over with its output, and the scheduler ends these requests with the finish reason "error".
"""

from __future__ import annotations

import functools
import importlib
from typing import Any, Dict

from sortition import interfaces, vllm_common
from sortition.errors import Error
from sortition.vllm_common import LOG

_FAILED = "sortition_failed"  # in a runner's output: messages by request id


def check_version() -> None:
    """Refuses to start under a vLLM whose inner interfaces the plugin does not know."""
    interfaces.check("vLLM", importlib.import_module("vllm").__version__, LOG)


def once(wrap: Any) -> Any:
    """Makes `wrap`, a function that wraps a function, return an already wrapped one as it is."""
    @functools.wraps(wrap)
    def wrap_once(function: Any) -> Any:
        if getattr(function, "sortition", False):
            return function
        wrapped = functools.wraps(function)(wrap(function))
        wrapped.sortition = True
        return wrapped

    return wrap_once


def _name_failed(plain: Any, failed: Dict[Any, Error]) -> None:
    setattr(plain, _FAILED, {row if isinstance(row, str) else plain.req_ids[row]: str(error)
                             for row, error in failed.items()})


def _name_later(output: Any, late: Any) -> None:
    """Makes an asynchronous output name the failed rows when its tokens are read, which waits for them."""
    get_output = output.get_output

    def with_failed() -> Any:
        plain = get_output()
        _name_failed(plain, late.failed())
        return plain

    output.get_output = with_failed


@once
def _handing_over(sample_tokens: Any) -> Any:
    def with_failed(self: Any, *arguments: Any, **options: Any) -> Any:
        output = sample_tokens(self, *arguments, **options)
        late = getattr(self.sampler, "late", None)
        if late is not None:
            self.sampler.late = None
            _name_later(output, late)
        failed: Dict[Any, Error] = getattr(self.sampler, "failed", None) or {}
        if failed:
            self.sampler.failed = {}
            # An asynchronous output has the plain one inside.
            _name_failed(next((getattr(output, name) for name in ("_model_runner_output", "model_runner_output")
                               if hasattr(output, name)), output), failed)
        return output

    return with_failed


@once
def _ending_failed(update_from_output: Any) -> Any:
    engine = importlib.import_module("vllm.v1.engine")
    request_module = importlib.import_module("vllm.v1.request")

    def with_ends(self: Any, scheduler_output: Any, output: Any, *arguments: Any, **options: Any) -> Any:
        failed = {}
        for name, message in (getattr(output, _FAILED, None) or {}).items():
            row = output.req_id_to_index.get(name)
            # A row with an unfinished prompt has no tokens; its failure does not count.
            if row is not None and output.sampled_token_ids and len(output.sampled_token_ids[row]):
                output.sampled_token_ids[row] = []
                failed[name] = message
        answers = update_from_output(self, scheduler_output, output, *arguments, **options)
        for name, message in failed.items():
            request = self.requests.get(name)
            if request is None or request.is_finished():
                continue
            LOG.error("request %s ends: %s", name, message)
            self.finish_requests(name, request_module.RequestStatus.FINISHED_ERROR)
            answers.setdefault(request.client_index, engine.EngineCoreOutputs()).outputs.append(
                engine.EngineCoreOutput(request_id=name, new_token_ids=[], stop_reason=message,
                                        finish_reason=engine.FinishReason.ERROR, events=request.take_events(),
                                        trace_headers=request.trace_headers))
        return answers

    return with_ends


def end_failed_requests(*runners: Any) -> None:
    """Makes these classes of runners hand failed rows over, and the scheduler end their requests."""
    for runner in runners:
        runner.sample_tokens = _handing_over(runner.sample_tokens)
    scheduler = importlib.import_module("vllm.v1.core.sched.scheduler").Scheduler
    scheduler.update_from_output = _ending_failed(scheduler.update_from_output)


class _Error(str):
    """The finish reason "error" of a request whose row failed, with the reason."""

    def __new__(cls, why: str) -> "_Error":
        made = super().__new__(cls, "error")
        made.why = why
        return made


@once
def _with_reason(new_output: Any) -> Any:
    def with_reason(self: Any, *arguments: Any, **options: Any) -> Any:
        output = new_output(self, *arguments, **options)
        if output.finish_reason == "error" and isinstance(output.stop_reason, str):
            output.finish_reason = _Error(output.stop_reason)
        return output

    return with_reason


@once
def _telling_reason(raise_if_error: Any) -> Any:
    kind = importlib.import_module("vllm.exceptions").GenerationError

    def telling(self: Any, finish_reason: Any, request_id: str) -> None:
        if isinstance(finish_reason, _Error):
            raise kind(finish_reason.why)
        raise_if_error(self, finish_reason, request_id)

    return telling


def tell_reasons() -> None:
    """Makes vLLM's HTTP answers to failed requests say why, in place of "Internal server error"."""
    state = importlib.import_module("vllm.v1.engine.output_processor").RequestState
    state._new_completion_output = _with_reason(state._new_completion_output)
    serving = importlib.import_module("vllm.entrypoints.generate.base.serving").GenerateBaseServing
    serving._raise_if_error = _telling_reason(serving._raise_if_error)


@once
def _serving_drafts(validate: Any) -> Any:
    del validate  # refuses min_p and logit_bias with drafts, because vLLM's own verification ignores them

    def served(self: Any, speculative_config: Any) -> None:
        del self, speculative_config

    return served


def serve_options_beside_drafts() -> None:
    """Makes vLLM admit every option with speculation: the law applies all of them to each draft."""
    params = importlib.import_module("vllm.sampling_params").SamplingParams
    params._validate_spec_decode = _serving_drafts(params._validate_spec_decode)


@once
def _admitting(validate: Any) -> Any:
    def validated(self: Any, params: Any, *arguments: Any, **options: Any) -> Any:
        vllm_common.others_configured = bool(self.model_config.logits_processors)
        # vLLM bounds its sampling masks by top-k. Kept sets of the law have no such bound.
        bounds = getattr(self.model_config, "return_sampling_mask", False) and getattr(params, "top_k", 1) <= 0
        if not bounds:
            return validate(self, params, *arguments, **options)
        given, params.top_k = params.top_k, 1
        try:
            return validate(self, params, *arguments, **options)
        finally:
            params.top_k = given

    return validated


def admit_more() -> None:
    """Makes vLLM admit requests without top-k where the engine returns sampling masks, and extra_args for others."""
    processor = importlib.import_module("vllm.v1.engine.input_processor").InputProcessor
    processor._validate_params = _admitting(processor._validate_params)


@once
def _refusing_beams(beam_search: Any) -> Any:
    def refused(self: Any, *arguments: Any, **options: Any) -> Any:
        del self, arguments, options
        kind = importlib.import_module("vllm.exceptions").VLLMValidationError
        raise kind("use_beam_search: beams have no counterpart in Sortition's plugin", parameter="use_beam_search")

    return refused


def refuse_beam_search() -> None:
    """Makes vLLM refuse beam search at a request's admission: it chooses texts by itself, from log probabilities."""
    for place in ("offline", "online"):
        module = importlib.import_module(f"vllm.entrypoints.generate.beam_search.{place}")
        mixin = getattr(module, f"BeamSearch{place.capitalize()}Mixin")
        mixin.beam_search = _refusing_beams(mixin.beam_search)
