"""A worker that waits for nothing.

A stream of the device says when logits are there, and its work takes the tokens from the device's memory.
"""

import asyncio
import concurrent.futures
import ctypes
import faulthandler
import threading
import unittest

import numpy
import sortition

from on_device import BYTES, OPTIONS, SAMPLER, ServerTest, Work, matrix_in, needs_fake, needs_kernels
from rows import VOCABULARY, row

NAN = numpy.full(VOCABULARY, numpy.nan, numpy.float32)


def elements(tensor, kind, count):
    """The elements of this DLPack tensor: the tests' driver keeps them on the host."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    capsule = tensor.__dlpack__()
    data = ctypes.c_uint64.from_address(pointer(capsule, b"dltensor")).value
    return list((kind * count).from_address(data))


@needs_fake
@needs_kernels
class OnTheServersDevice(ServerTest):
    def setUp(self):
        # A thread that waits with the interpreter's lock would wait for ever.
        faulthandler.dump_traceback_later(60, exit=True)
        self.addCleanup(faulthandler.cancel_dump_traceback_later)
        self.library = ctypes.CDLL("libcuda.so.1")
        self.client = self.connect()
        self.rows = sortition.CudaRows(0, BYTES)
        memory = self.client.share_device(self.rows)
        self.addCleanup(memory.close)

    def test_nothing_waits_for_the_device_or_the_answers(self):
        ready, results = self.client.cuda_ready(), sortition.CudaResults(0, 2)
        self.assertTrue(ready.shared)
        self.assertEqual((ready.device, results.device, results.rows), (0, 0, 2))
        self.assertEqual(results.tokens.__dlpack_device__(), (2, 0))
        options = {**OPTIONS, "raw_logprobs": {}}
        sequence, expected = (each.open(seed=3, **options) for each in (self.client, SAMPLER))
        for step in range(8):
            there = matrix_in(self.rows, NAN)
            self.library.FakeCudaHold()
            future = self.client.submit([sequence], there, ready=ready, results=results, stream=5)
            self.library.FakeCudaAwaitWaiting()
            self.assertFalse(future.done())
            matrix_in(self.rows, row(step))
            self.library.FakeCudaRelease()
            # Work queued behind the step begins.
            self.assertEqual(self.library.cuStreamSynchronize(ctypes.c_void_p(5)), 0)
            tokens = elements(results.tokens, ctypes.c_int32, 2)
            logprobs = elements(results.logprobs, ctypes.c_float, 2)
            drawn, of_host = future.result()[0], SAMPLER.draw(expected, row(step))
            self.assertEqual((drawn.token, drawn.raw.logprob), (of_host.token, of_host.raw.logprob))
            self.assertEqual((tokens, logprobs), ([of_host.token, -1], [of_host.raw.logprob, 0]))

    def test_logits_that_a_stream_copies_to_the_host(self):
        ready, rows = self.client.cuda_ready(0), self.client.allocate_rows(1, VOCABULARY)
        sequence, expected = (each.open(seed=3, **OPTIONS) for each in (self.client, SAMPLER))
        with self.assertRaisesRegex(ValueError, "stream"):
            self.client.step([sequence], rows, ready=ready)
        for step in range(3):
            rows[:] = numpy.nan

            def work(stream):
                if stream == 9:
                    rows[:] = row(step)

            with Work(work):
                drawn = self.client.step([sequence], rows, ready=ready, stream=9)[0]
            self.assertEqual(drawn.token, SAMPLER.draw(expected, row(step)).token)

    def test_the_loop_of_tasks_goes_on(self):
        async def run():
            loop, busy = asyncio.get_running_loop(), threading.Event()
            loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(1))
            async with sortition.AsyncClient(self.client) as client:
                sequence, ready = await client.open(seed=3, **OPTIONS), await client.cuda_ready()
                there = matrix_in(self.rows, NAN)
                loop.run_in_executor(None, busy.wait)  # no thread of the loop is free
                self.library.FakeCudaHold()
                drawing = asyncio.create_task(client.step([sequence], there, ready=ready))
                await asyncio.sleep(0)
                self.library.FakeCudaAwaitWaiting()
                self.assertFalse(drawing.done())
                matrix_in(self.rows, row(1))
                self.library.FakeCudaRelease()
                drawn = await drawing
                busy.set()
                return drawn[0].token

        self.assertEqual(asyncio.run(run()), SAMPLER.draw(SAMPLER.open(seed=3, **OPTIONS), row(1)).token)

    def test_a_word_belongs_to_a_stream(self):
        ready, there = self.client.cuda_ready(), matrix_in(self.rows, row(1))
        sequence = self.client.open(seed=3, **OPTIONS)
        self.client.step([sequence], there, ready=ready, stream=5)
        with self.assertRaises(sortition.Error) as raised:
            self.client.step([sequence], there, ready=ready, stream=6)
        self.assertEqual(raised.exception.code, "INVALID_ARGUMENT")
        self.assertIn("another stream", str(raised.exception))
        self.client.step([sequence], there, ready=ready, stream=5)

    def test_a_stream_that_captures_is_refused(self):
        ready, results = self.client.cuda_ready(), sortition.CudaResults(0, 1)
        sequence, there = self.client.open(seed=3, **OPTIONS), matrix_in(self.rows, row(1))
        self.library.FakeCudaSetCapturing(1)
        self.addCleanup(self.library.FakeCudaSetCapturing, 0)
        for taken in ({"ready": ready}, {"results": results, "ready": ready}):
            with self.assertRaisesRegex(sortition.Error, "captures a graph"):
                self.client.submit([sequence], there, **taken)
        self.library.FakeCudaSetCapturing(0)
        self.client.submit([sequence], there, ready=ready, results=results).result()

    def test_answers_are_of_one_step_at_a_time(self):
        results, word = sortition.CudaResults(0, 1), self.client.ready().expect()
        sequences = [self.client.open(seed=seed, **OPTIONS) for seed in range(2)]
        with self.assertRaisesRegex(ValueError, "stream"):
            self.client.submit(sequences[:1], [row(1)], results=results)
        under_way = self.client.submit(sequences[:1], [row(1)], ready=word, results=results, stream=0)
        with self.assertRaisesRegex(sortition.Error, "has not ended"):
            self.client.submit(sequences[1:], [row(1)], results=results, stream=0)
        word.set()
        under_way.result()
        with self.assertRaisesRegex(sortition.Error, "room for 1"):
            self.client.submit(sequences, [row(1), row(2)], results=results, stream=0)
        self.client.submit(sequences[1:], [row(1)], results=results, stream=0).result()
        # No work waits for a refused step.
        self.assertEqual(self.library.cuStreamSynchronize(None), 0)

    def test_creation_errors_are_reported(self):
        for make in (lambda: self.client.cuda_ready(7), lambda: sortition.CudaResults(7, 1)):
            with self.assertRaises(sortition.Error) as raised:
                make()
            self.assertEqual(raised.exception.code, "NOT_FOUND")
        with self.assertRaisesRegex(sortition.Error, "rows: 0"):
            sortition.CudaResults(0, 0)

    def test_last_reference_may_be_dropped_by_the_answer(self):
        # Releasing waits for the device, and the device for an answer that this thread delivers.
        sequences = [self.client.open(seed=seed, **OPTIONS) for seed in range(3)]
        there = [matrix_in(self.rows, row(i), i * 4 * VOCABULARY) for i in range(3)]
        held, answered = threading.Event(), threading.Event()

        def work(stream):
            held.set()
            answered.wait()

        self.library.FakeCudaHold()
        first = self.client.submit(sequences[:1], there[:1], ready=self.client.cuda_ready(), stream=5)
        self.library.FakeCudaAwaitWaiting()
        waits_for_an_answer = Work(work)
        with waits_for_an_answer:
            second = self.client.submit(sequences[1:2], there[1:2], ready=self.client.cuda_ready(), stream=6)
            held.wait()
            self.library.FakeCudaRelease()
            first.result()
        self.client.submit(sequences[2:], there[2:]).result()
        answered.set()
        second.result()


if __name__ == "__main__":
    unittest.main(verbosity=2)  # prints why a test is skipped
