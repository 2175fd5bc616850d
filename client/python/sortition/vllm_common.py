"""Parts of the vLLM plugin for both generations of vLLM's model runner (vllm.py is the plugin)."""

from __future__ import annotations

import functools
import importlib
import itertools
import logging
import os
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy
import torch

from sortition.errors import Error
from sortition.local import Sampler as LocalSampler
from sortition.logits import LogitsTransfer, sampler_of
from sortition.step import Drafts, pack_mask
from sortition.vllm_options import options_of, other_processors_installed, refusal

SETTING = "SORTITION_VLLM"
# vLLM's configuration of logs holds for it: vllm.logger.init_logger makes the same one.
LOG = logging.getLogger("vllm.sortition")
# Temperature below which vLLM draws greedily.
_GREEDY_BELOW = 1e-5
# The most alternatives of a token that the law returns.
MOST_ALTERNATIVES = 1000
# The most drafts of one step that the law verifies.
MOST_DRAFTS = 64
# The most tokens at the end of a text that vLLM does not know yet: two steps' tokens.
_MOST_UNKNOWN = 2 * (MOST_DRAFTS + 1)
# The most tokens of a history, unless a server is told another number. A longer budget never ends.
_MOST_TOKENS = 1 << 22
# Set by the plugin where the engine's configuration names other processors.
others_configured = False
# The largest vocabulary of the law: admission knows the model's no better.
_LARGEST_VOCABULARY = (1 << 20) - 1


def settings() -> str:
    return os.environ.get(SETTING, "")


def make_sampler() -> Any:
    return sampler_of(settings())


class Request:
    """A request of vLLM, from its arrival in the batch to its end: its parameters and its sequence."""

    def __init__(self, params: Any, prompt: Optional[List[int]], output: List[int],
                 thinking: Optional[Dict[str, List[int]]] = None):
        """`thinking`: thinking_of."""
        self.params = params
        self.prompt = list(prompt or ())
        self.output = output  # vLLM's own list, which grows as tokens are accepted
        self.seed = params.seed
        self.sequence: Any = None
        self.error: Optional[Error] = None  # ended the request
        self.drawn = 0  # tokens of `output` that the sequence has
        self.last_drawn: Optional[int] = None  # the history's last token, if it is known without a look at all
        self._thinking = thinking
        self.stop_tokens = sorted(getattr(params, "all_stop_token_ids", None) or ())

    @property
    def greedy(self) -> bool:
        return self.params.temperature < _GREEDY_BELOW

    def prepare(self, sampler: Any, vocabulary: int, kind: str, kept: bool) -> None:
        """Makes the sequence's history vLLM's, and opens it first. Raises Error. `kind`: of log probabilities."""
        if self.sequence is None:
            more: Dict[str, Any] = {"kept_set": {"tokens": True}} if kept else {}
            budget = getattr(self.params, "thinking_token_budget", None)
            if self._thinking and budget is not None and 0 <= budget < _MOST_TOKENS - len(self._thinking["then"]):
                more["phases"] = [{**self._thinking, "max_tokens": budget}]
            self.sequence = sampler.open(vocabulary_size=vocabulary, prompt=self.prompt, seed=seed_of(self.seed),
                                         **parameters_of(self.params, kind), **more)
        self.follow()

    def close(self) -> None:
        if self.sequence is not None:
            getattr(self.sequence, "close", lambda: None)()

    def add(self, tokens: Sequence[int]) -> None:
        """Notes the tokens that the sequence has drawn."""
        self.drawn += len(tokens)
        self.last_drawn = tokens[-1]

    def is_ready(self) -> bool:
        """True if the sequence is open, its history is vLLM's and no mask is needed. Then its next step needs no look
        at it."""
        output = self.output
        return (self.sequence is not None and self.error is None and self.drawn == len(output) and
                # -1 stands for a token that is not known yet
                (not output or output[-1] == self.last_drawn or output[-1] == -1) and
                not (self.stop_tokens and self.params.min_tokens > self.drawn))

    def follow(self) -> None:
        """Makes the sequence's history equal to vLLM's after tokens were dropped, replaced or inserted.

        Takes as long for a long text as for a short one.
        """
        output = self.output
        self.drawn = drawn = self.sequence.position - len(self.prompt)
        if any(token < 0 for token in output[-_MOST_UNKNOWN:]):  # not known yet
            return
        if drawn > len(output):
            self.sequence.truncate(len(self.prompt) + len(output))
            drawn, self.last_drawn = len(output), None
        if drawn and self.sequence.stateful and self.last_drawn != output[drawn - 1]:
            if self.sequence.tokens[-1] != output[drawn - 1]:
                self.sequence.replace_last(output[drawn - 1])
        if drawn < len(output):
            self.sequence.append(output[drawn:])
        self.drawn, self.last_drawn = len(output), output[-1] if output else None

    def mask(self, logits: torch.Tensor) -> Optional[numpy.ndarray]:
        """Returns packed masks of the next positions, which have these logits; None if all tokens are allowed."""
        positions, vocabulary = logits.shape
        stops = [token for token in self.stop_tokens if 0 <= token < vocabulary]
        banned = min(self.params.min_tokens - self.drawn, positions) if stops else 0
        if banned <= 0:
            return None
        rows = self._not_ended(logits[:banned], stops)
        if not rows:
            return None
        allowed = numpy.ones((positions, vocabulary), bool)
        allowed[numpy.ix_(rows, stops)] = False
        return pack_mask(allowed if positions > 1 else allowed[0])

    def _not_ended(self, logits: torch.Tensor, stops: List[int]) -> List[int]:
        """Returns the rows that have another token than `stops`. A grammar that has ended allows those alone."""
        only = self.params.allowed_token_ids
        if not only and getattr(self.params, "structured_outputs", None) is None:
            return list(range(len(logits)))
        possible = logits > -float("inf")
        possible[:, stops] = False
        if only:
            possible = possible[:, [token for token in only if 0 <= token < logits.shape[1]]]
        return possible.any(1).nonzero().flatten().tolist()


def seed_of(seed: Optional[int]) -> Optional[int]:
    """Returns the seed modulo 2^64, as torch's generators take negative ones."""
    if seed is not None and not -2**63 <= seed < 2**64:
        raise refusal("seed", "-2^63..2^64-1", f"{seed} is out of range")
    return None if seed is None else seed % 2**64


def check(params: Any) -> None:
    """Refuses parameters that no sequence takes or vLLM cannot serve, with an Error that names field and range."""
    if (params.logprobs or 0) > MOST_ALTERNATIVES:
        raise refusal("logprobs", f"-1..{MOST_ALTERNATIVES}", f"{params.logprobs} is out of range")
    shared = others_configured or other_processors_installed()
    LocalSampler().open(vocabulary_size=_LARGEST_VOCABULARY, seed=seed_of(params.seed),
                        **parameters_of(params, "raw", shared))


def parameters_of(params: Any, kind: str, shared: bool = True) -> Dict[str, Any]:
    """Converts vLLM's SamplingParams to fields of Sortition's. `kind` of log probabilities: "raw" or "processed".

    `shared`: other processors may read extra_args, as `check` has found out when the request was admitted.
    """
    greedy = params.temperature < _GREEDY_BELOW
    result: Dict[str, Any] = {"temperature": 0.0 if greedy else params.temperature}
    if not greedy:
        result.update(top_p=params.top_p, top_k=max(params.top_k, 0), min_p=params.min_p)
    result.update(repetition_penalty=params.repetition_penalty, frequency_penalty=params.frequency_penalty,
                  presence_penalty=params.presence_penalty)
    if params.logit_bias:
        result["logit_bias"] = [{"token": int(token), "bias": float(bias)}
                                for token, bias in params.logit_bias.items()]
    if params.allowed_token_ids:
        result["allowed_token_ids"] = sorted(set(params.allowed_token_ids))
    words = getattr(params, "bad_words_token_ids", None) or ()
    banned = sorted({word[0] for word in words if len(word) == 1})
    longer = [{"tokens": list(word)} for word in words if len(word) > 1]
    if banned:
        result["banned_token_ids"] = banned
    if longer:
        result["bad_words"] = longer
    named = getattr(params, "logprob_token_ids", None)
    if named:
        result["logprob_token_ids"] = sorted(set(named))
    if params.logprobs is not None or named:
        if params.logprobs == -1 and kind != "raw":
            raise refusal("logprobs", f"0..{MOST_ALTERNATIVES}", "all of them are there as raw_logprobs only")
        result[f"{kind}_logprobs"] = {"top": 0 if named else max(params.logprobs, 0)}
    further = options_of(getattr(params, "extra_args", None), shared)
    if banned and "banned_token_ids" in further:
        further["banned_token_ids"] = sorted({*banned, *further["banned_token_ids"]})
    return {**result, **further}


def thinking_of(config: Any) -> Optional[Dict[str, List[int]]]:
    """Returns the tags of thinking, as fields of a phase, by vLLM's configuration; None if it names none."""
    reasoning = getattr(config, "reasoning_config", None)
    begin = list(getattr(reasoning, "reasoning_start_token_ids", None) or ())
    then = list(getattr(reasoning, "reasoning_end_token_ids", None) or ())
    end = list(getattr(reasoning, "natural_reasoning_end_token_ids", None) or then)
    return {"begin": begin, "end": end, "then": then} if begin and then else None


def tokens_of(answer: Any) -> List[int]:
    """Returns the tokens that a Draw or a Verify has drawn."""
    return getattr(answer, "tokens", None) or [answer.token]


def refuse_speculation(config: Any) -> None:
    """Refuses, when the engine starts, ways of speculation that no row can be verified with."""
    speculation = getattr(config, "speculative_config", None)
    if speculation is None:
        return
    if (speculation.num_speculative_tokens or 0) > MOST_DRAFTS:
        raise NotImplementedError(f"num_speculative_tokens: Sortition verifies at most {MOST_DRAFTS} drafts of a step")
    method = getattr(speculation, "rejection_sample_method", "standard")
    if method not in ("standard", "block"):
        raise NotImplementedError(f"rejection_sample_method {method!r}: Sortition accepts only what it draws")
    if getattr(speculation, "enable_adaptive_verification", False):
        raise NotImplementedError("enable_adaptive_verification has no counterpart in Sortition's plugin")


def mode_of(speculation: Any) -> str:
    """Returns the mode that verifies a drafter's sampled drafts, from vLLM's speculative configuration."""
    return "block" if getattr(speculation, "rejection_sample_method", "standard") == "block" else "rejection"


class Proposal:
    """A request's drafts of one step, and how they are verified: coupled, unless there are the probabilities with
    which the drafter sampled them."""

    def __init__(self, tokens: List[int], mode: str = "coupled", probabilities: Optional[torch.Tensor] = None):
        """`probabilities`: [len(tokens), vocabulary]."""
        self.tokens, self._mode, self._probabilities = tokens, mode, probabilities

    @property
    def positions(self) -> int:
        return 1 + len(self.tokens)

    def task(self) -> Optional[Drafts]:
        if not self.tokens:
            return None
        if self._probabilities is None:
            return Drafts(self.tokens)
        return Drafts(self.tokens, mode=self._mode, probabilities=self._probabilities.float().cpu().contiguous())


class Rows:
    """The requests in the rows of the batch. Applies vLLM's updates in the prescribed order."""

    def __init__(self, alike: bool = False, config: Any = None) -> None:
        """`alike`: other processes draw for the same batch, and must draw the same tokens. `config`: of vLLM."""
        self._alike, self._config = alike, config
        self.requests: Dict[int, Request] = {}
        self._listed: List[Request] = []  # by `first`, until the next update

    def first(self, count: int) -> List[Request]:
        """Returns the requests in the first `count` rows."""
        if len(self._listed) != count:
            if any(row not in self.requests for row in range(count)):
                raise RuntimeError("vLLM's batch has requests that Sortition's sampler was not told of")
            self._listed = [self.requests[row] for row in range(count)]
        return self._listed

    def update(self, batch_update: Any) -> None:
        if batch_update is None:
            return
        self._listed = []
        ended = [self.requests.pop(index, None) for index in batch_update.removed]
        for index, params, prompt, output in batch_update.added:
            ended.append(self.requests.pop(index, None))
            self.requests[index] = request = Request(params, prompt, output, thinking_of(self._config))
            if self._alike and request.seed is None:
                # vLLM gives this generator the same seed in all processes of a tensor-parallel group.
                request.seed = int(numpy.random.randint(0, 2**63 - 1, dtype=numpy.int64))
        for source, target, direction in batch_update.moved:
            moved, replaced = self.requests.pop(source, None), self.requests.pop(target, None)
            if moved is not None:
                self.requests[target] = moved
            if replaced is not None and getattr(direction, "name", direction) == "SWAP":
                self.requests[source] = replaced
            elif replaced is not None:
                ended.append(replaced)
        for request in ended:
            if request is not None:
                request.close()


class Drawer:
    """Draws for a batch, from rows of logits, and makes vLLM's tensors of tokens and log probabilities."""

    def __init__(self, sampler: Any, logprobs_mode: str = "raw_logprobs", kept: bool = False):
        """`kept`: draws have the tokens that passed every filter (vLLM's sampling masks)."""
        if logprobs_mode not in ("raw_logprobs", "processed_logprobs"):
            raise ValueError(f"logprobs_mode {logprobs_mode!r} has no counterpart in Sortition")
        self._sampler = sampler
        self.logits = LogitsTransfer(sampler, LOG)
        self._kind = logprobs_mode.split("_", maxsplit=1)[0]
        self.kept = kept

    def prepare(self, request: Request, vocabulary: int) -> None:
        """As Request.prepare."""
        request.prepare(self._sampler, vocabulary, self._kind, self.kept)

    def draw(self, requests: Sequence[Request], logits: torch.Tensor, *,
             drafts: Optional[Sequence[Proposal]] = None) -> List[Any]:
        """Returns a Draw for each request, or the Error that ends it, from its row of logits.

        A request with `drafts` has a row for each draft and one more, and gets a Verify.
        """
        positions = [drafts[index].positions if drafts else 1 for index in range(len(requests))]
        self._prepare(requests, logits.shape[1])
        live = [index for index, request in enumerate(requests) if request.error is None]
        if not live:
            return [request.error for request in requests]
        starts = list(itertools.accumulate(positions, initial=0))
        masks = [requests[index].mask(logits[starts[index]:starts[index + 1]]) for index in live]
        moved = self.logits.move(logits)
        if drafts:
            moved = moved.contiguous()  # the rows of one sequence lie together
        if len(live) < len(requests):
            moved = [moved[starts[index]:starts[index + 1]] if positions[index] > 1 else moved[starts[index]]
                     for index in live]
        results = self._sampler.step(
            [requests[index].sequence for index in live], moved,
            drafts=[drafts[index].task() for index in live] if drafts else None,
            allowed=masks if any(mask is not None for mask in masks) else None)
        answers: List[Any] = [request.error for request in requests]
        for index, result in zip(live, results):
            answers[index] = result
            if isinstance(result, Error):
                requests[index].error = result
            else:
                requests[index].add(tokens_of(result))
        return answers

    def draw_tokens(self, requests: Sequence[Request], logits: torch.Tensor) -> Tuple[numpy.ndarray, Dict[int, Error]]:
        """Returns a token for each request from its row of logits, 0 where a row failed, and the errors by row."""
        if not all([request.is_ready() for request in requests]):
            draws = self.draw(requests, logits)
            return (numpy.array([getattr(draw, "token", 0) for draw in draws], numpy.int32),
                    {row: draw for row, draw in enumerate(draws) if isinstance(draw, Error)})
        tokens, errors = self._sampler.draw_tokens([request.sequence for request in requests], self.logits.move(logits))
        for request, token in zip(requests, tokens.tolist()):
            request.drawn += 1
            request.last_drawn = token
        for row, error in errors.items():
            requests[row].error = error
            tokens[row] = 0
        return tokens, errors

    def _prepare(self, requests: Sequence[Request], vocabulary: int) -> None:
        """Prepares the requests that have no error. One that cannot be prepared gets it."""
        lost: Optional[Error] = None
        for request in requests:
            if request.error is None and lost is not None and request.sequence is None:
                request.error = lost  # the others would wait as long
            if request.error is not None:
                continue
            try:
                self.prepare(request, vocabulary)
            except Error as error:
                request.error = error
                lost = error if error.code in ("UNAVAILABLE", "DEADLINE_EXCEEDED") else None

    def logprobs(self, requests: Sequence[Request], answers: Sequence[Any], width: int, logits: torch.Tensor,
                 height: Optional[int] = None, firsts: Optional[Sequence[int]] = None,
                 starts: Optional[Sequence[int]] = None) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns ids, log probabilities and ranks in vLLM's form: `height` rows, a request's rows begin at `firsts`.

        The drawn token is first, then up to `width` others: the ones named by the request, else the likeliest. Those of
        a request for all are computed from its rows of `logits`, the first of which is in `starts`. By default each
        request has one row, in order.
        """
        firsts = range(len(answers)) if firsts is None else firsts
        ids = torch.zeros((len(answers) if height is None else height, width + 1), dtype=torch.int32)
        values = torch.full(ids.shape, -float("inf"))
        ranks = torch.zeros(ids.shape[0], dtype=torch.int32)
        whole: Dict[int, int] = {}  # rows for all tokens, with their rows of logits
        for index, (request, answer) in enumerate(zip(requests, answers)):
            for slot, (token, part) in enumerate(self._parts(answer)):
                row, others, theirs = firsts[index] + slot, [], []
                named = getattr(request.params, "logprob_token_ids", None)
                if named:
                    by_id = dict(zip(sorted(set(named)), part.requested_logprobs))
                    others, theirs = list(named), [by_id[other] for other in named]
                elif request.params.logprobs == -1:
                    whole[row] = (starts[index] if starts else index) + slot
                else:
                    others, theirs = part.top_tokens, part.top_logprobs
                count = 1 + len(others)
                ids[row, :count] = torch.tensor([token, *others], dtype=torch.int32)
                values[row, :count] = torch.tensor([part.logprob, *theirs])
                ranks[row] = part.rank
        if whole:
            every = logits[list(whole.values())].float().log_softmax(-1).sort(descending=True, stable=True)
            ids[list(whole), 1:1 + logits.shape[1]] = every.indices.to("cpu", torch.int32)
            values[list(whole), 1:1 + logits.shape[1]] = every.values.cpu()
        return ids, values, ranks

    def _parts(self, answer: Any) -> List[Tuple[int, Any]]:
        """Returns the tokens of an answer with their log probabilities. Empty if it has none."""
        part = getattr(answer, self._kind, None)
        if part is None or isinstance(answer, Error):
            return []
        return list(zip(answer.tokens, part)) if isinstance(part, list) else [(answer.token, part)]


def _interfaces() -> List[Any]:
    """Returns the base classes of logits processors for the generations of runners that this vLLM has."""
    found = []
    for name in ("vllm.v1.sample.logits_processor", "vllm.v1.worker.gpu.sample.logits_processor"):
        try:
            found.append(importlib.import_module(name).LogitsProcessor)
        except ImportError:
            continue
    return found


@functools.lru_cache(maxsize=None)
def tracker_class() -> Any:
    """Returns the class of the logits processor. It is made at the first call, because its bases are vLLM's."""
    class RequestTracker(*_interfaces()):  # type: ignore[misc]
        """Changes no logits. Derives from the bases of all generations, which refuse to start with another kind."""

        def __init__(self, vllm_config: Any, device_or_states: Any, is_pin_memory: bool = False):
            del device_or_states, is_pin_memory
            parallel = getattr(vllm_config, "parallel_config", None)
            alike = getattr(parallel, "tensor_parallel_size", 1) > 1
            self.rows = Rows(alike, vllm_config) if settings() else None

        @classmethod
        def validate_params(cls, sampling_params: Any) -> None:
            """Refuses a request at its admission. vLLM answers it with HTTP 400."""
            if not settings():
                return
            try:
                check(sampling_params)
            except Error as error:
                field = error.field.replace("open.", "").replace("parameters.", "")
                kind = importlib.import_module("vllm.exceptions").VLLMValidationError
                limit = f" ({error.limit})" if error.limit else ""
                raise kind(f"{field}{limit}: {error.message}", parameter=field) from None

        def apply(self, logits: torch.Tensor, context: Any = None) -> torch.Tensor:
            del context
            return logits

        def is_argmax_invariant(self) -> bool:
            return True

        def update_state(self, batch_update: Any) -> None:
            if self.rows is not None:
                self.rows.update(batch_update)

        def add_request(self, slot: int, params: Any) -> bool:
            """Called by generation 2. Returns whether logits are to be changed."""
            del slot, params
            return False

    return RequestTracker
