"""Envoy's configuration: TLS before it, and its limits on what a client may send. Nothing is tried again."""

import os
import subprocess
import tempfile
import time
import unittest

from http2_frames import CONTINUATION, END_HEADERS, HEADERS, RESET, Http2Client, frame, literal
from proxies import Envoy, envoy_program, slow_metrics
from replicas import Replicas, await_true
from sortitiond_process import make_certificates

CTL = os.environ["TEST_SORTITIONCTL"]
DEMO = os.environ["TEST_DEMO"]


@unittest.skipUnless(envoy_program(), "there is no Envoy")
class EnvoyTest(unittest.TestCase):
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

        def add_tls(configuration):
            (listener,) = configuration["static_resources"]["listeners"]
            with open(f"{folder}/tls.crt", encoding="utf-8") as chain, open(f"{folder}/tls.key",
                                                                            encoding="utf-8") as key:
                certificate = {"certificate_chain": {"inline_string": chain.read()},
                               "private_key": {"inline_string": key.read()}}
            listener["filter_chains"][0]["transport_socket"] = {
                "name": "envoy.transport_sockets.tls",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
                    "common_tls_context": {"alpn_protocols": ["h2"], "tls_certificates": [certificate]}}}

        proxy = self.enterContext(Envoy(self.replicas, add_tls))
        flags = [f"--server={proxy.address}", "--tls", f"--tls_ca={folder}/ca.crt"]
        done = subprocess.run([CTL, "health", *flags], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        plain = subprocess.run([CTL, "health", f"--server={proxy.address}"], capture_output=True)
        self.assertNotEqual(plain.returncode, 0)

    def test_demo_through_the_proxy_and_nothing_is_tried_again(self):
        proxy = self.enterContext(Envoy(self.replicas))
        done = subprocess.run([DEMO, f"--connect={proxy.address}"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.replicas.lose(0)
        done = subprocess.run([CTL, "health", f"--server={proxy.address}"], capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertGreater(proxy.count("cluster.replicas.upstream_rq_total"), 0)
        self.assertEqual(proxy.count("cluster.replicas.upstream_rq_retry"), 0)

    def test_slow_connections_to_metrics_keep_nobody_out(self):
        begun = time.monotonic()
        # Envoy keeps the connection of its checks, so a proxy that begins later has none.
        with slow_metrics(self.replicas), Envoy(self.replicas) as proxy:
            self.assertLess(time.monotonic(), begun + 10, "the server ends slow connections after 15 seconds")
            done = subprocess.run([CTL, "health", f"--server={proxy.address}"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_large_headers_reach_no_replica(self):
        proxy = self.enterContext(Envoy(self.replicas))
        before = proxy.count("cluster.replicas.upstream_rq_total")
        client = self.connect(proxy)
        large = Http2Client.CALL + literal(b"x-large", b"x" * 40_000)
        client.send(frame(HEADERS, 0, 1, large[:16_000]) + frame(CONTINUATION, 0, 1, large[16_000:32_000])
                    + frame(CONTINUATION, END_HEADERS, 1, large[32_000:]))
        await_true("a reset", lambda: proxy.count("http2.header_list_size_too_large") == 1)
        client = self.connect(proxy)
        many = Http2Client.CALL + b"".join(literal(b"x-%d" % i, b"") for i in range(100))
        client.send(frame(HEADERS, END_HEADERS, 1, many))
        await_true("a reset", lambda: proxy.count("http2.header_overflow") == 1)
        self.assertEqual(proxy.count("cluster.replicas.upstream_rq_total"), before)

    def test_connections_that_reset_their_streams_are_ended(self):
        proxy = self.enterContext(Envoy(self.replicas))
        client = self.connect(proxy)
        for stream in range(1, 4001, 2):
            if not client.send(frame(HEADERS, END_HEADERS, stream, Http2Client.CALL)
                               + frame(RESET, 0, stream, b"\0\0\0\x08")):
                break
        client.receive_all()  # returns when the proxy has ended the connection
        self.assertEqual(proxy.count("http.workers.downstream_rq_too_many_premature_resets"), 1)
        done = subprocess.run([CTL, "health", f"--server={proxy.address}"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
