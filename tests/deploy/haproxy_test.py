"""HAProxy's configuration: TLS before it, and its limits on what a client may send. Nothing is tried again."""

import os
import socket
import subprocess
import tempfile
import threading
import types
import unittest

from http2_frames import CONTINUATION, END_HEADERS, HEADERS, PREFACE, RESET, SETTINGS, Http2Client, frame, literal
from proxies import HaProxy
from replicas import Replicas, await_true
from sortitiond_process import make_certificates

CTL = os.environ["TEST_SORTITIONCTL"]
DEMO = os.environ["TEST_DEMO"]
LIMIT = 90  # calls that an address leaves without an answer


class Mortal:
    """Takes connections of HTTP/2, and ends each with its first call; a context manager."""

    def __init__(self):
        self.calls = 0
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
            with connection, connection.makefile("rb") as received:
                connection.sendall(frame(SETTINGS, 0, 0))
                received.read(len(PREFACE))
                while len(head := received.read(9)) == 9:
                    received.read(int.from_bytes(head[:3], "big"))
                    if head[3] == HEADERS:
                        self.calls += 1
                        break

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()


def health(proxy, *flags):
    return subprocess.run([CTL, "health", f"--server={proxy.address}", *flags], capture_output=True, text=True)


class HaProxyTest(unittest.TestCase):
    def setUp(self):
        self.replicas = self.enterContext(Replicas(1))
        self.replicas.start(0)

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
            """Returns how often a call reaches a replica that dies of it."""
            with Mortal() as mortal:
                replicas = types.SimpleNamespace(addresses=[mortal.address], running=[0],
                                                 metrics_addresses=self.replicas.metrics_addresses)
                with HaProxy(replicas, change=change) as proxy:
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
