"""A whole worker without the client library, with grpcio and the messages of the contract alone.

    protoc --proto_path=proto --python_out=. sortition/v1/{errors,parameters,sampling}.proto
    PYTHONPATH=. python3 client/examples/bare_worker.py 127.0.0.1:50051 [TARGET...]

docs/without-client.md has the rules. bare_worker.go is the same in Go, and draws the same tokens.
"""

import array
import asyncio
import random
import sys
import uuid

import grpc
from grpc import StatusCode
from sortition.v1.errors_pb2 import ErrorReason as Reason
from sortition.v1.parameters_pb2 import SamplingParameters
from sortition.v1.sampling_pb2 import (CloseSequence, DTYPE_F32, Hello, History, LogitsTensor, OpenSequence, Step,
                                       StepRow, StreamRequest, StreamResponse)

VOCABULARY = 1000
MESSAGE_BYTES, MESSAGE_ROWS = 2 << 20, 256  # longer steps travel in several messages
STEP_TIMEOUT_S = 5  # the server's, for a row to start
SILENCE_S = 6  # a stream that owes an answer for this long is given up
DEADLINE_S = 60  # a token, with all tries
PAUSE_S, LONGEST_PAUSE_S = 0.05, 5
OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 60_000),  # the worker makes the pauses: a channel connects once
    ("grpc.use_local_subchannel_pool", 1),  # each stream has its own connection, without another one's back-off
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),  # no limit: a stream may be idle for long
    ("grpc.max_receive_message_length", -1),
]
# The worker's answers to refusals. It raises any other.
REPLAY = (Reason.HISTORY_REQUIRED, Reason.STALE_STEP, Reason.STEP_CONFLICT)
REOPEN = (Reason.UNKNOWN_SEQUENCE, Reason.STEP_IN_FLIGHT)
ELSEWHERE = (Reason.DRAINING, Reason.DEVICE_FAILED)
LATER = (Reason.OVERLOADED, Reason.CLIENT_LIMIT, Reason.RECEIPTS_NOT_WRITTEN, Reason.DEADLINE_PASSED)
# Ends of a call that another try would meet again. After any other end the worker opens a stream elsewhere.
FINAL = (StatusCode.UNAUTHENTICATED, StatusCode.PERMISSION_DENIED, StatusCode.UNIMPLEMENTED,
         StatusCode.INVALID_ARGUMENT, StatusCode.FAILED_PRECONDITION)


class Sequence:
    """A text. Any server can continue it from what is here."""

    def __init__(self, request_id, seed, prompt, **parameters):
        self.request_id, self.seed, self.parameters = request_id, seed, SamplingParameters(**parameters)
        self.tokens, self.prompt_length = list(prompt), len(prompt)
        self.epoch = self.step_id = 0  # of the last open, and of the last answered step
        self.history_hash = None  # absent if the server keeps no state of it
        self.is_open = self.sends_history = False


class Worker:
    """One stream at a time, to one of the targets in turn."""

    def __init__(self, targets):
        self.targets, self.session, self.sequences = targets, f"bare-{uuid.uuid4()}", {}
        self.streams = self.batches = self.failures = 0
        self.call = self.channel = None

    async def connect(self):
        if self.failures:
            pause_s = min(LONGEST_PAUSE_S, PAUSE_S * 2 ** min(self.failures - 1, 10))
            await asyncio.sleep(pause_s * random.uniform(0.5, 1))
        self.failures += 1  # until a row is answered
        self.channel = grpc.aio.insecure_channel(self.targets[self.streams % len(self.targets)], OPTIONS)
        self.call = self.channel.stream_stream("/sortition.v1.SamplingService/Stream",
                                               StreamRequest.SerializeToString, StreamResponse.FromString)()
        self.streams, self.is_draining, self.unanswered = self.streams + 1, False, {}
        for sequence in self.sequences.values():
            sequence.is_open = False
        await self.send(StreamRequest(hello=Hello(worker_session=self.session, client="bare-worker")))
        self.welcome = (await self.receive()).welcome
        self.window = self.welcome.flow_window

    async def leave(self):
        self.call.cancel()
        await self.channel.close()
        self.call = None

    async def send(self, request):
        try:
            await asyncio.wait_for(self.call.write(request), SILENCE_S)
        except asyncio.InvalidStateError as error:
            await self.call.read()  # raises the status with which the stream has ended
            raise ConnectionError("the server has ended the stream") from error

    async def receive(self):
        """The next answer. Notices that come before it are seen to."""
        while True:
            response = await asyncio.wait_for(self.call.read(), SILENCE_S)
            if response is grpc.aio.EOF:
                raise ConnectionError("the server has ended the stream")
            kind = response.WhichOneof("kind")
            if kind == "draining":
                self.is_draining = True  # what is in flight is still answered here
            elif kind == "flow_window":
                self.window = response.flow_window
            elif kind == "rejected":
                raise RuntimeError(response.rejected.error)
            else:
                return response

    async def draw(self):
        """Appends one token to each sequence."""
        self.rows = {sequence: compute_logits(len(sequence.tokens)) for sequence in self.sequences.values()}
        while self.rows:
            self.pause_s = 0
            try:
                if self.call is None:
                    await self.connect()
                await self.open()
                await self.step()
            except (grpc.RpcError, asyncio.TimeoutError, ConnectionError) as error:
                if isinstance(error, grpc.RpcError) and error.code() in FINAL:
                    raise
                self.is_draining = True
            if self.is_draining:
                await self.leave()
            await asyncio.sleep(self.pause_s)

    async def open(self):
        opens = [sequence for sequence in self.rows if not sequence.is_open]
        for sequence in opens:
            sequence.epoch += 1
            history = History(tokens=sequence.tokens, prompt_length=sequence.prompt_length)
            await self.send(StreamRequest(open=OpenSequence(
                request_id=sequence.request_id, epoch=sequence.epoch, law_version=1, parameters=sequence.parameters,
                seed=sequence.seed, vocabulary_size=VOCABULARY, history=history if sequence.sends_history else None)))
        for _ in opens:
            opened = (await self.receive()).opened
            sequence = self.sequences[opened.request_id]
            if opened.HasField("error"):
                self.refuse(sequence, opened.error)
                continue
            sequence.is_open, sequence.sends_history = True, False
            if opened.state.stateful and sequence.history_hash is None:
                sequence.history_hash = opened.state.history_hash

    async def step(self):
        """Sends the rows in messages within the window, and awaits their answers."""
        sequences = [sequence for sequence in self.rows if sequence.is_open]
        most = min(MESSAGE_BYTES, self.welcome.max_message_bytes) // (4 * VOCABULARY + 512)
        most = min(max(most, 1), MESSAGE_ROWS)
        for first in range(0, len(sequences), most):
            batch = sequences[first:first + most]
            self.batches += 1
            step = Step(batch_id=self.batches, logits=LogitsTensor(dtype=DTYPE_F32, vocabulary_size=VOCABULARY))
            step.logits.source.inline.payload = 0
            step.timeout.FromSeconds(STEP_TIMEOUT_S)
            for sequence in batch:
                step.rows.append(StepRow(request_id=sequence.request_id, step_id=sequence.step_id + 1,
                                         position=len(sequence.tokens), history_hash=sequence.history_hash))
            request = StreamRequest(step=step, payloads=[b"".join(self.rows[sequence] for sequence in batch)])
            while self.unanswered and not self.has_room(len(batch), request.ByteSize()):
                self.take((await self.receive()).results)
            self.unanswered[self.batches] = dict(enumerate(batch)), request.ByteSize()
            await self.send(request)
        while self.unanswered:
            self.take((await self.receive()).results)

    def has_room(self, rows, size):
        rows += sum(len(left) for left, _ in self.unanswered.values())
        size += sum(sent for _, sent in self.unanswered.values())
        return rows <= self.window.unanswered_rows and size <= self.window.unanswered_bytes

    def take(self, results):
        left, _ = self.unanswered[results.batch_id]
        if results.HasField("error"):
            for number in list(left):
                self.refuse(left.pop(number), results.error)
        for row in results.rows:
            sequence = left.pop(row.row)
            if row.HasField("error"):
                self.refuse(sequence, row.error)
                continue
            self.failures = 0
            sequence.tokens.append(row.draw.token)
            sequence.step_id = row.step_id
            sequence.history_hash = row.draw.history_hash if row.draw.HasField("history_hash") else None
            del self.rows[sequence]
        if not left:
            del self.unanswered[results.batch_id]

    def refuse(self, sequence, error):
        """Prepares the next try of a sequence, or raises."""
        if error.reason in REPLAY:
            sequence.is_open, sequence.sends_history = False, True
        elif error.reason in REOPEN:
            sequence.is_open = False
        elif error.reason in ELSEWHERE:
            self.is_draining = True
        elif error.reason not in LATER:
            raise RuntimeError(f"{sequence.request_id}: {error}")
        self.pause_s = max(self.pause_s, error.retry_after.ToMilliseconds() / 1000)

    async def close(self):
        """Lets the server forget the sequences before their time. A close that is lost costs it memory alone."""
        if self.call is not None:
            for sequence in self.sequences.values():
                await self.send(StreamRequest(close=CloseSequence(request_id=sequence.request_id)))
                await self.receive()
            await self.leave()


def compute_logits(position):
    """Stands for the model: the row of logits after `position` tokens, as little-endian f32."""
    return array.array("f", (token * (position + 7) % 1009 / 100 for token in range(VOCABULARY))).tobytes()


async def main(targets):
    worker = Worker(targets)
    for number, options in enumerate(({}, {"repetition_penalty": 1.1}, {"frequency_penalty": 0.5}), 1):
        sequence = Sequence(f"request-{number}", 41 + number, (1, 543, 386), temperature=0.8, top_p=0.95, **options)
        worker.sequences[sequence.request_id] = sequence
    for _ in range(20):
        await asyncio.wait_for(worker.draw(), DEADLINE_S)
        print(*(sequence.tokens[-1] for sequence in worker.sequences.values()), flush=True)
    await worker.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
