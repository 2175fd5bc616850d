"""Steps that are queued on a CUDA stream: the host learns every answer three steps late, and texts are the CPU's.

The driver is the tests' own: its device's memory is the host's, and its streams work when the host waits for them.
"""

import collections
import ctypes
import faulthandler
import gc
import threading
import unittest

import numpy
import sortition
from sortition.local import CudaStream

from on_device import SAMPLER, WORK, host_view, matrix_in, needs_fake, needs_kernels, words, widened
from rows import OnCuda, VOCABULARY, row

STREAM = 5
LATE = 3
# Options of the rows, by row.
KINDS = (
    {"temperature": 0.0},
    {"temperature": 0.9, "repetition_penalty": 1.3, "raw_logprobs": {"top": 3}},
    {"temperature": 1.2, "frequency_penalty": 0.6, "presence_penalty": 0.4, "top_p": 0.9, "raw_logprobs": {}},
    {"temperature": 0.8, "top_k": 40, "min_p": 0.02, "repetition_penalty": 1.1, "frequency_penalty": 0.2,
     "logit_bias": [{"token": 5, "bias": 4.0}], "banned_token_ids": [7, 8], "processed_logprobs": {"top": 5}},
    {"mirostat": {"version": 2, "tau": 4.0, "eta": 0.2}, "presence_penalty": 0.7},
    {"temperature": 0.7, "typical_p": 0.8, "repetition_penalty": 1.2, "entropy": True},
)
BANNED = (7, 8)
PROMPT = [1, 2, 3, 2]
MODEL = {(number, token): row(100 * number + token) for number in range(len(KINDS)) for token in range(11)}


def logits_of(number, token):
    """A model: logits follow from the token before them, and few tokens are likely, so that they come again."""
    return MODEL[number, token % 11]


def elements(tensor, kind, count):
    """The elements of a tensor by DLPack, in place: the tests' driver keeps them on the host."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    capsule = tensor.__dlpack__()
    data = ctypes.c_uint64.from_address(pointer(capsule, b"dltensor")).value
    return (kind * count).from_address(data)


def open_kind(number, seed):
    return SAMPLER.open(vocabulary_size=VOCABULARY, seed=seed, prompt=PROMPT, **KINDS[number])


@needs_fake
@needs_kernels
class StreamTest(unittest.TestCase):
    def setUp(self):
        # A thread that waits with the interpreter's lock would wait for ever.
        faulthandler.dump_traceback_later(60, exit=True)
        self.addCleanup(faulthandler.cancel_dump_traceback_later)
        self.library = ctypes.CDLL("libcuda.so.1")
        self.library.FakeCudaCalls.restype = ctypes.c_uint64
        self.memory = sortition.CudaRows(0, 2 << 20)
        self.keep = []  # callbacks that the driver still calls
        self.stream = CudaStream(0, rows=len(KINDS) + 1, vocabulary_size=VOCABULARY, edits=200, top=5)
        self.addCleanup(self.stream.close)

    def defer(self):
        self.library.FakeCudaDefer(1)
        self.addCleanup(self.library.FakeCudaDefer, 0)

    def enqueue(self, work):
        callback = WORK(lambda _: work())
        self.keep.append(callback)
        self.library.FakeCudaEnqueue(ctypes.c_void_p(STREAM), callback)

    def calls(self, function):
        return self.library.FakeCudaCalls(function.encode())


class Late(StreamTest):
    def setUp(self):
        super().setUp()
        self.last, self.on_host, self.sequences = {}, {}, {}

    def put(self, number, seed):
        self.sequences[number], self.on_host[number] = open_kind(number, seed), open_kind(number, seed)
        self.stream.put(number, self.sequences[number])
        self.enqueue(lambda: self.last.update({number: PROMPT[-1]}))

    def queue(self, rows, poisoned=None, dtype=None):
        """Queues a forward pass and the step behind it; the pass after them takes the tokens on the device."""
        matrix = numpy.zeros((len(rows), VOCABULARY), numpy.uint16 if dtype else numpy.float32)
        there = host_view(self.memory)[:matrix.nbytes].view(matrix.dtype).reshape(matrix.shape)

        def forward():
            for place, number in enumerate(rows):
                made = numpy.full(VOCABULARY, numpy.nan, numpy.float32)
                if number is not None and number != poisoned:
                    made = logits_of(number, self.last[number])
                there[place] = words(made) if dtype else made

        def follow():
            for place, number in enumerate(rows):
                if number is not None:
                    self.last[number] = tokens[place]

        self.enqueue(forward)
        step = self.stream.step(rows, OnCuda(there), dtype=dtype, stream=STREAM)
        tokens = elements(step.tokens, ctypes.c_int32, len(rows))
        self.enqueue(follow)
        return step

    def step_on_host(self, number, dtype=None):
        token = self.tokens.get(number, PROMPT[-1])
        logits = logits_of(number, token)
        drawn = SAMPLER.draw(self.on_host[number], widened(words(logits)) if dtype else logits)
        self.tokens[number] = drawn.token
        return drawn

    def run_late(self, rows_of, steps, dtype=None, begin_anew=()):
        """Runs steps and reads their answers three steps late. Compares them with the host's."""
        self.tokens, queued = {}, collections.deque()
        waits = self.calls("StreamSynchronize")
        self.defer()
        for number in range(len(KINDS)):
            self.put(number, 40 + number)
        for at in range(steps + LATE):
            if at in begin_anew:
                while queued:
                    self.compare(*queued.popleft(), dtype)
                for number in begin_anew[at]:
                    self.put(number, 90 + number)
                    self.tokens.pop(number)
            if at < steps:
                rows = rows_of(at)
                queued.append((self.queue(rows, dtype=dtype), rows))
                # No call has waited for the device; otherwise steps would be done.
                self.assertEqual([step.done() for step, _ in queued], [False] * len(queued))
            if queued and (len(queued) > LATE or at >= steps):
                self.compare(*queued.popleft(), dtype)
        self.assertEqual(self.calls("StreamSynchronize"), waits)

    def compare(self, step, rows, dtype):
        results = step.results()
        self.assertTrue(step.done())
        self.assertEqual(len(results), len(rows))
        tokens, logprobs = (elements(tensor, kind, len(rows)) for tensor, kind in (
            (step.tokens, ctypes.c_int32), (step.logprobs, ctypes.c_float)))
        for place, number in enumerate(rows):
            if number is None:
                self.assertIsNone(results[place])
                continue
            expected = self.step_on_host(number, dtype)
            self.assertEqual(results[place], expected, f"row {number}")
            self.assertEqual(self.sequences[number].position, self.on_host[number].position)
            self.assertEqual(self.sequences[number].tokens, self.on_host[number].tokens)
            self.assertEqual(tokens[place], expected.token)
            part = expected.raw or expected.processed
            self.assertEqual(logprobs[place], part.logprob if part else 0)
            self.assertNotIn(expected.token, BANNED if number == 3 else ())
        self.assertIs(step.results(), results)

    def test_texts_are_those_of_the_cpu(self):
        self.run_late(lambda at: list(range(len(KINDS))), 24)
        repeated = collections.Counter(self.sequences[1].tokens[len(PROMPT):]).most_common(1)[0][1]
        self.assertGreater(repeated, 1, "penalties of several draws are tested")

    def test_batches_change_from_step_to_step(self):
        def rows_of(at):
            rows = [(number + at // 3) % len(KINDS) for number in range(len(KINDS)) if (number + at) % 4]
            return [*rows[:2], None, *rows[2:]] if at % 3 == 1 else rows

        self.run_late(rows_of, 24, dtype="bfloat16", begin_anew={11: (1, 4)})

    def test_a_bad_row_fails_alone(self):
        self.tokens = {}
        self.defer()
        for number in (1, 2):
            self.put(number, number)
        steps = [self.queue([2, 1], poisoned=2 if at == 1 else None) for at in range(4)]
        for at, step in enumerate(steps):
            bad, good = step.results()
            self.assertEqual(good, self.step_on_host(1))
            if at == 0:
                self.assertEqual(bad, self.step_on_host(2))
                continue
            self.assertIsInstance(bad, sortition.Error)
            self.assertEqual(bad.reason, "LOGIT_NAN")
        self.assertEqual(elements(steps[3].tokens, ctypes.c_int32, 2)[0], -1)
        self.assertEqual(self.sequences[2].position, len(PROMPT) + 1, "it stands where it stood")
        # Beside the stream it continues with the right token.
        self.stream.clear(2)
        self.assertEqual(SAMPLER.draw(self.sequences[2], logits_of(2, self.tokens[2])), self.step_on_host(2))

    def test_later_results_collect_earlier_ones(self):
        self.tokens = {}
        self.defer()
        self.put(1, 1)
        steps = [self.queue([1]) for _ in range(CudaStream.STEPS)]
        with self.assertRaises(sortition.Error) as raised:
            self.queue([1])
        self.assertEqual(raised.exception.code, "RESOURCE_EXHAUSTED")
        last, expected = steps[-1].results(), [self.step_on_host(1) for _ in steps]
        self.assertEqual(last, expected[-1:])
        self.assertEqual([step.results() for step in steps], [[one] for one in expected])

    def test_one_thread_queues_while_another_waits(self):
        self.tokens = {}
        self.defer()
        self.put(1, 1)
        self.library.FakeCudaEnqueueHold(ctypes.c_void_p(STREAM))
        first, found = self.queue([1]), []
        waiting = threading.Thread(target=lambda: found.append(first.results()))
        waiting.start()
        self.library.FakeCudaAwaitWaiting()  # keeps the interpreter's lock while the other thread runs
        self.assertFalse(first.done())
        second = self.queue([1])
        self.assertEqual(self.sequences[1].position, len(PROMPT), "may be asked meanwhile")
        self.library.FakeCudaRelease()
        waiting.join()
        expected = [[self.step_on_host(1)] for _ in range(2)]
        self.assertEqual([found[0], second.results()], expected)


class Mistakes(StreamTest):
    def setUp(self):
        super().setUp()
        self.there = matrix_in(self.memory, numpy.stack([row(1), row(2)]))
        self.stream.put(0, open_kind(1, 3))

    def assert_refused(self, code, text, call):
        with self.assertRaisesRegex(sortition.Error, text) as raised:
            call()
        self.assertEqual(raised.exception.code, code)

    def test_options_that_need_the_host_are_refused_by_name(self):
        for field, options in {
                "dry": {"dry": {"multiplier": 0.8}}, "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
                "bad_words": {"bad_words": [{"tokens": [3, 4]}]}, "allowed_token_ids": {"allowed_token_ids": [1, 2]},
                "min_tokens": {"min_tokens": 3, "stop_token_ids": [1]},
                "phases": {"phases": [{"max_tokens": 2, "then": [1]}]},
                "penalty_scope": {"penalty_scope": {"window": 4}, "presence_penalty": 0.3},
                "banned_phrases": {"banned_phrases": [{"tokens": [3, 4]}]},
                "kept_set": {"kept_set": {"tokens": True}},
                "logprob_token_ids": {"logprob_token_ids": [4], "raw_logprobs": {}}}.items():
            sequence = SAMPLER.open(vocabulary_size=VOCABULARY, seed=1, **options)
            with self.assertRaises(sortition.Error) as raised:
                self.stream.put(1, sequence)
            self.assertEqual((raised.exception.code, raised.exception.field), ("UNIMPLEMENTED", f"parameters.{field}"))
            SAMPLER.draw(sequence, row(1))  # it is no row of the stream's

    def test_rows_and_limits(self):
        beyond = len(KINDS) + 1
        self.assert_refused("INVALID_ARGUMENT", "not below", lambda: self.stream.put(beyond, open_kind(1, 4)))
        self.assert_refused("INVALID_ARGUMENT", "not below", lambda: self.stream.clear(beyond))
        with self.assertRaisesRegex(ValueError, "vocabulary_size"):
            self.stream.put(1, SAMPLER.open(vocabulary_size=VOCABULARY + 1, seed=1))
        self.assert_refused("INVALID_ARGUMENT", "unlike",
                            lambda: self.stream.put(1, SAMPLER.open(vocabulary_size=VOCABULARY - 1, seed=1)))
        many = SAMPLER.open(vocabulary_size=VOCABULARY, seed=1, repetition_penalty=2.0, prompt=list(range(300)))
        self.assert_refused("INVALID_ARGUMENT", "300 logit edits", lambda: self.stream.put(1, many))
        six = SAMPLER.open(vocabulary_size=VOCABULARY, raw_logprobs={"top": 6})
        self.assert_refused("INVALID_ARGUMENT", "top", lambda: self.stream.put(1, six))
        for code, text, make in (
                ("NOT_FOUND", "", lambda: CudaStream(7, rows=1, vocabulary_size=9)),
                ("INVALID_ARGUMENT", "rows", lambda: CudaStream(0, rows=0, vocabulary_size=9)),
                ("INVALID_ARGUMENT", "edits", lambda: CudaStream(0, rows=1, vocabulary_size=9, edits=10))):
            self.assert_refused(code, text, make)

    def test_logits_that_cannot_be_read_queue_nothing(self):
        def step(logits, rows=(0, None), **options):
            return self.stream.step(list(rows), logits, **{"stream": STREAM, **options})

        matrix, apart = numpy.zeros((2, VOCABULARY), numpy.float32), numpy.zeros((2, 2 * VOCABULARY), numpy.float32)
        for kind, text, call in (
                (TypeError, "host's memory", lambda: step(matrix)),
                (TypeError, "dtype", lambda: step(OnCuda(matrix.astype(numpy.float64)))),
                (TypeError, "does not hold", lambda: step(self.there, dtype="bfloat16")),
                (ValueError, "shape", lambda: step(self.there, rows=[0])),
                (ValueError, "shape", lambda: step(OnCuda(matrix[0]))),
                (ValueError, "one at least", lambda: step(self.there, rows=[])),
                (ValueError, "contiguous", lambda: step(OnCuda(apart[:, ::2]))),
                (ValueError, "elements", lambda: step(OnCuda(numpy.zeros((2, VOCABULARY + 1), numpy.float32)))),
                (TypeError, "number of a row", lambda: step(self.there, rows=["a", None])),
                (TypeError, "number of a row", lambda: step(self.there, rows=[2**32 - 1, None]))):
            with self.assertRaisesRegex(kind, text):
                call()
        for text, call in (
                ("not in the memory", lambda: step(OnCuda(matrix))),
                ("named twice", lambda: step(self.there, rows=[0, 0])),
                ("no sequence", lambda: step(self.there, rows=[0, 1])),
                ("multiples of 16", lambda: step(matrix_in(self.memory, matrix, offset=(1 << 20) + 4)))):
            self.assert_refused("INVALID_ARGUMENT", text, call)
        self.library.FakeCudaSetCapturing(1)
        self.addCleanup(self.library.FakeCudaSetCapturing, 0)
        self.assert_refused("FAILED_PRECONDITION", "captures", lambda: step(self.there))
        self.library.FakeCudaSetCapturing(0)
        expected = SAMPLER.draw(open_kind(1, 3), row(1))
        self.assertEqual(step(self.there, stream=None).results(), [expected, None])

    def test_a_sequence_is_the_streams_until_its_row_is_cleared(self):
        sequence, other = open_kind(1, 5), CudaStream(0, rows=2, vocabulary_size=VOCABULARY, edits=50, top=3)
        self.stream.put(1, sequence)
        for call in (lambda: SAMPLER.draw(sequence, row(1)), lambda: sequence.append([1]),
                     lambda: sequence.truncate(0), lambda: other.put(0, sequence),
                     lambda: SAMPLER.step([sequence], self.there_of_one(), stream=STREAM)):
            self.assert_refused("FAILED_PRECONDITION", "in a row of a CudaStream", call)
        self.assertEqual(sequence.tokens, PROMPT)
        self.stream.put(1, open_kind(2, 5))  # in its place
        SAMPLER.draw(sequence, row(1))
        other.put(0, sequence)
        del other
        gc.collect()
        SAMPLER.draw(sequence, row(1))

    def there_of_one(self):
        return matrix_in(self.memory, row(1)[None])

    def test_void_results_are_none(self):
        step = self.stream.step([0, None], self.there, stream=STREAM)
        self.stream.put(0, open_kind(1, 4))
        self.assertEqual(step.results(), [None, None])

    def test_after_close(self):
        sequence = open_kind(1, 5)
        with CudaStream(0, rows=2, vocabulary_size=VOCABULARY, edits=50, top=3) as stream:
            stream.put(0, sequence)
            step = stream.step([0, None], self.there, stream=STREAM)
        self.assertEqual(sequence.position, len(PROMPT) + 1)
        drawn = step.results()[0]
        self.assertEqual(elements(step.tokens, ctypes.c_int32, 2)[0], drawn.token)
        for call in (lambda: stream.put(0, sequence), lambda: stream.clear(0),
                     lambda: stream.step([0, None], self.there, stream=STREAM)):
            self.assert_refused("FAILED_PRECONDITION", "closed", call)
        stream.close()
        SAMPLER.draw(sequence, row(1))

    def test_tensors_keep_the_memory(self):
        step = self.stream.step([0, None], self.there, stream=STREAM)
        self.assertEqual(step.tokens.__dlpack_device__(), (2, 0))
        before = self.calls("MemFree")
        stream = CudaStream(0, rows=2, vocabulary_size=VOCABULARY, edits=50, top=3)
        stream.put(0, open_kind(1, 3))
        tensor = stream.step([0, None], self.there, stream=STREAM).tokens
        del stream
        gc.collect()
        self.assertEqual(self.calls("MemFree"), before)
        del tensor
        gc.collect()
        self.assertGreater(self.calls("MemFree"), before)


if __name__ == "__main__":
    unittest.main(verbosity=2)  # prints why a test is skipped
