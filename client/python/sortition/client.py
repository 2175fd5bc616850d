"""The client of the service, with blocking calls."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import threading
import weakref
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import numpy

from sortition import _native
from sortition.describe import describe, token_list
from sortition.options import Retry, Shard, Transport
from sortition.step import Drafts, OneRow, Result, Tokens, packed_masks, row_tasks, stream_of_step
from sortition.v1.parameters_pb2 import SamplingParameters
from sortition.v1.sampling_pb2 import PolicyEffect


class Client(OneRow):
    """Sends rows of logits to a server and returns tokens; streams, retries, replays and several servers are its work.

    Thread-safe: threads share one stream, and several steps may be in flight at once, as long as no sequence is in two
    of them. `targets` ("host:port" or "unix:path") are tried in turn. With fallback="in_process" rows are sampled in
    this process, with the same tokens, while no target can be reached. `transport` is a Transport, or its `kind` alone.
    `rows` says in which form rows travel: "full", "compact" or "compact(COUNT)" (the first COUNT tokens, 256 by
    default, in place of the logits, with the same answers; docs/rows.md), or "auto": compact where a socket is in use
    and rows are long.
    `default_timeout` is for steps and opens without a timeout, in seconds. The constructor blocks until a target,
    or the fallback, is ready. With `ignore_unknown_fields` a server of an earlier release ignores the fields that it
    does not know, which `ignored_fields` names, and does not refuse them.

    With a `shard` this process is one of several tensor-parallel ranks, each with its own client of the same server
    (one target, no fallback, the same `worker_session`). All ranks open the same sequences, with request ids that are
    given and used once, and step the same rows, each with its part of them. All get the same results. Masks and drafts'
    probabilities are of whole rows, and rank 0's are used.
    """

    def __init__(self, targets: Union[str, Sequence[str]] = (), *, fallback: str = "none",
                 transport: Union[str, Transport] = "auto", retry: Retry = Retry(), worker_session: str = "",
                 name: str = "sortition-python", default_timeout: float = 30, in_process_threads: int = 0,
                 shard: Optional[Shard] = None, rows: str = "auto", ignore_unknown_fields: bool = False):
        how = Transport(transport) if isinstance(transport, str) else transport
        self._native = _native.Client(
            [targets] if isinstance(targets, str) else list(targets), fallback=fallback, worker_session=worker_session,
            name=name, tls=None if how.tls is None else dict(how.tls), connect_timeout=retry.connect_timeout,
            keepalive=how.keepalive, default_timeout=default_timeout, backoff_initial=retry.backoff_initial,
            backoff_max=retry.backoff_max, in_process_threads=in_process_threads, fallback_stay=retry.fallback_stay,
            message_bytes=how.message_bytes, message_rows=how.message_rows, transport=how.kind,
            shared_memory_bytes=how.shared_memory_bytes, memory_server_user=how.memory_server_user, token=how.token,
            shard=None if shard is None else dataclasses.astuple(shard), rows=rows,
            ignore_unknown_fields=ignore_unknown_fields)
        self._shard = shard
        self.rows = rows
        # The client's threads must end before the interpreter does.
        self._finalizer = weakref.finalize(self, self._native.close)
        self._numbers = iter(range(1, 1 << 62))
        self._lock = threading.Lock()

    def open(self, request_id: Optional[str] = None, *, vocabulary_size: int, prompt: Any = (),
             seed: Optional[int] = None, choice_index: int = 0, live_vocabulary_size: Optional[int] = None,
             model: str = "", start_position: Optional[int] = None, turns: int = 0,
             parameters: Optional[SamplingParameters] = None, receipts: bool = False,
             policy: Optional[PolicyEffect] = None, rewound: Tuple[int, Sequence[Tuple[int, int]]] = (0, ()),
             **sampling: Any) -> _native.Sequence:
        """Makes a sequence known to the service. Blocks for a round trip.

        `sampling` are fields of sortition.v1.SamplingParameters by name (temperature=0.8, top_k=40, ...), on top of
        `parameters`. Without a `request_id` the client makes one, but a rank must give it. A rank that continues a text
        in a new process passes `turns` of the other ranks' sequences, if it is not 0. With `receipts` the service says
        how each token was drawn: Sequence.take_receipts and seed_line. A process that continues a text which another
        one has begun passes `policy` of that one's sequence: then the operator's policy changes no token of it. With
        `banned_phrases` it passes `rewound` of that sequence too: otherwise a phrase that was taken back may be drawn,
        and taken back, once more, with noise that was used. `watermark_key_id` names a key of the operator's list for a
        new text, which else has the newest one.
        """
        if turns and self._shard is None:
            raise ValueError("turns: with a shard only")
        message = describe(request_id or self._next_id(), vocabulary_size, seed=seed, choice_index=choice_index,
                           live_vocabulary_size=live_vocabulary_size, model=model, parameters=parameters, **sampling)
        return self._native.open(message, token_list(prompt), start_position, turns, receipts,
                                 None if policy is None else policy.SerializeToString(), (rewound[0], list(rewound[1])))

    def fork(self, parent: _native.Sequence, request_id: Optional[str] = None, *, position: Optional[int] = None,
             vocabulary_size: Optional[int] = None, seed: Optional[int] = None, choice_index: int = 0,
             live_vocabulary_size: Optional[int] = None, model: str = "",
             parameters: Optional[SamplingParameters] = None, **sampling: Any) -> _native.Sequence:
        """Opens a sequence that continues the first `position` tokens of `parent` (None: all of them)."""
        message = describe(request_id or self._next_id(), vocabulary_size or parent.vocabulary_size, seed=seed,
                           choice_index=choice_index, live_vocabulary_size=live_vocabulary_size, model=model,
                           parameters=parameters, **sampling)
        return self._native.fork(parent, message, position)

    def step(self, sequences: Sequence[_native.Sequence], logits: Any, *,
             drafts: Optional[Sequence[Optional[Drafts]]] = None, scored: Optional[Sequence[Any]] = None,
             allowed: Optional[Sequence[Any]] = None, banned: Optional[Sequence[Any]] = None,
             draw_salts: Sequence[int] = (), dtype: Optional[str] = None, timeout: Optional[float] = None,
             priority: int = 0, traceparent: str = "", stream: Optional[int] = None,
             ready: Union[_native.ReadyWord, _native.CudaReady, None] = None) -> List[Result]:
        """Draws a token for each row. Returns a Draw or an Error for each, because a row fails alone.

        `logits` is a matrix with a row for each sequence, or a list of vectors. `allowed` has a mask for each, or None:
        booleans, or packed words. `banned` has the tokens that cannot be drawn for each, or None; for a row with drafts
        a list of them for each of its positions. `dtype` names the element type of tensors of plain uint16 words.

        `drafts` and `scored` have an entry for each sequence, or None. Drafts are verified: the result is a Verify. The
        consecutive tokens in `scored` get their log probabilities, and the sequence does not advance: a Score. Such a
        sequence takes several rows: the next ones of the matrix, or a matrix in place of its vector. With drafts its
        mask is a matrix, too.

        Logits in memory registered by share_device are sent once the work queued on `stream` is done: a
        torch.cuda.Stream.cuda_stream, by default torch's current one for its tensors and the default stream for others.

        With `ready` the step is sent before its logits are written. They are written once the word is set
        (Ready.expect), or once the work queued on the stream is done (CudaReady). `timeout` includes this time. Masks
        and drafts' probabilities must be complete at the call.

        An exception of a signal's handler, such as KeyboardInterrupt, ends the call within about 50 ms. The step itself
        continues: until it ends it reads its logits, and other steps of its sequences fail (STEP_IN_FLIGHT). The
        sequences then advance by what was drawn. The results are dropped.
        """
        return self._native.step(sequences=list(sequences), logits=logits,
                                 tasks=row_tasks(drafts, scored, banned, draw_salts),
                                 allowed=packed_masks(allowed, sequences), dtype=dtype, timeout=timeout,
                                 priority=priority, traceparent=traceparent,
                                 stream=stream_of_step(logits, stream, ready), ready=ready)

    def draw_tokens(self, sequences: Sequence[_native.Sequence], logits: Any, *,
                    allowed: Optional[Sequence[Any]] = None, dtype: Optional[str] = None,
                    timeout: Optional[float] = None, stream: Optional[int] = None) -> Tokens:
        """Draws a token for each row, as step, and returns the tokens of the whole batch in one array.

        It takes less time than step, which makes an object for each row.
        """
        return Tokens(*self._native.draw_tokens(list(sequences), logits, packed_masks(allowed, sequences), dtype,
                                                timeout, stream_of_step(logits, stream, None)))

    def prepare_step(self, on_results: Callable[[List[Result]], None], sequences: Sequence[_native.Sequence],
                     logits: Any, *, drafts: Optional[Sequence[Optional[Drafts]]] = None,
                     scored: Optional[Sequence[Any]] = None, allowed: Optional[Sequence[Any]] = None,
                     banned: Optional[Sequence[Any]] = None, draw_salts: Sequence[int] = (),
                     dtype: Optional[str] = None, timeout: Optional[float] = None,
                     priority: int = 0, traceparent: str = "", stream: Optional[int] = None,
                     ready: Union[_native.ReadyWord, _native.CudaReady, None] = None,
                     results: Optional[_native.CudaResults] = None) -> Callable[[], None]:
        """Returns a function that sends a step, once. `on_results` is then called with the list that step returns.

        The other arguments are as for submit. `on_results` runs on one of the client's threads and must not wait for
        another step. Without `ready` the function blocks until the stream has done its work, as step does.
        """
        return functools.partial(self._native.step_async, sequences=list(sequences), logits=logits,
                                 tasks=row_tasks(drafts, scored, banned, draw_salts),
                                 allowed=packed_masks(allowed, sequences), dtype=dtype, timeout=timeout,
                                 priority=priority, traceparent=traceparent,
                                 stream=stream_of_step(logits, stream, ready, results), ready=ready, results=results,
                                 callback=on_results)

    def submit(self, sequences: Sequence[_native.Sequence], logits: Any, *,
               drafts: Optional[Sequence[Optional[Drafts]]] = None, scored: Optional[Sequence[Any]] = None,
               allowed: Optional[Sequence[Any]] = None, banned: Optional[Sequence[Any]] = None,
               draw_salts: Sequence[int] = (), dtype: Optional[str] = None, timeout: Optional[float] = None,
               priority: int = 0, traceparent: str = "", stream: Optional[int] = None,
               ready: Union[_native.ReadyWord, _native.CudaReady, None] = None,
               results: Optional[_native.CudaResults] = None) -> "concurrent.futures.Future[List[Result]]":
        """As step, without waiting for the results: one thread can send a step and then write its logits.

        The client uses the logits until the future is done. The future cannot be cancelled. Its callbacks run on a
        thread of the client and must not wait for another step. Without `ready` this waits for a stream as step does.

        With `results`, work queued on `stream` after this call begins once tokens and log probabilities are in the
        device's memory, so that the next forward pass can read them there. A CudaResults holds one step at a time.
        """
        future: "concurrent.futures.Future[List[Result]]" = concurrent.futures.Future()
        future.set_running_or_notify_cancel()
        self.prepare_step(future.set_result, sequences, logits, drafts=drafts, scored=scored, allowed=allowed,
                          banned=banned, draw_salts=draw_salts, dtype=dtype, timeout=timeout, priority=priority,
                          traceparent=traceparent, stream=stream, ready=ready, results=results)()
        return future

    def allocate_rows(self, rows: int, vocabulary_size: int, dtype: Any = numpy.float32) -> numpy.ndarray:
        """Returns a matrix for logits that need no copy, in memory shared with the server if the stream has some.

        Its rows are stepped like any others, also after the stream has ended. Use numpy.uint16 for bfloat16.
        """
        size = numpy.dtype(dtype).itemsize
        memory, _ = self._native.allocate_rows(max(1, rows * vocabulary_size * size))
        return memory[:rows * vocabulary_size * size].view(dtype).reshape(rows, vocabulary_size)

    def ready(self) -> _native.Ready:
        """Makes a word, set by this process, that says when a step's logits are written. Blocks for a round trip."""
        return self._native.ready()

    def cuda_ready(self, device: int = 0) -> _native.CudaReady:
        """Makes such a word, raised by a stream of device `device` in CUDA's order. Blocks for a round trip."""
        return self._native.cuda_ready(device)

    def share_device(self, rows: _native.CudaRows) -> _native.DeviceMemory:
        """Registers `rows` for logits until the result is closed or garbage-collected. Blocks for a round trip.

        If the stream shares the memory with its server's device, such logits are only named in messages; otherwise they
        are read to the host. Later streams share it where they can. `shared` says whether the one in use does, and
        `note` why not.
        """
        return self._native.share_device(rows)

    @property
    def worker_session(self) -> str:
        return self._native.worker_session

    @property
    def transport(self) -> str:
        """How rows travel now: "grpc", "ring" or "in_process"."""
        return self._native.transport

    @property
    def row_memory(self) -> bool:
        """True if rows travel through memory shared with the server."""
        return self._native.row_memory

    @property
    def transport_note(self) -> str:
        """The reason why a better transport, or shared memory, is not in use; empty if there is none."""
        return self._native.transport_note

    @property
    def in_process(self) -> bool:
        """True if rows are sampled in this process now."""
        return self._native.in_process

    @property
    def ignored_fields(self) -> List[str]:
        """Paths of the fields that servers have ignored so far, each once, by number: "open.parameters.#99"."""
        return self._native.ignored_fields

    def close(self) -> None:
        """Ends pending steps with STEP_CANCELLED."""
        self._finalizer()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _next_id(self) -> str:
        if self._shard is not None:
            raise ValueError("request_id: to be given with a shard, the same on every rank")
        with self._lock:
            return f"sequence-{next(self._numbers)}"
