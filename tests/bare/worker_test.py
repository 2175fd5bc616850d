"""A worker without the client library (client/examples) draws the library's tokens under many faults.

The worker is bare_worker.py, or the program that TEST_BARE_WORKER names.
"""

import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import numpy
from sortition.local import Sampler

from replicas import DEADLINE_S, Replicas
from sortitiond_process import free_port
from tcp_proxy import TcpProxy

SOURCE = pathlib.Path(os.environ["TEST_SOURCE_DIR"])
VOCABULARY, TOKENS = 1000, 20
OPTIONS = ({}, {"repetition_penalty": 1.1}, {"frequency_penalty": 0.5})
ROWS = TOKENS * len(OPTIONS)
HALF_OF_THE_ROWS, HALF_OF_THE_ANSWERS = ROWS * 4 * VOCABULARY // 2, 1000


def expected():
    """Draws the tokens in this process."""
    sampler = Sampler()
    sequences = [sampler.open(vocabulary_size=VOCABULARY, prompt=[1, 543, 386], seed=42 + number, temperature=0.8,
                              top_p=0.95, **options) for number, options in enumerate(OPTIONS)]
    ids = numpy.arange(VOCABULARY, dtype=numpy.uint32)
    lines = []
    for position in range(3, 3 + TOKENS):
        row = (ids * numpy.uint32(position + 7) % 1009).astype(numpy.float32) / 100
        lines.append([str(result.token) for result in sampler.step(sequences, [row] * len(sequences))])
    return lines


def command(*targets):
    program = os.environ.get("TEST_BARE_WORKER")
    worker = [program] if program else [sys.executable, str(SOURCE / "client/examples/bare_worker.py")]
    return worker + list(targets)


# The messages of the contract are all that the worker can import.
ENVIRONMENT = {"PYTHONPATH": os.environ["TEST_MESSAGES"]}


def work(*targets):
    return subprocess.run(command(*targets), env=ENVIRONMENT, capture_output=True, text=True, timeout=100, check=False)


class Once:
    """Acts once on a proxy, when this number of bytes has come from the worker or from the server. The last of them are
    lost if `act` returns True."""

    def __init__(self, size, act, from_server=False):
        self.proxy = None
        self.over = threading.Event()
        self._left, self._act, self._from_server = size, act, from_server

    def __call__(self, data, from_server):
        if from_server != self._from_server or self._left <= 0:
            return False
        self._left -= len(data)
        if self._left > 0:
            return False
        try:
            return self._act(self.proxy)
        finally:
            self.over.set()


class Burst:
    """Delays what the server sends, and notes the most bytes that come from the worker meanwhile."""

    def __init__(self):
        self.most = self._bytes = 0

    def __call__(self, data, from_server):
        if from_server:
            time.sleep(0.01)
            self.most, self._bytes = max(self.most, self._bytes), 0
        else:
            self._bytes += len(data)
        return False


class WorkerTest(unittest.TestCase):
    def check(self, *targets):
        done = work(*targets)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([line.split() for line in done.stdout.splitlines()], expected())

    def serve(self, count, *flags):
        replicas = self.enterContext(Replicas(count, *flags))
        replicas.start(*range(count))
        return replicas

    def count(self, replicas, series, number=0):
        """The sum of a replica's counters that match."""
        metrics = replicas.running[number].metrics()
        values = re.findall(rf"^sortition_{series}(?:{{.*}})? (\d+)$", metrics, re.MULTILINE)
        self.assertTrue(values, series)
        return sum(map(int, values))

    def check_behind(self, replicas, once, *more_targets):
        """Draws through a proxy before the first replica."""
        with TcpProxy(replicas.addresses[0], watch=once) as once.proxy:
            try:
                self.check(once.proxy.address, *more_targets)
            finally:
                self.assertTrue(once.over.wait(DEADLINE_S))

    def test_server(self):
        replicas = self.serve(1)
        self.check(replicas.addresses[0])
        self.assertEqual(self.count(replicas, "tokens_total"), ROWS)
        # Two sequences have state: their first opens are refused, and nothing else is. None is left.
        self.assertEqual(self.count(replicas, r'errors_total\{reason="HISTORY_REQUIRED"\}'), 2)
        self.assertEqual(self.count(replicas, "errors_total"), 2)
        self.assertEqual(self.count(replicas, "live_sequences"), 0)

    def test_server_that_is_killed(self):
        replicas = self.serve(1)

        def kill(_):
            replicas.lose(0)
            replicas.start(0)

        self.check_behind(replicas, Once(HALF_OF_THE_ROWS, kill))
        self.assertEqual(self.count(replicas, r'errors_total\{reason="HISTORY_REQUIRED"\}'), 2)
        self.assertLess(self.count(replicas, "tokens_total"), ROWS)

    def test_answer_that_is_lost(self):
        replicas = self.serve(1)

        def lose(proxy):
            proxy.reset()
            return True

        self.check_behind(replicas, Once(HALF_OF_THE_ANSWERS, lose, from_server=True))
        self.assertGreater(self.count(replicas, "rows_total"), ROWS)
        self.assertEqual(self.count(replicas, "streams_opened_total"), 2)

    def test_server_that_is_silent(self):
        replicas = self.serve(1)

        def silence(proxy):
            proxy.silence()
            return True

        self.check_behind(replicas, Once(HALF_OF_THE_ROWS, silence))
        self.assertEqual(self.count(replicas, "streams_opened_total"), 2)

    def test_server_that_drains(self):
        replicas = self.serve(2)
        ends = []
        self.check_behind(replicas, Once(HALF_OF_THE_ROWS, lambda _: ends.append(replicas.stop(0))),
                          replicas.addresses[1])
        self.assertEqual(ends, [0])
        self.assertEqual(self.count(replicas, "streams_opened_total", 1), 1)

    def test_first_target_is_away(self):
        replicas = self.serve(1)
        self.check(f"127.0.0.1:{free_port()}", replicas.addresses[0])

    def test_pauses_between_tries(self):
        tries = 7
        began = time.monotonic()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            with subprocess.Popen(command(f"127.0.0.1:{listener.getsockname()[1]}"), env=ENVIRONMENT) as worker:
                for _ in range(tries):
                    listener.accept()[0].close()
                worker.kill()
        self.assertGreater(time.monotonic() - began, sum(0.05 * 2**number / 2 for number in range(tries - 1)))

    def test_server_that_forgets(self):
        replicas = self.serve(1, "--max_sequences=1", "--replay_guard=0s")
        self.check(replicas.addresses[0])
        self.assertGreater(self.count(replicas, r'errors_total\{reason="HISTORY_REQUIRED"\}'), TOKENS)

    def test_rate_of_one_client(self):
        replicas = self.serve(1, f"--client_rows_per_second={ROWS * 2 // 3}")
        self.check(replicas.addresses[0])
        self.assertGreater(self.count(replicas, r'errors_total\{reason="CLIENT_LIMIT"\}'), 0)

    def test_window(self):
        """Messages of one row, at most one or two of them unanswered."""
        for rows in (1, 2):
            with self.subTest(rows=rows):
                replicas = self.serve(1, f"--max_message_bytes={4 * VOCABULARY + 600}", "--max_step_positions=1",
                                      f"--stream_unanswered_rows={rows}")
                burst = Burst()
                with TcpProxy(replicas.addresses[0], watch=burst) as proxy:
                    self.check(proxy.address)
                self.assertEqual(self.count(replicas, "steps_total"), ROWS)
                self.assertEqual(burst.most // (4 * VOCABULARY), rows)

    def test_server_that_refuses_the_worker(self):
        clients = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()), "clients")
        clients.write_text(f"engine sample sha256:{'0' * 64}\n", encoding="ascii")
        replicas = self.serve(1, f"--clients={clients}")
        done = work(replicas.addresses[0])
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("UNAUTHENTICATED", done.stderr.upper())
        # grpcio may report a write that failed in place of the status; the next try then has it.
        self.assertLess(self.count(replicas, r'errors_total\{reason="UNAUTHENTICATED"\}'), 4)


if __name__ == "__main__":
    unittest.main()
