"""Parts of the vLLM plugin for both generations of vLLM's model runner (vllm.py is the plugin)."""

from __future__ import annotations

import functools
import importlib
import os
from typing import Any, Dict, List, Optional

import numpy
import torch

from sortition.client import Client
from sortition.errors import Error
from sortition.local import Sampler as LocalSampler
from sortition.logits import LogitsTransfer
from sortition.step import pack_mask

SETTING = "SORTITION_VLLM"
# Temperature below which vLLM draws greedily.
_GREEDY_BELOW = 1e-5


def settings() -> str:
    return os.environ.get(SETTING, "")


def make_sampler() -> Any:
    targets = settings()
    return LocalSampler() if targets == "in_process" else Client(targets.split(","))


class Request:
    """A request of vLLM, from its arrival in the batch to its end: its parameters and its sequence."""

    def __init__(self, params: Any, prompt: Optional[List[int]], output: List[int]):
        self.params = params
        self.prompt = list(prompt or ())
        self.output = output  # vLLM's own list, which grows as tokens are accepted
        self.seed = params.seed
        self.sequence: Any = None
        self.stop_tokens = sorted(getattr(params, "all_stop_token_ids", None) or ())
        self.parameters = parameters_of(params)

    def open(self, sampler: Any, vocabulary: int) -> None:
        self.sequence = sampler.open(vocabulary_size=vocabulary, prompt=self.prompt, seed=self.seed, **self.parameters)
        self.follow()

    def close(self) -> None:
        if self.sequence is not None:
            getattr(self.sequence, "close", lambda: None)()

    def follow(self) -> None:
        """Makes the sequence's history equal to vLLM's after tokens were dropped, replaced or inserted."""
        accepted = [token for token in self.output if token >= 0]  # -1 stands for a token that is not known yet
        if len(accepted) != len(self.output):
            return
        drawn = self.sequence.position - len(self.prompt)
        if drawn > len(accepted):
            self.sequence.truncate(len(self.prompt) + len(accepted))
        elif drawn < len(accepted):
            self.sequence.append(accepted[drawn:])
        if accepted and self.sequence.stateful and self.sequence.tokens[-1] != accepted[-1]:
            self.sequence.replace_last(accepted[-1])

    def mask(self, vocabulary: int) -> Optional[numpy.ndarray]:
        if len(self.output) >= self.params.min_tokens or not self.stop_tokens:
            return None
        allowed = numpy.ones(vocabulary, bool)
        allowed[[token for token in self.stop_tokens if token < vocabulary]] = False
        return pack_mask(allowed)


def parameters_of(params: Any) -> Dict[str, Any]:
    """Converts vLLM's SamplingParams to fields of Sortition's."""
    if getattr(params, "thinking_token_budget", None) is not None:
        raise ValueError("thinking_token_budget has no counterpart in Sortition")
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
    return result


class Rows:
    """The requests in the rows of the batch. Applies vLLM's updates in the prescribed order."""

    def __init__(self, alike: bool = False) -> None:
        """`alike`: other processes draw for the same batch, and must draw the same tokens."""
        self._alike = alike
        self.requests: Dict[int, Request] = {}

    def update(self, batch_update: Any) -> None:
        if batch_update is None:
            return
        ended = [self.requests.pop(index, None) for index in batch_update.removed]
        for index, params, prompt, output in batch_update.added:
            ended.append(self.requests.pop(index, None))
            self.requests[index] = request = Request(params, prompt, output)
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

    def __init__(self, sampler: Any, logprobs_mode: str = "raw_logprobs"):
        if logprobs_mode not in ("raw_logprobs", "processed_logprobs"):
            raise ValueError(f"logprobs_mode {logprobs_mode!r} has no counterpart in Sortition")
        self._sampler = sampler
        self.logits = LogitsTransfer(sampler)
        self._kind = logprobs_mode.split("_", maxsplit=1)[0]

    def draw(self, requests: List[Request], logits: torch.Tensor) -> List[Any]:
        """Returns a draw for each request, from its row of logits."""
        vocabulary = logits.shape[1]
        for request in requests:
            if request.sequence is None:
                if request.params.logprobs is not None:
                    request.parameters[f"{self._kind}_logprobs"] = {"top": request.params.logprobs}
                request.open(self._sampler, vocabulary)
            else:
                request.follow()
        masks = [request.mask(vocabulary) for request in requests]
        results = self._sampler.step([request.sequence for request in requests], self.logits.move(logits),
                                      allowed=masks if any(mask is not None for mask in masks) else None)
        for result in results:
            if isinstance(result, Error):
                raise result
        return results

    def logprobs(self, draws: List[Any], most_logprobs: int) -> Any:
        """Returns ids, log probabilities and ranks in vLLM's form: the drawn token first, then the alternatives."""
        ids = torch.zeros((len(draws), most_logprobs + 1), dtype=torch.int32)
        values = torch.full((len(draws), most_logprobs + 1), -float("inf"))
        ranks = torch.zeros(len(draws), dtype=torch.int32)
        for row, draw in enumerate(draws):
            part = getattr(draw, self._kind)
            if part is None:
                continue
            tokens = [draw.token, *part.top_tokens]
            ids[row, :len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
            values[row, :len(tokens)] = torch.tensor([part.logprob, *part.top_logprobs])
            ranks[row] = part.rank
        return ids, values, ranks


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
            self.rows = Rows(getattr(parallel, "tensor_parallel_size", 1) > 1) if settings() else None

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
