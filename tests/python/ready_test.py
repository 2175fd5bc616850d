"""Steps that are sent before their logits are written, with a ready word in the host's memory."""

import asyncio
import faulthandler
import re
import tempfile
import threading
import unittest

import numpy
import sortition
import sortition.local

from rows import VOCABULARY, row, serve

SAMPLER = sortition.local.Sampler()
OPTIONS = {"vocabulary_size": VOCABULARY, "temperature": 0.9, "top_p": 0.9, "repetition_penalty": 1.1, "prompt": [1, 2]}


def expected(seed, steps):
    sequence = SAMPLER.open(seed=seed, **OPTIONS)
    return [SAMPLER.draw(sequence, row(step)).token for step in range(steps)]


def metric(server, series):
    return int(float(re.search(rf"^{re.escape(series)} (\S+)$", server.metrics(), re.MULTILINE).group(1)))


def await_metric(server, series, value):
    """Waits until the server's metric has this value."""
    while metric(server, series) != value:
        pass


class ReadyTest(unittest.TestCase):
    def setUp(self):
        # A thread that waits with the interpreter's lock would wait for ever.
        faulthandler.dump_traceback_later(60, exit=True)
        self.addCleanup(faulthandler.cancel_dump_traceback_later)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.server = self.start("memory")

    def start(self, socket):
        server = serve(f"--memory_listen=unix:{self.folder}/{socket}",
                       listen=f"127.0.0.1:0,unix:{self.folder}/{socket}.stream")
        self.addCleanup(server.__exit__)
        return server

    def connect(self, **options):
        client = sortition.Client(self.server.serving["listen"].split(",")[0], **options)
        self.addCleanup(client.close)
        return client

    def test_a_step_leaves_before_its_logits(self):
        steps, client = 8, self.connect()
        ready, rows = client.ready(), client.allocate_rows(2, VOCABULARY)
        self.assertTrue(ready.shared)
        sequences = [client.open(seed=seed, **OPTIONS) for seed in (1, 2)]
        tokens = []
        for step in range(steps):
            word = ready.expect()
            self.assertFalse(word.is_set)
            rows[:] = numpy.nan
            future = client.submit(sequences, rows, ready=word)
            await_metric(self.server, "sortition_steps_total", step + 1)
            self.assertFalse(future.done())
            rows[:] = row(step)
            word.set()
            self.assertTrue(word.is_set)
            tokens.append([result.token for result in future.result()])
        self.assertEqual(tokens, [list(pair) for pair in zip(expected(1, steps), expected(2, steps))])
        self.assertEqual(metric(self.server, "sortition_ready_wait_seconds_count"), steps)

    def test_same_tokens_if_server_cannot_see_the_word(self):
        tcp, unix = self.server.serving["listen"].split(",")
        inline = sortition.Transport("grpc", shared_memory_bytes=0)
        for transport, target in ((inline, tcp), (inline, unix), ("ring", f"unix:{self.folder}/memory"), ("auto", ())):
            with self.subTest(transport), sortition.Client(
                    target, transport=transport, fallback="none" if target else "in_process") as client:
                ready, sequence = client.ready(), client.open(seed=3, **OPTIONS)
                rows = numpy.empty((1, VOCABULARY), numpy.float32)  # not in shared memory
                tokens = []
                for step in range(4):
                    word = ready.expect()
                    rows[:] = numpy.nan
                    future = client.submit([sequence], rows, ready=word)
                    rows[:] = row(step)
                    word.set()
                    tokens.append(future.result()[0].token)
                self.assertEqual(tokens, expected(3, 4))

    def test_other_threads_run_while_a_step_waits_for_its_word(self):
        client = self.connect()
        ready, rows, sequence = client.ready(), client.allocate_rows(1, VOCABULARY), client.open(seed=4, **OPTIONS)
        word, results = ready.expect(), []
        stepping = threading.Thread(target=lambda: results.extend(client.step([sequence], rows, ready=word)))
        stepping.start()
        await_metric(self.server, "sortition_steps_total", 1)
        rows[:] = row(0)
        word.set()
        stepping.join()
        self.assertEqual([result.token for result in results], expected(4, 1))

    def test_tasks_have_a_word_each(self):
        steps, count = 4, 20

        async def run(client, seed, rows):
            sequence, ready, tokens = await client.open(seed=seed, **OPTIONS), await client.ready(), []
            for step in range(steps):
                word = ready.expect()
                drawing = asyncio.create_task(client.step([sequence], rows, ready=word))
                await asyncio.sleep(0)  # the step is sent
                rows[:] = row(step)
                word.set()
                tokens.append((await drawing)[0].token)
            return tokens

        async def run_all():
            async with await sortition.AsyncClient.connect(self.server.serving["listen"].split(",")[0]) as client:
                rows = client.client.allocate_rows(count, VOCABULARY)
                return await asyncio.gather(*(run(client, seed, rows[seed:seed + 1]) for seed in range(count)))

        self.assertEqual(asyncio.run(run_all()), [expected(seed, steps) for seed in range(count)])

    def test_word_never_set_fails_its_row(self):
        client = self.connect()
        for rows in (client.allocate_rows(1, VOCABULARY), numpy.empty((1, VOCABULARY), numpy.float32)):
            ready, sequence = client.ready(), client.open(seed=5, **OPTIONS)
            word = ready.expect()
            result, = client.step([sequence], rows, ready=word, timeout=0.2)
            self.assertEqual((result.reason, result.code), ("DEADLINE_PASSED", "DEADLINE_EXCEEDED"))
            self.assertIn("ready", result.field)
            self.assertEqual(sequence.position, 2)
            word.set()
            rows[:] = row(0)
            following = ready.expect()
            following.set()
            self.assertEqual(client.step([sequence], rows, ready=following)[0].token, expected(5, 1)[0])

    def test_dead_server_leaves_the_word_to_the_next(self):
        second = self.start("second")
        targets = [server.serving["listen"].split(",")[0] for server in (self.server, second)]
        with sortition.Client(targets) as client:
            ready, rows, sequence = client.ready(), client.allocate_rows(1, VOCABULARY), client.open(seed=6, **OPTIONS)
            word = ready.expect()
            future = client.submit([sequence], rows, ready=word)
            await_metric(self.server, "sortition_steps_total", 1)
            self.server.kill()
            self.server.wait()
            await_metric(second, "sortition_streams_opened_total{transport=\"tcp\"}", 1)
            rows[:] = row(0)
            word.set()
            self.assertEqual(future.result()[0].token, expected(6, 1)[0])

    def test_the_memory_lives_as_long_as_steps_that_name_it(self):
        client = self.connect()
        regions = "sortition_memory_regions"
        sequence, before = client.open(seed=7, **OPTIONS), metric(self.server, regions)
        ready, rows = client.ready(), numpy.empty((1, VOCABULARY), numpy.float32)
        future = client.submit([sequence], rows, ready=ready.expect(), timeout=0.3)
        del ready
        self.assertEqual(future.result()[0].reason, "DEADLINE_PASSED")
        del future
        await_metric(self.server, regions, before)

    def test_invalid_calls_are_refused(self):
        client = self.connect()
        ready, sequence = client.ready(), client.open(seed=8, **OPTIONS)
        first, second = ready.expect(), ready.expect()
        with self.assertRaisesRegex(ValueError, "in the order"):
            second.set()
        first.set()
        first.set()
        second.set()
        with self.assertRaisesRegex(TypeError, "ready"):
            client.step([sequence], [row(0)], ready=ready)
        with self.assertRaisesRegex(ValueError, "stream"):
            client.step([sequence], [row(0)], ready=second, stream=3)
        self.assertEqual(client.step([sequence], [row(0)], ready=second)[0].token, expected(8, 1)[0])
        client.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            client.ready()

    def test_future_belongs_to_the_step_not_the_waiter(self):
        client = self.connect()
        sequence, called = client.open(seed=9, **OPTIONS), threading.Event()
        future = client.submit([sequence], [row(0)])
        self.assertFalse(future.cancel())
        future.add_done_callback(lambda future: called.set())
        self.assertEqual(future.result()[0].token, expected(9, 1)[0])
        self.assertTrue(called.wait(20))
        with self.assertRaisesRegex(ValueError, "vocabulary"):
            client.submit([sequence], [row(0)[:100]])


if __name__ == "__main__":
    unittest.main()
