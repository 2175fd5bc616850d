"""Spans of traced steps, from a Python worker through the server to a collector that records them."""

import json
import os
import re
import tempfile
import time
import unittest

import numpy
import sortition

import picture
from collector import Collector
from rows import VOCABULARY, row, serve
from sortitiond_process import Sortitiond, binary, free_port, make_certificates

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"
SEED = 8_446_744_073_709_551_557
# The time that a collector has to take one message: a step that waited for it would take as long.
COLLECTOR_S = 2


def spans_counted(server, outcome):
    pattern = rf'^sortition_trace_spans_total{{outcome="{outcome}"}} (\S+)$'
    return int(float(re.search(pattern, server.metrics(), re.MULTILINE).group(1)))


class TracesTest(unittest.TestCase):
    def start(self, endpoint, **environment):
        server = serve(f"--otlp_endpoint={endpoint}", environment=environment)
        self.addCleanup(server.__exit__)
        client = self.enterContext(sortition.Client(server.serving["listen"]))
        return server, client

    def draw(self, client, steps, traceparent=TRACEPARENT, **options):
        sequence = client.open(vocabulary_size=VOCABULARY, seed=SEED, **options)
        tokens = []
        self.slowest = 0
        for step in range(steps):
            begun = time.monotonic()
            (result,) = client.step([sequence], numpy.stack([row(step)]), traceparent=traceparent)
            self.slowest = max(self.slowest, time.monotonic() - begun)
            self.assertIsInstance(result, sortition.Draw, result)
            tokens.append(result.token)
        return tokens

    def draw_until(self, client, condition):
        """Draws until the condition holds."""
        deadline = time.monotonic() + 60
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            self.draw(client, 1)

    def test_step_of_a_python_worker_is_a_trace(self):
        collector = self.enterContext(Collector("take"))
        server, client = self.start(collector.address)
        self.draw(client, 1, temperature=0.5, top_p=0.75, top_k=40, repetition_penalty=1.1, prompt=[1, 2])
        spans = {span["name"]: span for span in collector.spans(4)}
        self.assertEqual(set(spans), {"step", "queue", "device", "answer"})
        step = spans["step"]
        self.assertEqual((step["trace"], step["parent"]), (TRACE, SPAN))
        self.assertEqual(step["attributes"]["gen_ai.request.temperature"], 0.5)
        self.assertEqual(step["attributes"]["gen_ai.request.top_p"], 0.75)
        self.assertEqual(step["attributes"]["gen_ai.request.top_k"], 40)
        self.assertEqual(step["attributes"]["sortition.rows"], 1)
        self.assertEqual(step["resource"]["service.name"], "sortition")
        for name in ("queue", "device", "answer"):
            self.assertEqual((spans[name]["trace"], spans[name]["parent"]), (TRACE, step["span"]), name)
            self.assertLessEqual(step["start"], spans[name]["start"])
            self.assertLessEqual(spans[name]["start"], spans[name]["end"])
        self.assertEqual(spans["device"]["attributes"]["sortition.device"], "cpu0")
        self.assertLessEqual(spans["queue"]["end"], spans["device"]["start"])
        self.assertEqual(spans["answer"]["end"], step["end"])
        self.assertNotIn(str(SEED), json.dumps(spans))
        self.assertEqual(spans_counted(server, "lost"), 0)

    def test_options_that_differ_are_left_out(self):
        collector = self.enterContext(Collector("take"))
        _, client = self.start(collector.address)
        sequences = [client.open(vocabulary_size=VOCABULARY, seed=seed, temperature=0.5 + seed) for seed in (1, 2)]
        client.step(sequences, numpy.stack([row(0), row(1)]), traceparent=TRACEPARENT)
        (step,) = [span for span in collector.spans(4) if span["name"] == "step"]
        self.assertEqual(step["attributes"]["sortition.rows"], 2)
        self.assertNotIn("gen_ai.request.temperature", step["attributes"])

    def test_step_that_is_not_sampled_has_no_span(self):
        collector = self.enterContext(Collector("take"))
        server, client = self.start(collector.address)
        self.draw(client, 3, traceparent=f"00-{TRACE}-{SPAN}-00")
        self.draw(client, 3, traceparent="")
        self.draw(client, 1)
        collector.spans(4)
        server.terminate()
        self.assertEqual(server.wait(timeout=20), 0)
        self.assertEqual(collector.end(), [])

    def test_hostile_texts_arrive_as_they_are(self):
        collector = self.enterContext(Collector("take"))
        server = serve(f"--otlp_endpoint={collector.address}")
        self.addCleanup(server.__exit__)
        name = '"};<script>\n\x1b[31m\u202e'
        client = self.enterContext(sortition.Client(server.serving["listen"], worker_session=name))
        self.draw(client, 1)
        (step,) = [span for span in collector.spans(4) if span["name"] == "step"]
        self.assertEqual(step["attributes"]["sortition.worker_session"], name)

    def test_spans_that_wait_are_sent_at_the_end(self):
        collector = self.enterContext(Collector("take"))
        server, client = self.start(collector.address)
        self.draw(client, 50)
        server.terminate()
        self.assertEqual(server.wait(timeout=20), 0)
        self.assertEqual(len(collector.end()), 200)

    def test_collector_that_fails_costs_no_step_and_is_counted(self):
        tokens = None
        for mode in ("take", "refuse", "sleep", "dead"):
            with self.subTest(mode), Collector("take" if mode == "dead" else mode) as collector:
                if mode == "dead":
                    collector.end()
                server, client = self.start(collector.address)
                drawn = self.draw(client, 600)
                tokens = tokens or drawn
                self.assertEqual(drawn, tokens)
                self.assertLess(self.slowest, COLLECTOR_S, "no step waits for the collector")
                if mode != "take":
                    # At most 2,048 spans wait.
                    self.assertGreater(spans_counted(server, "lost"), 0)
                    self.assertEqual(spans_counted(server, "exported"), 0)
                client.close()
                server.terminate()
                self.assertEqual(server.wait(timeout=20), 0)

    def test_collector_that_comes_late_gets_later_spans(self):
        address = f"127.0.0.1:{free_port()}"
        server, client = self.start(address)
        self.draw_until(client, lambda: spans_counted(server, "lost") > 0)
        with Collector("take", address) as collector:
            self.draw_until(client, lambda: spans_counted(server, "exported") > 0)
            self.assertIn("step", {span["name"] for span in collector.spans(4)})

    def test_collector_by_tls(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        make_certificates(folder, "127.0.0.1")
        with self.subTest("its authority is trusted"), Collector("take", "127.0.0.1:0", folder) as collector:
            server, client = self.start(f"https://{collector.address}",
                                        OTEL_EXPORTER_OTLP_CERTIFICATE=f"{folder}/ca.crt")
            self.draw(client, 1)
            self.assertEqual(len(collector.spans(4)), 4)
        with self.subTest("its authority is unknown"), Collector("take", "127.0.0.1:0", folder) as collector:
            server, client = self.start(f"https://{collector.address}")
            self.draw_until(client, lambda: spans_counted(server, "lost") > 0)
            self.assertEqual(spans_counted(server, "exported"), 0)
            self.assertLess(self.slowest, COLLECTOR_S)

    def test_step_that_is_refused_is_a_trace(self):
        collector = self.enterContext(Collector("take"))
        _, client = self.start(collector.address)
        sequence = client.open(vocabulary_size=VOCABULARY, seed=SEED)
        (result,) = client.step([sequence], numpy.full((1, VOCABULARY), numpy.nan, numpy.float32),
                                traceparent=TRACEPARENT)
        self.assertEqual(result.reason, "LOGIT_NAN")
        (step,) = [span for span in collector.spans(4) if span["name"] == "step"]
        self.assertEqual((step["error"], step["attributes"]["error.type"]), ("LOGIT_NAN", "LOGIT_NAN"))

    def test_picture_in_the_docs_has_the_spans_of_a_step(self):
        def names(text):
            return re.findall(r'class="name"[^>]*>(\w+)<', text)

        drawn = picture.draw(picture.record())
        self.assertEqual(names(drawn), ["worker", "step", "queue", "device", "answer"])
        with open(os.path.join(os.environ["TEST_SOURCE_DIR"], "docs/trace.svg"), encoding="utf-8") as file:
            self.assertEqual(names(file.read()), names(drawn))

    def test_malformed_context_is_refused_by_name(self):
        collector = self.enterContext(Collector("take"))
        server, client = self.start(collector.address)
        sequence = client.open(vocabulary_size=VOCABULARY, seed=SEED)
        for context in ("00", f"00-{TRACE}-{SPAN}", f"00-{TRACE}-{SPAN}-01-more", f"00-{'0' * 32}-{SPAN}-01",
                        f"ff-{TRACE}-{SPAN}-01", f"00-{TRACE.upper()}-{SPAN}-01", "<script>", "x" * 300):
            with self.subTest(context):
                (result,) = client.step([sequence], numpy.stack([row(0)]), traceparent=context)
                self.assertEqual(result.field, "step.trace.traceparent")
        self.assertEqual(len(self.draw(client, 1)), 1, "the stream continues")
        self.assertEqual(len(collector.spans(4)), 4)
        server.terminate()
        self.assertEqual(server.wait(timeout=20), 0)
        self.assertEqual(collector.end(), [])

    def test_endpoint_that_is_no_address_is_refused(self):
        for endpoint in ("collector", "collector:0", "collector:70000", "http://collector:4317/v1/traces", ":4317"):
            with self.subTest(endpoint), self.assertRaisesRegex(RuntimeError, "--otlp_endpoint"):
                Sortitiond(binary(), *Sortitiond.LOOPBACK, f"--otlp_endpoint={endpoint}")


if __name__ == "__main__":
    unittest.main()
