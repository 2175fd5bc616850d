"""The vLLM plugin's way that waits for nothing: logits on a CUDA device, sampled in process (vllm.py is the plugin).

Steps are queued on the runner's stream. The device counts drawn tokens by itself, and the runner's next forward pass
reads them in the device's memory. The host learns errors and log probabilities when vLLM asks for a step's output,
which with asynchronous scheduling is steps later. It is the way of generation 2, where nothing else is asked of a row.
"""

from __future__ import annotations

import collections
import importlib
import inspect
from typing import Any, Deque, Dict, List, Optional, Sequence, Tuple

import torch

from sortition.errors import Error
from sortition.local import CudaStream
from sortition.local import Sampler as LocalSampler
from sortition.vllm_common import LOG, MOST_ALTERNATIVES, Drawer, Request

# The device's memory for all rows' tokens with a penalty. Four times this size is pinned on the host.
_EDIT_BYTES = 32 << 20
_BYTES_OF_EDIT = 16
# Draws behind a request's last token: of steps that were queued before it was known to be the last.
_OVERRUN = 8
# The number of alternatives that vLLM allows by default.
_ALTERNATIVES = 20


class Device:
    """The device's tensors, by torch."""

    @staticmethod
    def index(device: torch.device) -> Optional[int]:
        """Returns the number of a CUDA device; None for any other."""
        if device.type != "cuda":
            return None
        return torch.cuda.current_device() if device.index is None else device.index

    @staticmethod
    def stream(device: int) -> int:
        return torch.cuda.current_stream(device).cuda_stream

    @staticmethod
    def rows(logits: torch.Tensor) -> torch.Tensor:
        """Returns the logits in rows that begin at multiples of 16 bytes, copied within the device if they do not."""
        size = logits.element_size()
        if logits.stride(1) == 1 and (logits.stride(0) * size) % 16 == 0 and logits.data_ptr() % 16 == 0:
            return logits.detach()
        padded = logits.new_empty((logits.shape[0], -(-logits.shape[1] * size // 16) * 16 // size))
        padded[:, :logits.shape[1]].copy_(logits)
        return padded[:, :logits.shape[1]]

    @staticmethod
    def tensor(memory: Any) -> torch.Tensor:
        """Returns memory of the device as a tensor, without a copy."""
        return torch.from_dlpack(memory)


class LateStep:
    """A queued step's answers, by row of its batch: None for a row that did not draw. Any thread may read them."""

    def __init__(self, step: Any, answers: List[Any], names: Sequence[str]):
        """`step`: a CudaStep, None if no row was queued. `answers`: for the rows that the host has drawn already."""
        self._step, self._answers, self._names = step, answers, names

    def answers(self) -> List[Any]:
        """Blocks until the device has done the step."""
        step = self._step  # another thread may ask, too
        if step is not None:
            for row, answer in enumerate(step.results()):
                if answer is not None:
                    self._answers[row] = answer
            self._step = None
        return self._answers

    def failed(self) -> Dict[str, Error]:
        """Returns the errors of rows, by request id. Blocks as `answers`."""
        return {name: answer for name, answer in zip(self._names, self.answers()) if isinstance(answer, Error)}


class LateLogprobs:
    """Log probabilities of a queued step in vLLM's form, made when its output is."""

    def __init__(self, late: LateStep, requests: List[Request], drawer: Drawer, width: int,
                 logits: Optional[torch.Tensor]):
        self._late, self._requests, self._drawer, self._width, self._logits = late, requests, drawer, width, logits

    def to_cpu_nonblocking(self) -> "LateLogprobs":
        return self

    def tensors(self) -> Any:
        """Blocks as LateStep.answers."""
        answers = self._late.answers()
        rows = [row for row, answer in enumerate(answers) if answer is not None]
        parts = self._drawer.logprobs([self._requests[row] for row in rows], [answers[row] for row in rows],
                                      self._width, self._logits, height=len(answers), firsts=rows, starts=rows)
        outputs = importlib.import_module("vllm.v1.outputs")
        return outputs.LogprobsTensors(*(part if part.is_floating_point() else part.long() for part in parts))

    def tolists(self, *arguments: Any) -> Any:
        return self.tensors().tolists(*arguments)


class StreamDrawer:
    """Draws for the runner's batches on its stream. A request keeps its slot as its row of the stream.

    A request that needs the host, by one of its options, takes the way that waits, and the steps that draw for it wait.
    """

    def __init__(self, stream: CudaStream, device: int, states: Any, drawer: Drawer):
        self._stream, self._device, self._states, self._drawer = stream, device, states, drawer
        self._of_slot: Dict[int, Tuple[Request, bool]] = {}  # and if it is on the stream
        self._under_way: Deque[LateStep] = collections.deque()

    @classmethod
    def make(cls, config: Any, states: Any, device: torch.device, drawer: Drawer,
             sampler: Any) -> Optional["StreamDrawer"]:
        """Returns None, and logs why, if steps cannot be queued at all."""
        index = Device.index(device)
        if index is None:
            return None
        parallel, model = getattr(config, "parallel_config", None), getattr(config, "model_config", None)
        top = getattr(model, "max_logprobs", _ALTERNATIVES)
        room = _EDIT_BYTES // _BYTES_OF_EDIT // states.max_num_reqs
        why_not = ("a server samples" if not isinstance(sampler, LocalSampler) else
                   "drafts need the host" if getattr(config, "speculative_config", None) is not None else
                   "sampling masks need the host" if drawer.kept else
                   "enable_batch_sharded_sampling" if getattr(parallel, "enable_batch_sharded_sampling", False) else "")
        if not why_not:
            try:
                stream = CudaStream(index, rows=states.max_num_reqs, vocabulary_size=states.vocab_size,
                                    edits=min(states.vocab_size, states.max_model_len + _OVERRUN, room),
                                    top=min(top if top >= 0 else _ALTERNATIVES, MOST_ALTERNATIVES))
                LOG.info("steps are queued on the GPU's stream, and nothing waits for them")
                return cls(stream, index, states, drawer)
            except Error as error:
                why_not = str(error)
        LOG.warning("each step waits for the GPU: %s", why_not)
        return None

    def is_queued(self, slot: int) -> bool:
        """Returns whether the request in a slot is on the stream."""
        return self._of_slot.get(slot, (None, False))[1]

    def queue(self, logits: torch.Tensor, slots: List[int], requests: List[Optional[Request]], names: Sequence[str],
              by_host: Any) -> Tuple[torch.Tensor, LateStep, Optional[torch.Tensor]]:
        """Draws for the requests; None stands for a row that has more prompt to come.

        Returns tokens [len(requests), 1] on the device, the step, and the logits from which log probabilities of all
        tokens are made, if any are. The token is 0 where a row failed, and any where it does not draw.
        `by_host(rows)` returns answers, and waits.
        """
        if len(self._under_way) == CudaStream.STEPS:
            # Usually vLLM has read the oldest step's output long before.
            self._under_way.popleft().answers()
        places = [slot if request is not None and self._keeps(slot, request, logits.shape[1]) else None
                  for slot, request in zip(slots, requests)]
        hosts = [row for row, request in enumerate(requests) if request is not None and places[row] is None]
        whole = any(requests[row].params.logprobs == -1 for row in hosts)
        used = logits.clone() if whole else None
        step = None
        if any(place is not None for place in places):
            step = self._stream.step(places, Device.rows(logits), stream=Device.stream(self._device))
            tokens = Device.tensor(step.tokens).long().clamp(min=0).view(-1, 1)
        else:
            tokens = torch.zeros((len(requests), 1), dtype=torch.int64, device=logits.device)
        answers: List[Any] = [None] * len(requests)
        for row, answer in zip(hosts, by_host(hosts) if hosts else ()):
            answers[row] = answer
        if hosts:
            drawn = [[0 if isinstance(answers[row], Error) else answers[row].token] for row in hosts]
            tokens[torch.tensor(hosts, device=tokens.device)] = torch.tensor(drawn).to(tokens.device)
        late = LateStep(step, answers, names)
        if step is not None:
            self._under_way.append(late)
        return tokens, late, used

    def _keeps(self, slot: int, request: Request, vocabulary: int) -> bool:
        known = self._of_slot.get(slot)
        if known is None or known[0] is not request:
            if self.is_queued(slot):
                self._stream.clear(slot)
            known = self._of_slot[slot] = (request, self._put(slot, request, vocabulary))
        return known[1]

    def _put(self, slot: int, request: Request, vocabulary: int) -> bool:
        """Opens the request's sequence and puts it into its row. False if it needs the host."""
        if request.error is not None or self._needs_host(slot, request):
            return False
        try:
            self._drawer.prepare(request, vocabulary)
            self._stream.put(slot, request.sequence)
        except Error:
            return False  # the way of the host does it, or says why not
        return True

    def _needs_host(self, slot: int, request: Request) -> bool:
        params = request.params
        if params.logprobs == -1 or (params.min_tokens > len(request.output) and request.stop_tokens):
            return True
        repeated, counted = params.repetition_penalty != 1, params.frequency_penalty or params.presence_penalty
        if not repeated and not counted:
            return False
        further = getattr(params, "extra_args", None) or {}  # may make the other penalties count the prompt
        text = {*request.output, *(request.prompt if repeated or further else ())}
        named = sum(map(len, (params.logit_bias or (), getattr(params, "bad_words_token_ids", None) or (),
                              further.get("banned_token_ids", ()))))
        left = int(self._states.max_seq_len[slot]) - len(request.prompt) - len(request.output)
        return min(self._states.vocab_size, len(text) + named + left + _OVERRUN) > self._stream.edits


def remember_texts(states: Any) -> Dict[str, List[int]]:
    """Returns the texts with which the runner will add requests to its `states`, by request id.

    The runner keeps them on the device, and a read there waits for the device.
    """
    texts: Dict[str, List[int]] = {}
    add = states.add_request
    named = inspect.signature(add)

    def add_request(*arguments: Any, **options: Any) -> Any:
        given = named.bind(*arguments, **options).arguments
        texts[given["req_id"]] = list(given["all_token_ids"])
        return add(*arguments, **options)

    states.add_request = add_request
    return texts
