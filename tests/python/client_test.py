"""The client against real servers: many callers on one stream, lost servers, fallback, errors."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

import numpy
import sortition
import sortition.local
from sortition.v1.parameters_pb2 import SamplingParameters

from rows import VOCABULARY, row, serve
from sortitiond_process import free_port

SAMPLER = sortition.local.Sampler()
OPTIONS = {"vocabulary_size": VOCABULARY, "temperature": 0.9, "top_p": 0.9, "repetition_penalty": 1.1, "prompt": [1, 2]}


def expected(seed, steps):
    sequence = SAMPLER.open(seed=seed, **OPTIONS)
    return [SAMPLER.draw(sequence, row(step)).token for step in range(steps)]


class ManyCallers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = serve()

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def test_threads_share_a_stream(self):
        steps = 20
        results = {}
        with sortition.Client(self.server.serving["listen"]) as client:

            def run(seed):
                with client.open(seed=seed, **OPTIONS) as sequence:
                    results[seed] = [client.draw(sequence, row(step)).token for step in range(steps)]

            threads = [threading.Thread(target=run, args=(seed,)) for seed in range(24)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(results, {seed: expected(seed, steps) for seed in range(24)})

    def test_tasks_share_a_stream(self):
        steps = 5

        async def run(client, seed):
            sequence = await client.open(seed=seed, **OPTIONS)
            return [(await client.draw(sequence, row(step))).token for step in range(steps)]

        async def run_all():
            async with await sortition.AsyncClient.connect(self.server.serving["listen"]) as client:
                return await asyncio.gather(*(run(client, seed) for seed in range(200)))

        self.assertEqual(asyncio.run(run_all()), [expected(seed, steps) for seed in range(200)])

    def test_forks_and_batches_of_tasks(self):
        async def run():
            async with await sortition.AsyncClient.connect(self.server.serving["listen"]) as client:
                parent = await client.open(seed=1, **OPTIONS)
                await client.draw(parent, row(0))
                children = [await client.fork(parent, seed=1, choice_index=index, repetition_penalty=1.1)
                            for index in range(3)]
                results = await client.step(children, [row(1)] * 3)
                return [result.token for result in results], [child.tokens for child in children]

        drawn, tokens = asyncio.run(run())
        parent = SAMPLER.open(seed=1, **OPTIONS)
        SAMPLER.draw(parent, row(0))
        children = [SAMPLER.fork(parent, seed=1, choice_index=index, repetition_penalty=1.1) for index in range(3)]
        self.assertEqual(drawn, [SAMPLER.draw(child, row(1)).token for child in children])
        self.assertEqual(tokens, [child.tokens for child in children])

    def test_a_cancelled_task_leaves_the_client_whole(self):
        async def run():
            async with await sortition.AsyncClient.connect(self.server.serving["listen"]) as client:
                sequence = await client.open(seed=4, **OPTIONS)
                task = asyncio.ensure_future(client.draw(sequence, row(0)))
                await asyncio.sleep(0)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                other = await client.open(seed=5, **OPTIONS)
                return (await client.draw(other, row(0))).token

        self.assertEqual(asyncio.run(run()), expected(5, 1)[0])

    def test_a_client_may_go_within_its_own_callback(self):
        # As if the garbage collector ran in the callback.
        holder, gone = [sortition.Client(fallback="in_process", in_process_threads=1)], threading.Event()

        def on_done(future):
            holder.clear()
            gone.set()

        sequence = holder[0].open(**OPTIONS)
        word = holder[0].ready().expect()
        holder[0].submit([sequence], row(0), ready=word).add_done_callback(on_done)
        word.set()
        self.assertTrue(gone.wait(20))

    def test_names_are_taken_once(self):
        with sortition.Client(self.server.serving["listen"]) as client:
            first = client.open("name", vocabulary_size=VOCABULARY)
            with self.assertRaises(sortition.Error) as raised:
                client.open("name", vocabulary_size=VOCABULARY)
            self.assertEqual(raised.exception.code, "ALREADY_EXISTS")
            first.close()
            client.open("name", vocabulary_size=VOCABULARY)
            with self.assertRaisesRegex(ValueError, "closed"):
                client.draw(first, row(0))

    def test_parameters_of_a_later_release_are_refused_or_named(self):
        later = SamplingParameters.FromString(b"\xb8\x3e\x01")  # field 999
        target = self.server.serving["listen"]
        with sortition.Client(target) as client:
            with self.assertRaisesRegex(sortition.Error, "UNKNOWN_FIELD.*open.parameters.#999"):
                client.open(seed=3, parameters=later, **OPTIONS)
            self.assertEqual(client.ignored_fields, [])
        with sortition.Client(target, ignore_unknown_fields=True) as client:
            sequence = client.open(seed=3, parameters=later, **OPTIONS)
            self.assertEqual(client.ignored_fields, ["open.parameters.#999"])
            self.assertEqual([client.draw(sequence, row(step)).token for step in range(3)], expected(3, 3))

    def test_times_are_finite(self):
        for wrong in (float("nan"), float("inf"), -1.0):
            for name, options in (("default_timeout", {"default_timeout": wrong}),
                                  ("keepalive", {"transport": sortition.Transport(keepalive=wrong)}),
                                  *((name, {"retry": sortition.Retry(**{name: wrong})})
                                    for name in ("connect_timeout", "backoff_initial", "backoff_max",
                                                 "fallback_stay"))):
                with self.subTest(f"{name} {wrong}"), self.assertRaisesRegex(ValueError, f"^{name}: {wrong:g}; "):
                    sortition.Client(fallback="in_process", **options)
            with sortition.Client(fallback="in_process", in_process_threads=1) as client:
                sequence = client.open(**OPTIONS)
                for call in (client.step, client.submit):
                    with self.assertRaisesRegex(ValueError, f"^timeout: {wrong:g}; "):
                        call([sequence], [row(0)], timeout=wrong)

    def test_a_closed_client_says_so(self):
        client = sortition.Client(self.server.serving["listen"])
        sequence = client.open(vocabulary_size=VOCABULARY)
        client.close()
        client.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            client.draw(sequence, row(0))


class Transports(unittest.TestCase):
    def test_same_tokens_by_every_transport(self):
        with tempfile.TemporaryDirectory() as folder:
            server = serve(f"--memory_listen=unix:{folder}/memory.sock",
                           listen=f"127.0.0.1:0,unix:{folder}/stream.sock")
            tcp, unix = server.serving["listen"].split(",")
            inline = sortition.Transport("grpc", shared_memory_bytes=0)
            for transport, target, used in ((inline, tcp, "grpc"), (inline, unix, "grpc"), ("grpc", tcp, "grpc"),
                                            ("auto", unix, "ring")):
                with self.subTest(transport, target=target), sortition.Client(target, transport=transport) as client:
                    self.assertEqual(client.transport, used)
                    self.assertEqual(client.row_memory, transport is not inline)
                    self.assertEqual(client.transport_note, "")
                    sequence = client.open(seed=2, **OPTIONS)
                    rows = client.allocate_rows(1, VOCABULARY)
                    tokens = []
                    for step in range(6):
                        rows[0] = row(step)
                        tokens.append(client.draw(sequence, rows if step % 2 else row(step)).token)
                    self.assertEqual(tokens, expected(2, 6))
                rows[0] = 0  # the array outlives the client
            server.__exit__()

    def test_rows_allocated_without_a_server(self):
        with sortition.Client(fallback="in_process", in_process_threads=1) as client:
            rows = client.allocate_rows(3, VOCABULARY, "float16")
            self.assertEqual((rows.shape, rows.dtype.name), ((3, VOCABULARY), "float16"))
            self.assertEqual(client.transport, "in_process")
            with self.assertRaisesRegex(ValueError, "transport"):
                sortition.Client("127.0.0.1:1", transport="pigeon")


class SignalsAndForks(unittest.TestCase):
    def test_a_signal_ends_the_call_and_not_the_step(self):
        with tempfile.TemporaryDirectory() as folder, serve(f"--memory_listen=unix:{folder}/memory") as server:
            target = server.serving["listen"]
            for transport, options in (("in_process", {"fallback": "in_process", "in_process_threads": 1}),
                                       ("grpc", {"targets": target, "transport": "grpc"}),
                                       ("ring", {"targets": f"unix:{folder}/memory", "transport": "ring"})):
                with self.subTest(transport), sortition.Client(**options) as client:
                    sequence = client.open(seed=6, **OPTIONS)
                    word = client.ready().expect()
                    interrupting = threading.Thread(target=self.interrupt_step_of, args=(sequence,))
                    interrupting.start()
                    with self.assertRaises(KeyboardInterrupt):
                        client.step([sequence], [row(0)], timeout=1000, ready=word)
                    interrupting.join()
                    result, = client.step([sequence], [row(0)])
                    self.assertEqual(result.reason, "STEP_IN_FLIGHT")
                    word.set()
                    while sequence.position == len(OPTIONS["prompt"]):
                        pass
                    self.assertEqual(sequence.tokens, OPTIONS["prompt"] + expected(6, 1))
                    self.assertEqual(client.draw(sequence, row(1)).token, expected(6, 2)[1])

    @staticmethod
    def interrupt_step_of(sequence):
        try:
            while True:
                sequence.truncate(sequence.position)
        except sortition.Error:  # a step is in flight
            os.kill(os.getpid(), signal.SIGINT)

    def test_a_closed_client_ends_a_step_that_was_left(self):
        with sortition.Client(fallback="in_process", in_process_threads=1) as client:
            sequence = client.open(**OPTIONS)
            word = client.ready().expect()
            interrupting = threading.Thread(target=self.interrupt_step_of, args=(sequence,))
            interrupting.start()
            with self.assertRaises(KeyboardInterrupt):
                client.step([sequence], [row(0)], timeout=1000, ready=word)
            interrupting.join()

    def test_a_forked_process_exits(self):
        for transport in ("in_process", "grpc", "ring"):
            with self.subTest(transport), tempfile.TemporaryDirectory() as folder, \
                    serve(f"--memory_listen=unix:{folder}/memory") as server:
                target = {"grpc": server.serving["listen"], "ring": f"unix:{folder}/memory"}.get(transport, ())
                run = subprocess.run(
                    [sys.executable, "-c", FORKING_PROGRAM, json.dumps(target), transport], env=os.environ,
                    capture_output=True, text=True, timeout=60, check=False)
                self.assertEqual((run.stdout, run.stderr, run.returncode), ("the parent's\n" * 2, "", 0))


# Its child exits as any program does, with the parent's objects. The parent then uses them again.
FORKING_PROGRAM = """
import json, os, sys, numpy, sortition
targets, transport = json.loads(sys.argv[1]), sys.argv[2]
client = sortition.Client(targets, fallback="none" if targets else "in_process",
                          transport="auto" if transport == "in_process" else transport)
sequence = client.open(vocabulary_size=1000, repetition_penalty=1.1)
rows, ready = client.allocate_rows(1, 1000), client.ready()
rows[:] = 0
client.draw(sequence, rows)
child = os.fork()
if child == 0:
    for use in (lambda: client.draw(sequence, rows), lambda: client.open(vocabulary_size=9)):
        try:
            use()
        except ValueError as error:
            print("the parent's" if "the parent's" in str(error) else error)
    sequence.close()
    client.close()
    own = sortition.Client(fallback="in_process", in_process_threads=1)
    own.draw(own.open(vocabulary_size=1000), rows)
    sys.exit()
_, status = os.waitpid(child, 0)
client.draw(sequence, rows)
sys.exit(status)
"""


class CompactRows(unittest.TestCase):
    def test_hardly_a_row_is_sent_again(self):
        """The client foresees the rows that their first tokens do not decide."""
        width, steps = 5000, 8
        with serve() as server:
            with sortition.Client(server.serving["listen"], rows="compact(256)",
                                  transport=sortition.Transport("grpc", shared_memory_bytes=0)) as client:
                for options in ({}, {"temperature": 0.6, "top_p": 0.9}, {"top_p": 0.95}, {"min_p": 0.05},
                                {"raw_logprobs": {"top": 3}}, {"temperature": 0.7, "top_k": 20, "top_p": 0.8}):
                    ours, alone = ([sampler.open(vocabulary_size=width, prompt=[1], seed=seed, **options)
                                    for seed in range(5)] for sampler in (client, SAMPLER))
                    for step in range(steps):
                        rows = numpy.stack([row(100 * step + seed, width) for seed in range(5)])
                        drawn, law = (sampler.step(sequences, rows)
                                      for sampler, sequences in ((client, ours), (SAMPLER, alone)))
                        self.assertEqual([draw.token for draw in drawn], [draw.token for draw in law], options)
            outcomes = {name: float(count) for name, count in re.findall(
                r'sortition_compact_rows_total\{outcome="(\w+)"\} (\S+)', server.metrics())}
        decided = outcomes.pop("decided")
        self.assertGreater(decided, 6 * 5 * steps / 3)
        self.assertLessEqual(sum(outcomes.values()), 0.02 * 6 * 5 * steps, outcomes)


class LostServers(unittest.TestCase):
    def test_kill_and_restart_change_nothing(self):
        listen = f"127.0.0.1:{free_port()}"
        tokens = []
        server = serve(listen=listen)
        with sortition.Client(listen, retry=sortition.Retry(backoff_max=0.2)) as client:
            sequence = client.open(seed=9, **OPTIONS)
            for step in range(12):
                if step % 4 == 2:
                    server.kill()
                    server.wait()
                    server = serve(listen=listen)
                tokens.append(client.draw(sequence, row(step)).token)
        server.__exit__()
        self.assertEqual(tokens, expected(9, 12))

    def test_falls_back_only_if_allowed(self):
        listen = f"127.0.0.1:{free_port()}"
        with self.assertRaises(sortition.Error) as raised:
            sortition.Client(listen)
        self.assertEqual(raised.exception.code, "UNAVAILABLE")
        server = serve(listen=listen)
        with sortition.Client(listen, fallback="in_process", in_process_threads=1) as client:
            sequence = client.open(seed=3, **OPTIONS)
            self.assertFalse(client.in_process)
            tokens = [client.draw(sequence, row(step)).token for step in range(3)]
            server.kill()
            server.wait()
            tokens += [client.draw(sequence, row(step)).token for step in range(3, 6)]
            self.assertTrue(client.in_process)
        self.assertEqual(tokens, expected(3, 6))

    def test_a_deadline_is_an_error_of_the_row(self):
        server = serve()
        with sortition.Client(server.serving["listen"]) as client:
            sequence = client.open(seed=3, **OPTIONS)
            server.kill()
            server.wait()
            result, = client.step([sequence], [row(0)], timeout=0.3)
            self.assertEqual((result.reason, result.code), ("DEADLINE_PASSED", "DEADLINE_EXCEEDED"))
            self.assertEqual(sequence.position, 2)


class FrozenServers(unittest.TestCase):
    def test_other_threads_run_while_rows_are_given_back(self):
        # Releasing the memory waits for the server's answer, and only another thread wakes the server.
        self.addCleanup(sys.setswitchinterval, sys.getswitchinterval())
        with tempfile.TemporaryDirectory() as folder, serve(f"--memory_listen=unix:{folder}/memory") as server:
            with sortition.Client(server.serving["listen"], transport="grpc") as client:
                allocated, giving_back = [], threading.Event()
                asking = threading.Thread(target=lambda: allocated.append(client.allocate_rows(1, VOCABULARY)))
                rows = client.allocate_rows(1, VOCABULARY)
                server.send_signal(signal.SIGSTOP)
                os.waitid(os.P_PID, server.pid, os.WSTOPPED | os.WNOWAIT)
                asking.start()
                state = f"/proc/self/task/{asking.native_id}/syscall"
                while open(state, encoding="ascii").read().split()[0] not in ("7", "73", "271"):  # poll or ppoll
                    pass
                waking = threading.Thread(
                    target=lambda: (giving_back.wait(), server.send_signal(signal.SIGCONT)))
                waking.start()
                sys.setswitchinterval(60)  # a thread that has the interpreter keeps it until it waits
                giving_back.set()
                del rows
                asking.join()
                waking.join()
                self.assertEqual(len(allocated), 1)


if __name__ == "__main__":
    unittest.main()
