"""Sortition under llama-cpp-python: a Llama whose tokens it draws.

    llama = sortition.llama_cpp.Llama(sampler=sortition.Client("127.0.0.1:50051"), model_path="model.gguf", seed=7)
    llama.create_completion("Hello", temperature=0.8, repeat_penalty=1.1)

Prompts, cache, drafts, stop words and log probabilities stay llama-cpp-python's. Its chain of samplers is replaced by a
sequence with the same parameters.
"""

from __future__ import annotations

import ctypes
import logging
from typing import Any, Dict, Optional

import llama_cpp
import numpy
from llama_cpp import _internals

from sortition import interfaces
from sortition.local import Sampler as LocalSampler

_CANDIDATE = numpy.dtype([("id", numpy.int32), ("logit", numpy.float32), ("p", numpy.float32)])


def parameters_of(*, top_k: int, top_p: float, min_p: float, typical_p: float, temp: float, repeat_penalty: float,
                  frequency_penalty: float, presence_penalty: float, mirostat_mode: int, mirostat_eta: float,
                  mirostat_tau: float, last_n: int) -> Dict[str, Any]:
    """Converts the options of one text to parameters. A temperature below 0 is llama-cpp-python's "no filter"."""
    result: Dict[str, Any] = {"temperature": 1.0 if temp < 0 else temp}
    if last_n > 0 and (repeat_penalty, frequency_penalty, presence_penalty) != (1, 0, 0):
        result.update(repetition_penalty=repeat_penalty, frequency_penalty=frequency_penalty,
                      presence_penalty=presence_penalty, penalty_scope={"window": last_n})
    if temp <= 0:
        return result
    if mirostat_mode:  # replaces all filters
        return {**result, "temperature": 1.0,
                "mirostat": {"version": mirostat_mode, "tau": mirostat_tau, "eta": mirostat_eta}}
    return {**result, "top_k": max(top_k, 0), "top_p": top_p, "min_p": min_p, "typical_p": typical_p,
            "chain": {"preset": "PRESET_LLAMA_CPP"}}


class _Grammar:
    """llama.cpp's grammar, as masks of the tokens that it allows next."""

    def __init__(self, model: Any, grammar: Any, vocabulary: int):
        self._chain = _internals.LlamaSampler()
        self._chain.add_grammar(model, grammar)
        self._candidates = numpy.zeros(vocabulary, _CANDIDATE)

    def allowed(self) -> numpy.ndarray:
        self._candidates["id"] = numpy.arange(len(self._candidates))
        self._candidates["logit"] = 0
        data = ctypes.cast(self._candidates.ctypes.data, ctypes.POINTER(llama_cpp.llama_token_data))
        array = llama_cpp.llama_token_data_array(data, len(self._candidates), -1, False)
        llama_cpp.llama_sampler_apply(self._chain.sampler, ctypes.byref(array))
        return self._candidates["logit"] == 0

    def accept(self, token: int) -> None:
        llama_cpp.llama_sampler_accept(self._chain.sampler, token)

    def close(self) -> None:
        self._chain.close()


class _Text:
    """Replaces llama-cpp-python's chain of samplers for one text. Like the chain, it knows only drawn tokens."""

    def __init__(self, llama: "Llama", sampler: Any, parameters: Dict[str, Any], processors: Any,
                 grammar: Optional[_Grammar]):
        self._llama, self._sampler, self._processors, self._grammar = llama, sampler, processors, grammar
        self._sequence = sampler.open(vocabulary_size=llama.n_vocab(), seed=llama._seed % 2**64, **parameters)

    def sample(self, context: Any, index: int = -1) -> int:
        """Draws the next token from the logits where they lie. Raises Error."""
        pointer = llama_cpp.llama_get_logits_ith(context.ctx, index)
        logits = numpy.ctypeslib.as_array(pointer, (self._llama.n_vocab(),))
        for processor in self._processors or ():
            logits = numpy.asarray(processor(self._llama._input_ids, logits.copy()), numpy.float32)
        allowed = None if self._grammar is None else self._grammar.allowed()
        token = self._sampler.draw(self._sequence, logits, allowed=allowed).token
        if self._grammar is not None:
            self._grammar.accept(token)
        return token

    def close(self) -> None:
        getattr(self._sequence, "close", lambda: None)()
        if self._grammar is not None:
            self._grammar.close()


class Llama(llama_cpp.Llama):
    """llama-cpp-python's Llama. `sampler` is a Client or a local Sampler, None for sampling in this process.

    Not thread-safe, as its base. A token that cannot be drawn raises an Error from the call that generates the text.
    """

    def __init__(self, *arguments: Any, sampler: Any = None, **options: Any):
        interfaces.check("llama-cpp-python", llama_cpp.__version__, logging.getLogger("sortition"))
        self._sortition = LocalSampler() if sampler is None else sampler
        super().__init__(*arguments, **options)

    def _init_sampler(self, *, tfs_z: float = 1.0, penalize_nl: bool = True, logits_processor: Any = None,
                      grammar: Any = None, **options: Any) -> Any:
        if tfs_z != 1:
            raise ValueError("tfs_z: tail-free sampling has no counterpart in Sortition, and llama.cpp has none either")
        if not penalize_nl:
            raise ValueError("penalize_nl: newlines are penalised as all tokens are")
        defaults = {"top_k": 40, "top_p": 0.95, "min_p": 0.05, "typical_p": 1.0, "temp": 0.8, "repeat_penalty": 1.0,
                    "frequency_penalty": 0.0, "presence_penalty": 0.0, "mirostat_mode": 0, "mirostat_eta": 0.1,
                    "mirostat_tau": 5.0}
        parameters = parameters_of(**{**defaults, **options}, last_n=self.last_n_tokens_size)
        masks = None if grammar is None else _Grammar(self._model, grammar, self.n_vocab())
        return _Text(self, self._sortition, parameters, logits_processor, masks)
