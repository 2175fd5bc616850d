"""HAProxy's configuration: TLS before it, its checks, its limits on what a client may send. Nothing is tried again."""

import contextlib
import os
import re
import socket
import subprocess
import tempfile
import threading
import time
import types
import unittest

from http2_frames import CONTINUATION, DATA, END_HEADERS, HEADERS, PREFACE, RESET, SETTINGS, Http2Client, frame, literal
from proxies import HaProxy, slow_metrics
from replicas import Replicas, Workers, await_true
from sortitiond_process import make_certificates

CTL = os.environ["TEST_SORTITIONCTL"]
DEMO = os.environ["TEST_DEMO"]
LIMIT = 1000  # calls that an address leaves without an answer
WORKERS = 500  # behind one address


class Fake:
    """Takes connections of HTTP/2, and answers the calls of each with these bytes. With none it ends the connection; a
    context manager."""

    def __init__(self, answer=b""):
        self.calls = 0
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as received, contextlib.suppress(ConnectionResetError):
                connection.sendall(frame(SETTINGS, 0, 0))
                received.read(len(PREFACE))
                while len(head := received.read(9)) == 9:
                    received.read(int.from_bytes(head[:3], "big"))
                    if head[3] == HEADERS:
                        self.calls += 1
                        if not self._answer:
                            break
                        connection.sendall(self._answer)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()


def health(proxy, *flags):
    return subprocess.run([CTL, "health", f"--server={proxy.address}", *flags], capture_output=True, text=True)


def port_of(replicas):
    return replicas.addresses[0].rsplit(":", 1)[1]


class HaProxyTest(unittest.TestCase):
    def setUp(self):
        self.replicas = self.enterContext(Replicas(1))
        self.replicas.start(0)

    def opened(self):
        """The number of streams that the replica has opened so far."""
        metrics = self.replicas.running[0].metrics()
        return sum(map(int, re.findall(r"^sortition_streams_opened_total\{.*\} (\d+)$", metrics, re.MULTILINE)))

    def connect(self, proxy):
        client = Http2Client(proxy.address)
        self.addCleanup(client.close)
        return client

    def test_stories_through_tls(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        make_certificates(folder, "127.0.0.1")
        with open(f"{folder}/proxy.pem", "w", encoding="ascii") as file:
            for name in ("tls.crt", "tls.key"):
                with open(f"{folder}/{name}", encoding="ascii") as part:
                    file.write(part.read())
        proxy = self.enterContext(HaProxy(self.replicas, bind_options=f"ssl crt {folder}/proxy.pem alpn h2"))
        done = health(proxy, "--tls", f"--tls_ca={folder}/ca.crt")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertNotEqual(health(proxy).returncode, 0)

    def test_demo_through_the_proxy(self):
        proxy = self.enterContext(HaProxy(self.replicas))
        done = subprocess.run([DEMO, f"--connect={proxy.address}"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.replicas.lose(0)
        self.assertNotEqual(health(proxy).returncode, 0)

    def test_call_that_a_replica_has_is_not_tried_again(self):
        def calls(change):
            """Returns how often a call reaches a replica that dies of it. Checks go to another, which lives."""
            with Fake() as mortal:
                replicas = types.SimpleNamespace(addresses=[mortal.address], running=[0])
                with HaProxy(replicas, f"port {port_of(self.replicas)}", change=change) as proxy:
                    self.assertNotEqual(health(proxy).returncode, 0)
                return mortal.calls

        self.assertEqual(calls(lambda text: text), 1)
        self.assertGreater(calls(lambda text: text.replace("retry-on conn-failure", "retry-on all-retryable-errors")),
                           1, "with retries it would be more")

    def test_large_headers_reach_no_replica(self):
        proxy = self.enterContext(HaProxy(self.replicas))
        many = Http2Client.CALL + b"".join(literal(b"x-%d" % i, b"") for i in range(100))
        large = Http2Client.CALL + literal(b"x-large", b"x" * 40_000)
        client = self.connect(proxy)
        client.send(frame(HEADERS, END_HEADERS, 1, many))
        client.await_end()
        client = self.connect(proxy)
        client.send(frame(HEADERS, 0, 1, large[:16_000]) + frame(CONTINUATION, 0, 1, large[16_000:32_000])
                    + frame(CONTINUATION, END_HEADERS, 1, large[32_000:]))
        client.await_end()
        self.assertEqual(proxy.count("stot"), 0)
        self.assertEqual(health(proxy).returncode, 0)
        self.assertGreater(proxy.count("stot"), 0)

    def test_calls_that_are_reset_reach_replicas_no_longer(self):
        proxy = self.enterContext(HaProxy(self.replicas))
        refused = ""
        while not refused:
            client = self.connect(proxy)
            for stream in range(1, 2 * LIMIT, 2):
                client.send(frame(HEADERS, END_HEADERS, stream, Http2Client.CALL)
                            + frame(RESET, 0, stream, b"\0\0\0\x08"))
            client.close()
            refused = health(proxy).stderr
        self.assertIn("429", refused)
        self.assertGreater(proxy.count("stot"), LIMIT)
        self.assertLess(proxy.count("stot"), 2 * LIMIT)

    def test_clients_share_no_connection_to_a_replica(self):
        proxy = self.enterContext(HaProxy(self.replicas))
        for clients in range(1, 5):
            self.connect(proxy).begin_sample()
            await_true("connections", lambda wanted=clients: proxy.count("used_conn_cur", "replica-0") == wanted)

    def test_workers_of_one_address_connect_at_once(self):
        proxy = self.enterContext(HaProxy(self.replicas))
        clients = [self.connect(proxy) for _ in range(WORKERS)]
        for client in clients:
            client.begin_sample()
        for client in clients:
            client.end_sample()
        self.assertEqual(proxy.count("stot"), WORKERS)

    def test_calls_without_a_replica_are_not_counted(self):
        proxy = self.enterContext(HaProxy(self.replicas))
        self.replicas.lose(0)
        await_true("a check", lambda: proxy.up() == set())
        for _ in range(LIMIT // 50 + 1):
            client = self.connect(proxy)
            for stream in range(1, 101, 2):
                client.send(frame(HEADERS, END_HEADERS, stream, Http2Client.CALL))
            client.await_end()
            client.close()
        self.replicas.start(0)
        await_true("a check", proxy.up)
        self.assertEqual(health(proxy).returncode, 0)

    def test_slow_connections_to_metrics_cut_no_stream(self):
        proxy = self.enterContext(HaProxy(self.replicas))
        with Workers([proxy.address], "--workers=1", "--pause=10ms") as workers:
            await_true("a stream", lambda: self.replicas.streams(0) == 1)
            with slow_metrics(self.replicas):
                begun = time.monotonic()
                while time.monotonic() < begun + 3:
                    self.assertEqual(health(proxy).returncode, 0)
            self.assertEqual(workers.stop()["failed"], 0)
        self.assertEqual(self.opened(), 1)

    def test_failed_check_cuts_no_stream(self):
        checked = self.enterContext(Replicas(1))
        checked.start(0)
        proxy = self.enterContext(HaProxy(self.replicas, f"port {port_of(checked)}"))
        with Workers([proxy.address], "--workers=1") as workers:
            await_true("a stream", lambda: self.replicas.streams(0) == 1)
            checked.lose(0)
            await_true("a check", lambda: proxy.up() == set())
            self.assertEqual(workers.stop()["failed"], 0)
        self.assertEqual(self.opened(), 1)

    def test_replica_that_does_not_serve_gets_nothing_at_once(self):
        for status, wanted in ((1, {"replica-0"}), (2, set())):
            # :status: 200, and grpc.health.v1.HealthCheckResponse.
            answer = (frame(HEADERS, END_HEADERS, 1, b"\x88")
                      + frame(DATA, 0, 1, b"\0\0\0\0\2\x08" + bytes([status])))
            with Fake(answer) as fake:
                replicas = types.SimpleNamespace(addresses=[fake.address], running=range(len(wanted)))
                begun = time.monotonic()
                with HaProxy(replicas) as proxy:
                    self.assertEqual(proxy.up(), wanted)
                    self.assertLess(time.monotonic(), begun + 3, "it waits for no more than the answer")

    def test_calls_that_are_answered_have_no_limit(self):
        proxy = self.enterContext(HaProxy(self.replicas))
        for _ in range(LIMIT + 50):
            client = self.connect(proxy)
            client.sample()
            client.close()
        self.assertEqual(health(proxy).returncode, 0)
        await_true("all calls", lambda: proxy.count("stot") > LIMIT + 50)


if __name__ == "__main__":
    unittest.main()
