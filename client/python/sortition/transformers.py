"""Sortition under Hugging Face Transformers: `model.generate(..., custom_generate=SortitionSampler(client))`.

Written for Transformers 5. `generate` prepares inputs, cache and stopping criteria as always; Sortition draws the
tokens. `generate` describes the changes of scores by a list of logits processors. Those of its options do not run: each
is replaced by the parameter with the same meaning. All others run first, on the logits.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

import numpy
import torch
import transformers
from transformers.generation import logits_process as processors
from transformers.generation.stopping_criteria import StoppingCriteriaList, StopStringCriteria
from transformers.generation.utils import GenerateDecoderOnlyOutput
from transformers.utils import logging

from sortition import interfaces
from sortition._native import Draw
from sortition.client import Client
from sortition.errors import Error
from sortition.local import Sampler
from sortition.logits import LogitsTransfer
from sortition.step import Drafts, pack_mask

MOST_DRAFTS = 64  # of one step
# The name of a model's cache among its arguments and outputs, which is another one before Transformers 5.24.
_CACHE = ("cache" if "cache" in {field.name for field in dataclasses.fields(GenerateDecoderOnlyOutput)} else
          "past_key_values")
_NOTHING_BACK = "banned_phrases: generate takes no token back; bad_words_ids bans the last token of each instead"
# Processors with a single number: its attribute, and the parameter with the same meaning.
_PLAIN = {
    processors.RepetitionPenaltyLogitsProcessor: ("penalty", "repetition_penalty"),
    processors.NoRepeatNGramLogitsProcessor: ("ngram_size", "no_repeat_ngram_size"),
    processors.TemperatureLogitsWarper: ("temperature", "temperature"),
    processors.TopKLogitsWarper: ("top_k", "top_k"),
    processors.TopPLogitsWarper: ("top_p", "top_p"),
    processors.MinPLogitsWarper: ("min_p", "min_p"),
    processors.TopHLogitsWarper: ("top_h", "top_h"),
    processors.TypicalLogitsWarper: ("mass", "typical_p"),
    processors.EpsilonLogitsWarper: ("epsilon", "epsilon_cutoff"),
    processors.EtaLogitsWarper: ("epsilon", "eta_cutoff"),
}
_FILTERS = {"top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"}
_READ_THE_PROMPT = {"no_repeat_ngram_size", "bad_words"}
# Processors without an effect here: the law's probabilities are normalized over the kept tokens in any case.
_WITHOUT_EFFECT = (processors.LogitNormalization,)


class Plan:
    """Converts a list of processors to parameters of the sequences and masks of single steps."""

    def __init__(self, processor_list: Sequence[Any], do_sample: bool):
        self.parameters: Dict[str, Any] = {} if do_sample else {"temperature": 0.0}
        self.ignored_prefix: Any = 0  # number of tokens at the start of all rows, or of each row, that are not history
        self._masks: List[Callable[[int, torch.Tensor, numpy.ndarray], None]] = []
        self._others: List[Any] = []  # processors that run, in their order
        self._least: Dict[str, int] = {}  # min_tokens_to_keep of each filter, by its parameter
        for processor in processor_list:
            self._add(processor)
        if any(least > 1 for least in self._least.values()):
            self._keep_least()
        if torch.as_tensor(self.ignored_prefix).any() and _READ_THE_PROMPT & self.parameters.keys():
            raise ValueError("prompt_ignore_length hides the prompt from no_repeat_ngram_size and bad_words_ids, too:"
                             " generate without one of them")
        if len(_FILTERS & self.parameters.keys()) > 1:
            self.parameters["chain"] = {"preset": "PRESET_HF"}  # the order of processors matters there

    def mask(self, row: int, tokens: torch.Tensor, vocabulary: int) -> Optional[numpy.ndarray]:
        """Returns the packed mask of tokens that the next one may be; None if all may."""
        if not self._masks:
            return None
        allowed = numpy.ones(vocabulary, bool)
        for restrict in self._masks:
            restrict(row, tokens, allowed)
        return None if allowed.all() else pack_mask(allowed)

    def changed(self, tokens: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Returns the logits that the other processors make of those after the rows' tokens."""
        if not self._others:
            return logits
        scores = logits.to(torch.float32, copy=True)
        for processor in self._others:
            scores = processor(tokens, scores)
            if scores.shape != logits.shape:
                raise ValueError(f"{type(processor).__name__} makes {tuple(scores.shape)} of logits of the shape "
                                 f"{tuple(logits.shape)}: generate without it")
        return scores

    def _add(self, processor: Any) -> None:
        kind = type(processor)
        if kind in _PLAIN:
            attribute, parameter = _PLAIN[kind]
            _refuse_filter_value(processor, parameter)
            if parameter in _FILTERS and parameter != "top_k":  # top_k's number includes it
                self._least[parameter] = getattr(processor, "min_tokens_to_keep", 1)
            if parameter == "temperature" and self.parameters.get(parameter) == 0:
                return  # greedy: the first token stays first
            if parameter in self.parameters:
                raise ValueError(f"{kind.__name__} is there twice: generate with one")
            self.parameters[parameter] = getattr(processor, attribute)
            if getattr(processor, "prompt_ignore_length", None) is not None:
                self.ignored_prefix = processor.prompt_ignore_length
        elif kind is processors.MinLengthLogitsProcessor:
            self._ban_until(processor.min_length, processor.eos_token_id)
        elif kind is processors.MinNewTokensLengthLogitsProcessor:
            self._ban_until(processor.prompt_length_to_skip + processor.min_new_tokens, processor.eos_token_id)
        elif kind is processors.SuppressTokensLogitsProcessor:
            self._ban(_ids(processor.suppress_tokens))
        elif kind is processors.SequenceBiasLogitsProcessor:
            self._add_bias(processor.sequence_bias)
        elif kind is processors.NoBadWordsLogitsProcessor:
            words = [list(word) for word in processor.sequence_bias]  # without the end tokens
            self._ban([word[0] for word in words if len(word) == 1])
            longer = [{"tokens": word} for word in words if len(word) > 1]
            if longer:
                self.parameters["bad_words"] = longer
        elif kind is processors.PrefixConstrainedLogitsProcessor:
            self._masks.append(_prefix_constraint(processor._prefix_allowed_tokens_fn))
        elif kind not in _WITHOUT_EFFECT:
            self._others.append(processor)

    def _keep_least(self) -> None:
        """Sets min_keep, which is one number for all filters of a sequence."""
        numbers = set(self._least.values())
        if len(numbers) > 1:
            said = ", ".join(f"{least} of {name}" for name, least in self._least.items())
            raise ValueError(f"min_tokens_to_keep: {said}, where Sortition has one number for all filters")
        least = numbers.pop()
        if 0 < self.parameters.get("top_k", 0) < least:
            raise ValueError(f"min_tokens_to_keep: {least}, where top_k keeps {self.parameters['top_k']}")
        self.parameters["min_keep"] = least

    def _ban(self, tokens: List[int]) -> None:
        banned = self.parameters.setdefault("banned_token_ids", [])
        banned += [token for token in dict.fromkeys(tokens) if token not in banned]

    def _ban_until(self, length: int, end_tokens: torch.Tensor) -> None:
        banned = _ids(end_tokens)

        def restrict(_: int, tokens: torch.Tensor, allowed: numpy.ndarray) -> None:
            if tokens.shape[0] < length:  # an end token beyond the vocabulary, such as -1, stands for none
                allowed[[token for token in banned if 0 <= token < len(allowed)]] = False

        self._masks.append(restrict)

    def _add_bias(self, sequence_bias: Any) -> None:
        pairs = sequence_bias.items() if isinstance(sequence_bias, dict) else sequence_bias
        for tokens, bias in pairs:
            if len(tokens) != 1:
                raise ValueError("sequence_bias: Sortition has a bias of single tokens, not of sequences")
            self.parameters.setdefault("logit_bias", []).append({"token": int(tokens[0]), "bias": float(bias)})


def _refuse_filter_value(processor: Any, parameter: str) -> None:
    if parameter in _FILTERS and processor.filter_value != -float("inf"):
        raise ValueError(f"{type(processor).__name__}: filter_value {processor.filter_value}, where Sortition has -inf")


def _ids(tokens: Any) -> List[int]:
    return [int(token) for token in torch.as_tensor(tokens).reshape(-1)]


def _prefix_constraint(allowed_tokens: Callable[[int, torch.Tensor], Any]) -> Callable[..., None]:
    def restrict(row: int, tokens: torch.Tensor, allowed: numpy.ndarray) -> None:
        may_follow, named = numpy.zeros_like(allowed), _ids(allowed_tokens(row, tokens))
        for token in named:
            if not 0 <= token < len(allowed):
                raise ValueError(f"prefix_allowed_tokens_fn: token {token}; the vocabulary has {len(allowed)}")
        may_follow[named] = True
        allowed &= may_follow

    return restrict


class SortitionSampler:
    """A decoding method for `generate(custom_generate=...)`.

    `sampler` is a Client or a local Sampler. With a `seed` every call draws the same tokens, row i with choice index i;
    without one the seed comes from torch's generator, so that torch.manual_seed determines it. `sampling` are further
    fields of SamplingParameters (frequency_penalty=0.3, processed_logprobs={}, ...). `on_step` is called after each
    step with a draw for each row, None for rows that are finished. May be used repeatedly, by one thread at a time.
    """

    def __init__(self, sampler: Union[Client, Sampler], *, seed: Optional[int] = None,
                 on_step: Optional[Callable[[List[Optional[Draw]]], None]] = None, timeout: Optional[float] = None,
                 **sampling: Any):
        if sampling.get("banned_phrases") or getattr(sampling.get("parameters"), "banned_phrases", None):
            raise ValueError(_NOTHING_BACK)
        log = logging.get_logger("transformers.sortition")
        _check_version(log)
        self._sampler = sampler
        self._logits = LogitsTransfer(sampler, log)
        self._seed = seed
        self._on_step = on_step
        self._timeout = timeout
        self._sampling = sampling

    @property
    def logits_path(self) -> str:
        """The way of the last step's logits to the sampler: "device", "host", or "" before the first step."""
        return self._logits.path

    @property
    def logits_note(self) -> str:
        """The reason why logits of a GPU took the way over the host."""
        return self._logits.note

    def generate(self, model: Any, *inputs: Any, streamer: Any = None, tokenizer: Any = None,
                 assistant_model: Any = None, assistant_tokenizer: Any = None, stop_strings: Any = None,
                 stopping_criteria: Sequence[Any] = (), **options: Any) -> Any:
        """Calls `model.generate(*inputs, **options)` with this decoding method.

        Use it with a tokenizer, for stop strings or an assistant with another tokenizer: Transformers 5 keeps
        tokenizers from a `custom_generate`.
        """
        if stop_strings is not None:
            if tokenizer is None:
                raise ValueError("stop_strings: tokenizer is missing")
            stopping_criteria = [*stopping_criteria, StopStringCriteria(tokenizer=tokenizer, stop_strings=stop_strings)]
        method = functools.partial(self, streamer=streamer, tokenizer=tokenizer, assistant_model=assistant_model,
                                   assistant_tokenizer=assistant_tokenizer)
        return model.generate(*inputs, streamer=streamer, custom_generate=method,
                              stopping_criteria=StoppingCriteriaList(stopping_criteria), **options)

    @torch.no_grad()
    def __call__(self, model: Any, input_ids: torch.Tensor, logits_processor: Sequence[Any] = (),
                 stopping_criteria: Any = None, generation_config: Any = None, synced_gpus: bool = False,
                 streamer: Any = None, assistant_model: Any = None, assistant_tokenizer: Any = None,
                 tokenizer: Any = None, **model_kwargs: Any) -> Any:
        if assistant_model is None and streamer is None:
            assistant_model, streamer = _not_passed_on("assistant_model", "streamer")
        _refuse(generation_config, synced_gpus)
        if model.training and model_kwargs.get("use_cache") and getattr(model, "is_activation_checkpointing", False):
            raise ValueError("gradient checkpointing: a model in training loses its cache, and its texts go wrong:"
                             " generate after model.eval(), or with use_cache=False")
        plan = Plan(logits_processor, generation_config.do_sample)
        rows = input_ids.shape[0]
        pad = generation_config._pad_token_tensor
        kept_logits: Optional[List[torch.Tensor]] = [] if generation_config.output_logits else None
        if assistant_model is not None or getattr(generation_config, "prompt_lookup_num_tokens", None):
            candidates = _candidates(model, generation_config, input_ids, logits_processor, model_kwargs,
                                     assistant_model=assistant_model, target_tokenizer=tokenizer,
                                     assistant_tokenizer=assistant_tokenizer)
            return self._assisted(model, input_ids, plan, stopping_criteria, generation_config, streamer, candidates,
                                  kept_logits, model_kwargs)
        sequences: List[Any] = []
        unfinished = torch.ones(rows, dtype=torch.bool, device=input_ids.device)
        outputs = model._prefill(input_ids, generation_config, model_kwargs, is_first_iteration=True)
        try:
            while True:
                model_kwargs = model._update_model_kwargs_for_generation(
                    outputs, model_kwargs, is_encoder_decoder=model.config.is_encoder_decoder)
                logits = outputs.logits[:, -1]
                if not sequences:
                    sequences = self._open(plan, input_ids, logits.shape[-1])
                if kept_logits is not None:
                    kept_logits.append(logits.to(torch.float32, copy=True))
                next_tokens = self._step(plan, sequences, input_ids, plan.changed(input_ids, logits), unfinished, pad)
                del outputs, logits
                input_ids = torch.cat([input_ids, next_tokens[:, None]], dim=-1)
                if streamer is not None:
                    streamer.put(next_tokens.cpu())
                unfinished = unfinished & ~stopping_criteria(input_ids, None)
                if not unfinished.any():
                    break
                inputs = model.prepare_inputs_for_generation(
                    input_ids, next_sequence_length=1 if model_kwargs.get("use_cache") else None, **model_kwargs)
                outputs = model(**inputs, return_dict=True)
        finally:
            for sequence in sequences:
                getattr(sequence, "close", lambda: None)()
        return _output(input_ids, streamer, generation_config, kept_logits, model_kwargs)

    def _assisted(self, model: Any, input_ids: torch.Tensor, plan: Plan, stopping_criteria: Any, config: Any,
                  streamer: Any, candidates: Any, kept_logits: Optional[List[torch.Tensor]],
                  model_kwargs: Dict[str, Any]) -> Any:
        """Verifies the drafts of `candidates` in coupled mode: the text is that without drafts."""
        sequence, going = None, True
        try:
            while going:
                first, before = sequence is None, input_ids
                proposed = candidates.get_candidates(input_ids)[0].to(input_ids.device)
                drafts = proposed[0, input_ids.shape[1]:][:MOST_DRAFTS].tolist()
                logits, outputs = _forward(model, input_ids, drafts, first, model_kwargs)
                if first:
                    (sequence,) = self._open(plan, input_ids, logits.shape[-1])
                tokens = self._verify(plan, sequence, input_ids, logits, drafts)
                used = 0
                while going and used < len(tokens):
                    next_token = torch.tensor([[tokens[used]]], dtype=input_ids.dtype, device=input_ids.device)
                    input_ids = torch.cat([input_ids, next_token], dim=-1)
                    used += 1
                    going = not bool(stopping_criteria(input_ids, None).any())
                if kept_logits is not None:
                    kept_logits += logits[:used].to(torch.float32, copy=True)[:, None]
                if streamer is not None:
                    streamer.put(input_ids[0, before.shape[1]:].cpu())
                getattr(outputs, _CACHE).crop(used - 1 - len(drafts))
                candidates.update_candidate_strategy(input_ids, logits[None], used - 1)
                model_kwargs = model._update_model_kwargs_for_generation(
                    outputs, model_kwargs, is_encoder_decoder=False, num_new_tokens=used)
        finally:
            getattr(sequence, "close", lambda: None)()
        return _output(input_ids, streamer, config, kept_logits, model_kwargs)

    def _verify(self, plan: Plan, sequence: Any, input_ids: torch.Tensor, logits: torch.Tensor,
                drafts: List[int]) -> List[int]:
        """Returns the accepted drafts and the token after them."""
        vocabulary, text = logits.shape[-1], input_ids[0]
        texts = [torch.cat([text, text.new_tensor(drafts[:count])]) for count in range(len(drafts) + 1)]
        masks = [plan.mask(0, longer, vocabulary) for longer in texts]
        logits = torch.cat([plan.changed(longer[None], row[None]) for longer, row in zip(texts, logits)])
        allowed = None
        if any(mask is not None for mask in masks):
            everything = pack_mask(numpy.ones(vocabulary, bool))
            allowed = numpy.stack([everything if mask is None else mask for mask in masks])
        (result,) = self._sampler.step(
            [sequence], self._logits.move(logits).contiguous(), drafts=[Drafts(drafts)] if drafts else None,
            allowed=None if allowed is None else [allowed if drafts else allowed[0]], timeout=self._timeout)
        if isinstance(result, Error):
            raise result
        if result.rewind is not None:
            raise ValueError(_NOTHING_BACK)
        if self._on_step is not None:
            self._on_step([result])
        return list(result.tokens) if drafts else [result.token]

    def _open(self, plan: Plan, input_ids: torch.Tensor, vocabulary: int) -> List[Any]:
        # From the CPU's generator, for models on any device.
        seed = self._seed if self._seed is not None else int(torch.randint(1 << 62, ()))
        ignored = torch.as_tensor(plan.ignored_prefix).reshape(-1).expand(input_ids.shape[0]).tolist()
        prompts = input_ids.tolist()
        return [self._sampler.open(vocabulary_size=vocabulary, prompt=prompt[ignored[row]:], seed=seed,
                                   choice_index=row, **{**plan.parameters, **self._sampling})
                for row, prompt in enumerate(prompts)]

    def _step(self, plan: Plan, sequences: List[Any], input_ids: torch.Tensor, logits: torch.Tensor,
              unfinished: torch.Tensor, pad: Optional[torch.Tensor]) -> torch.Tensor:
        vocabulary = logits.shape[-1]
        live = unfinished.nonzero().reshape(-1).tolist()
        moved = self._logits.move(logits)
        masks = [plan.mask(row, input_ids[row], vocabulary) for row in live]
        results = self._sampler.step([sequences[row] for row in live],
                                      moved if len(live) == len(sequences) else [moved[row] for row in live],
                                      allowed=masks if any(mask is not None for mask in masks) else None,
                                      timeout=self._timeout)
        draws: List[Optional[Draw]] = [None] * len(sequences)
        for row, result in zip(live, results):
            if isinstance(result, Error):
                raise result
            if result.rewind is not None:  # by an operator's policy
                raise ValueError(_NOTHING_BACK)
            draws[row] = result
        if self._on_step is not None:
            self._on_step(draws)
        filler = 0 if pad is None else int(pad)
        tokens = [filler if draw is None else draw.token for draw in draws]
        return torch.tensor(tokens, dtype=input_ids.dtype, device=input_ids.device)


@functools.lru_cache(maxsize=None)
def _check_version(log: Any) -> None:
    interfaces.check("Transformers", transformers.__version__, log)


def _not_passed_on(*names: str) -> List[Any]:
    """Returns arguments of `generate`, which calls this decoding method and passes them to its own methods alone."""
    frame = inspect.currentframe()
    while frame is not None and not (frame.f_code.co_name == "generate" and "decoding_method" in frame.f_locals):
        frame = frame.f_back
    return [None if frame is None else frame.f_locals.get(name) for name in names]


def _output(input_ids: torch.Tensor, streamer: Any, config: Any, kept_logits: Optional[List[torch.Tensor]],
            model_kwargs: Dict[str, Any]) -> Any:
    if streamer is not None:
        streamer.end()
    if config.return_dict_in_generate:
        return GenerateDecoderOnlyOutput(sequences=input_ids, logits=tuple(kept_logits) if kept_logits else None,
                                         **{_CACHE: model_kwargs.get(_CACHE)})
    return input_ids


def _candidates(model: Any, config: Any, input_ids: torch.Tensor, logits_processor: Sequence[Any],
                model_kwargs: Dict[str, Any], **assistant: Any) -> Any:
    """Returns Transformers' generator of drafts, after refusing drafts that cannot be verified."""
    if input_ids.shape[0] > 1:
        raise ValueError("assistant_model, prompt_lookup_num_tokens: for one text at a time")
    cache = model_kwargs.get(_CACHE)
    if model.config.is_encoder_decoder or cache is None or not hasattr(cache, "crop"):
        raise ValueError("assistant_model, prompt_lookup_num_tokens: for decoders with a cache that can be cropped")
    if getattr(config, "assistant_ensemble_weight", None) is not None:
        raise ValueError("assistant_ensemble_weight has no counterpart in Sortition: generate without it")
    getattr(cache, "activate_past_recording", lambda: None)()
    made = model._get_candidate_generator(generation_config=config, input_ids=input_ids, inputs_tensor=input_ids,
                                          logits_processor=logits_processor, model_kwargs=model_kwargs, **assistant)
    if getattr(made, "requires_model_outputs", False):
        raise ValueError(f"assistant_model: {type(made).__name__} has no counterpart in Sortition")
    return made


def _forward(model: Any, input_ids: torch.Tensor, drafts: List[int], first: bool,
             model_kwargs: Dict[str, Any]) -> Any:
    """Returns the logits for each draft and the token after them, and the model's outputs."""
    text = torch.cat([input_ids, input_ids.new_tensor([drafts])], dim=-1) if drafts else input_ids
    longer = dict(model_kwargs)
    mask, positions = longer.get("attention_mask"), longer.get("position_ids")
    if mask is not None and drafts:
        longer["attention_mask"] = torch.cat([mask, mask.new_ones((1, len(drafts)))], dim=-1)
    if positions is not None and drafts:
        after = positions[..., -1:] + torch.arange(1, len(drafts) + 1, device=positions.device)
        longer["position_ids"] = torch.cat([positions, after.to(positions.dtype)], dim=-1)
    inputs = model.prepare_inputs_for_generation(
        text, next_sequence_length=None if first else len(drafts) + 1, is_first_iteration=first, **longer)
    if "logits_to_keep" in inputs:
        inputs["logits_to_keep"] = len(drafts) + 1
    outputs = model(**inputs, return_dict=True)
    return outputs.logits[0, -len(drafts) - 1:], outputs


def _refuse(config: Any, synced_gpus: bool) -> None:
    """Refuses options of GenerationConfig that have no logits processor and request more than tokens."""
    if (config.num_beams or 1) > 1:
        raise ValueError("num_beams: Sortition draws tokens, it does not search beams")
    for name in ("penalty_alpha", "dola_layers", "output_scores", "output_attentions",
                 "output_hidden_states", "assistant_early_exit"):
        if getattr(config, name, None):
            raise ValueError(f"{name} has no counterpart in Sortition: generate without it")
    if synced_gpus:
        raise ValueError("synced_gpus has no counterpart in Sortition: generate without it")
