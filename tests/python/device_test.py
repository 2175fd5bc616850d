"""Rows in a GPU's memory: tensors without a copy, which are only named to a server with the same device."""

import asyncio
import ctypes
import faulthandler
import gc
import threading
import unittest

import numpy
import sortition

from on_device import (BYTES, FAKE, OPTIONS, SAMPLER, ServerTest, Work, address_of, mapped, matrix_in, needs_fake,
                       needs_kernels)
from rows import OnCuda, VOCABULARY, row


@needs_fake
class Tensors(unittest.TestCase):
    def test_arrays_are_not_copied_by_either_protocol(self):
        rows = sortition.CudaRows(0, 5000)
        self.assertEqual((rows.device, rows.bytes), (0, BYTES))
        interface = rows.__cuda_array_interface__
        self.assertEqual((interface["shape"], interface["typestr"], interface["strides"]), ((BYTES,), "|u1", None))
        self.assertFalse(interface["data"][1], "it may be written")
        self.assertEqual(rows.__dlpack_device__(), (2, 0))

        capsule = rows.__dlpack__(stream=7)
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        tensor = pointer(capsule, b"dltensor")
        data, device_type, device, dimensions, dtype = (
            kind.from_address(tensor + at).value for at, kind in (
                (0, ctypes.c_uint64), (8, ctypes.c_int32), (12, ctypes.c_int32), (16, ctypes.c_int32),
                (20, ctypes.c_uint32)))
        self.assertEqual((data, device_type, device, dimensions), (address_of(rows), 2, 0, 1))
        self.assertEqual(dtype, 1 | 8 << 8 | 1 << 16, "unsigned, 8 bits, one lane")
        shape = ctypes.c_uint64.from_address(tensor + 24).value
        self.assertEqual(ctypes.c_int64.from_address(shape).value, BYTES)
        pointer(rows.__dlpack__(max_version=(1, 0)), b"dltensor_versioned")
        with self.assertRaises(BufferError):
            rows.__dlpack__(copy=True)

    def test_keep_the_memory(self):
        gc.collect()
        before = mapped()
        rows = sortition.CudaRows(0, BYTES)
        self.assertEqual(mapped(), before + 1)
        tensor = rows.__dlpack__()
        del rows
        self.assertEqual(mapped(), before + 1)
        del tensor
        self.assertEqual(mapped(), before)

    def test_creation_errors_are_reported(self):
        for device, size, code in ((7, BYTES, "NOT_FOUND"), (-1, BYTES, "NOT_FOUND"), (0, 0, "INVALID_ARGUMENT")):
            with self.assertRaises(sortition.Error) as raised:
                sortition.CudaRows(device, size)
            self.assertEqual(raised.exception.code, code)


@needs_fake
@needs_kernels
class Shared(ServerTest):
    def test_rows_are_only_named(self):
        for transport, target in (("auto", self.server.serving["listen"]), ("ring", f"unix:{self.folder}/memory")):
            with self.subTest(transport), sortition.Client(target, transport=transport) as client:
                rows = sortition.CudaRows(0, BYTES)
                with client.share_device(rows) as memory:
                    self.assertTrue(memory.shared, memory.note)
                    self.assertEqual(memory.note, "")
                    self.assert_same_tokens(client, rows)

    def test_drafts_and_scores(self):
        client, rows = self.connect(), sortition.CudaRows(0, BYTES)
        with client.share_device(rows):
            logits = numpy.stack([row(i) for i in range(4)])
            there = matrix_in(rows, logits)
            sequence, expected = (each.open(seed=3, **OPTIONS) for each in (client, SAMPLER))
            drafts = sortition.Drafts([int(numpy.argmax(logits[0])), 17, 4])
            verified = client.verify(sequence, there, drafts)
            self.assertEqual(verified.tokens, SAMPLER.verify(expected, logits, drafts).tokens)
            options = {**OPTIONS, "raw_logprobs": {}}
            scored = client.score(client.open(seed=1, **options), there, [3, 4, 5, 6])
            of_host = SAMPLER.score(SAMPLER.open(seed=1, **options), logits, [3, 4, 5, 6])
            self.assertEqual([part.logprob for part in scored.raw], [part.logprob for part in of_host.raw])

    def test_the_stream_is_done_before_the_step_is_sent(self):
        client, rows = self.connect(), sortition.CudaRows(0, BYTES)
        with client.share_device(rows):
            sequence, expected = (each.open(seed=3, **OPTIONS) for each in (client, SAMPLER))
            there, waited = matrix_in(rows, numpy.zeros(VOCABULARY, numpy.float32)), []

            def work(stream):
                waited.append(stream)
                matrix_in(rows, row(len(waited)))

            with Work(work):
                for number, stream in enumerate((None, 77, 0), 1):
                    self.assertEqual(client.draw(sequence, there, stream=stream).token,
                                     SAMPLER.draw(expected, row(number)).token)
            self.assertEqual(waited, [0, 77, 0])

    def test_other_threads_run_while_one_waits_for_its_stream(self):
        # Another thread ends the stream's work, and needs the GIL for it while the first one waits.
        library, client, rows = ctypes.CDLL("libcuda.so.1"), self.connect(), sortition.CudaRows(0, BYTES)
        faulthandler.dump_traceback_later(30, exit=True)
        self.addCleanup(faulthandler.cancel_dump_traceback_later)

        def release():
            library.FakeCudaAwaitWaiting()
            library.FakeCudaRelease()

        async def draw_as_a_task():
            async with await sortition.AsyncClient.connect(self.server.serving["listen"]) as of_tasks:
                sequence = await of_tasks.open(seed=3, **OPTIONS)
                with await of_tasks.share_device(rows):
                    library.FakeCudaHold()
                    drawing = asyncio.create_task(of_tasks.draw(sequence, there))
                    await asyncio.to_thread(library.FakeCudaAwaitWaiting)
                    self.assertFalse(drawing.done())
                    library.FakeCudaRelease()
                    return (await drawing).token

        expected = SAMPLER.draw(SAMPLER.open(seed=3, **OPTIONS), row(1)).token
        there = matrix_in(rows, row(1))
        with client.share_device(rows):
            sequence, other = client.open(seed=3, **OPTIONS), threading.Thread(target=release)
            library.FakeCudaHold()
            other.start()
            self.assertEqual(client.draw(sequence, there).token, expected)
            other.join()
        self.assertEqual(asyncio.run(draw_as_a_task()), expected)

    def test_a_stream_that_captures_is_refused(self):
        client, rows = self.connect(), sortition.CudaRows(0, BYTES)
        library = ctypes.CDLL("libcuda.so.1")
        with client.share_device(rows):
            sequence = client.open(seed=3, **OPTIONS)
            there = matrix_in(rows, row(1))
            library.FakeCudaSetCapturing(1)
            self.addCleanup(library.FakeCudaSetCapturing, 0)
            with self.assertRaisesRegex(sortition.Error, "captures a graph"):
                client.draw(sequence, there)
            self.assertEqual(sequence.position, 2)
            library.FakeCudaSetCapturing(0)
            client.draw(sequence, there)

    def test_closed_memory_stays_until_its_steps_end(self):
        client, rows = self.connect(), sortition.CudaRows(0, BYTES)
        memory = client.share_device(rows)
        sequence, expected = (each.open(seed=3, **OPTIONS) for each in (client, SAMPLER))
        there, refused = matrix_in(rows, row(1)), []

        def work(_):
            memory.close()
            try:
                client.draw(client.open(seed=4, **OPTIONS), there)
            except TypeError as error:
                refused.append(error)

        with Work(work):
            self.assertEqual(client.draw(sequence, there).token, SAMPLER.draw(expected, row(1)).token)
        self.assertIn("share_device", str(refused))
        with self.assertRaisesRegex(TypeError, "share_device"):
            client.draw(sequence, there)
        with client.share_device(rows):
            self.assertEqual(client.draw(sequence, there).token, SAMPLER.draw(expected, row(1)).token)

    def test_memory_is_freed_with_its_last_reference(self):
        gc.collect()
        before = mapped()
        client, rows = self.connect(), sortition.CudaRows(0, BYTES)
        memory = client.share_device(rows)
        sequence, there = client.open(seed=3, **OPTIONS), matrix_in(rows, row(1))
        del rows
        client.draw(sequence, there)
        self.assertEqual(mapped(), before + 1)
        memory.close()
        self.assertEqual(mapped(), before)
        memory.close()  # has no effect

    def test_memory_outlives_its_client(self):
        rows = sortition.CudaRows(0, BYTES)
        client = self.connect()
        memory = client.share_device(rows)
        client.close()
        memory.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            client.share_device(rows)

    def test_foreign_memory_is_refused(self):
        client, rows = self.connect(), sortition.CudaRows(0, BYTES)
        sequences = [client.open(seed=seed, **OPTIONS) for seed in range(2)]
        first, there = matrix_in(rows, row(1)), matrix_in(rows, numpy.stack([row(1), row(2)]))
        mine = numpy.stack([row(1), row(2)])
        # A tensor with its last element outside of the memory.
        behind = (ctypes.c_float * VOCABULARY).from_address(address_of(rows) + rows.bytes - 4 * VOCABULARY + 4)
        with self.assertRaisesRegex(TypeError, r"row 0 .*another device \(CUDA device 0\).*share_device"):
            client.step(sequences, there)
        with client.share_device(rows), self.connect().share_device(sortition.CudaRows(0, BYTES)):
            for wrong, text in ((OnCuda(mine), "row 0"), ([OnCuda(row(1)), OnCuda(row(2))], "row 0"),
                                ([first, OnCuda(numpy.frombuffer(behind, numpy.float32))], "row 1")):
                with self.assertRaisesRegex(TypeError, text + " is on another device"):
                    client.step(sequences, wrong)
            with self.assertRaisesRegex(TypeError, "different devices"):
                client.step(sequences, [first, row(2)])
            with self.assertRaises(sortition.Error) as raised:
                client.share_device(rows)
            self.assertEqual(raised.exception.code, "ALREADY_EXISTS")
            with self.assertRaisesRegex(TypeError, "share_device"):
                other = self.connect()
                other.step([other.open(seed=seed, **OPTIONS) for seed in range(2)], there)
        with self.assertRaisesRegex(TypeError, "share_device"):
            client.step(sequences, there)
        self.assertEqual([sequence.position for sequence in sequences], [2, 2])

    def test_tasks(self):
        steps, count = 4, 8

        async def run(client, rows, seed):
            sequence = await client.open(seed=seed, **OPTIONS)
            drawn = []
            for step in range(steps):
                there = matrix_in(rows, row(step), seed * 4 * VOCABULARY)
                drawn.append((await client.draw(sequence, there, stream=seed)).token)
            return drawn

        async def run_all():
            async with await sortition.AsyncClient.connect(self.server.serving["listen"]) as client:
                rows = sortition.CudaRows(0, BYTES)
                with await client.share_device(rows) as memory:
                    self.assertTrue(memory.shared, memory.note)
                    with Work(lambda stream: threads.add(threading.get_ident())):
                        drawn = await asyncio.gather(*(run(client, rows, seed) for seed in range(count)))
                with self.assertRaisesRegex(TypeError, "share_device"):
                    await client.draw(await client.open(seed=1, **OPTIONS), matrix_in(rows, row(1)))
                return drawn

        threads = set()
        drawn = asyncio.run(run_all())
        self.assertNotIn(threading.get_ident(), threads, "the loop's thread does not wait for a device")
        self.assertTrue(threads)
        for seed in range(count):
            sequence = SAMPLER.open(seed=seed, **OPTIONS)
            self.assertEqual(drawn[seed], [SAMPLER.draw(sequence, row(step)).token for step in range(steps)])

    def test_memory_released_by_a_task_stays_until_its_step_ends(self):
        async def run():
            async with await sortition.AsyncClient.connect(self.server.serving["listen"]) as client:
                loop, waiting = asyncio.get_running_loop(), asyncio.Event()
                sequence, rows = await client.open(seed=3, **OPTIONS), sortition.CudaRows(0, BYTES)
                memory = await client.share_device(rows)
                there = matrix_in(rows, row(1))
                with Work(lambda stream: loop.call_soon_threadsafe(waiting.set)):
                    drawing = asyncio.create_task(client.draw(sequence, there))
                    await waiting.wait()
                    memory.close()
                    del memory, rows, there
                    return (await drawing).token

        gc.collect()
        before = mapped()
        self.assertEqual(asyncio.run(run()), SAMPLER.draw(SAMPLER.open(seed=3, **OPTIONS), row(1)).token)
        while mapped() != before:  # it is unmapped on a separate thread, not on the one that brings answers
            pass

    def test_dead_server_leaves_rows_to_worker(self):
        rows = sortition.CudaRows(0, BYTES)
        with self.start("another") as server:
            client = sortition.Client(server.serving["listen"], fallback="in_process", in_process_threads=1)
            self.addCleanup(client.close)
            memory = client.share_device(rows)
            self.assertTrue(memory.shared, memory.note)
            self.assert_same_tokens(client, rows, 2)
            server.kill()
            server.wait()
        self.assert_same_tokens(client, rows)
        self.assertEqual((memory.shared, memory.note), (False, "the stream shares no memory"))
        memory.close()
        self.assertEqual((memory.shared, memory.note), (False, "the memory is closed"))


@needs_fake
class ReadToTheHost(ServerTest):
    DEVICES = "cpu"

    def test_for_a_server_without_the_device(self):
        client, rows = self.connect(), sortition.CudaRows(0, BYTES)
        with client.share_device(rows) as memory:
            self.assertFalse(memory.shared)
            self.assertEqual(memory.note, "the server takes no memory of this device")
            self.assert_same_tokens(client, rows)

    def test_for_a_stream_that_shares_no_memory(self):
        for client in (self.connect(transport=sortition.Transport("grpc", shared_memory_bytes=0)),
                       sortition.Client(fallback="in_process", in_process_threads=1)):
            rows = sortition.CudaRows(0, BYTES)
            with client.share_device(rows) as memory:
                self.assertEqual((memory.shared, memory.note), (False, "the stream shares no memory"))
                self.assert_same_tokens(client, rows)
            client.close()

    def test_sequence_closed_while_waiting_for_its_stream(self):
        client, rows = sortition.Client(fallback="in_process", in_process_threads=1), sortition.CudaRows(0, BYTES)

        async def draw(asynchronous, sequence, there):
            with Work(lambda stream: sequence.close()):
                return (await asynchronous.step([sequence], there, timeout=1))[0]

        with client.share_device(rows):
            there = matrix_in(rows, row(1))
            sequence = client.open(seed=3, **OPTIONS)
            with Work(lambda stream: sequence.close()):
                drawn = client.draw(sequence, there)
            self.assertEqual(drawn.token, SAMPLER.draw(SAMPLER.open(seed=3, **OPTIONS), row(1)).token)
            for _ in range(8):
                result = asyncio.run(draw(sortition.AsyncClient(client), client.open(seed=3, **OPTIONS), there))
                self.assertTrue(isinstance(result, sortition.Error) or result.token == drawn.token)
        client.close()



@unittest.skipIf(FAKE, "the driver is the tests' own")
class OnAGpu(ServerTest):
    """To be run by hand on a machine with a GPU and torch, without TEST_FAKE_CUDA and its folder in LD_LIBRARY_PATH."""

    @classmethod
    def setUpClass(cls):
        import torch
        if not torch.cuda.is_available():
            raise unittest.SkipTest("torch sees no GPU")
        super().setUpClass()

    def test_torch_writes_the_rows(self):
        import torch
        client, rows = self.connect(), sortition.CudaRows(0, BYTES)
        with client.share_device(rows) as memory:
            self.assertTrue(memory.shared, memory.note)
            there = torch.from_dlpack(rows).view(torch.bfloat16)[:2 * VOCABULARY].view(2, VOCABULARY)
            sequences, expected = ([each.open(seed=seed, **OPTIONS) for seed in range(2)] for each in (client, SAMPLER))
            for step in range(20):
                logits = torch.randn(2, VOCABULARY, device="cuda")
                with torch.cuda.stream(torch.cuda.Stream()):
                    torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
                    there.copy_(logits)
                    drawn = client.step(sequences, there)
                self.assertEqual([result.token for result in drawn],
                                 [result.token for result in SAMPLER.step(expected, there.cpu())])


if __name__ == "__main__":
    unittest.main(verbosity=2)  # prints why a test is skipped
