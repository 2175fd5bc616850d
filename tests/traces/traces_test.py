"""Spans of traced steps, from a Python worker through the server to a collector that records them."""

import base64
import json
import os
import re
import subprocess
import unittest

import numpy
import sortition

from rows import VOCABULARY, row, serve
from sortitiond_process import Sortitiond, binary

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"
SEED = 8_446_744_073_709_551_557


def attributes_of(message):
    return {attribute["key"]: (float if kind in ("intValue", "doubleValue") else str)(value)
            for attribute in message.get("attributes", ()) for kind, value in attribute["value"].items()}


def span_of(line):
    """A line of the collector, as plain values: ids in hexadecimal, times in nanoseconds."""
    line = json.loads(line)
    span = line["span"]
    ids = {name: base64.b64decode(span[key]).hex()
           for name, key in (("trace", "traceId"), ("span", "spanId"), ("parent", "parentSpanId"))}
    return {**ids, "name": span["name"], "start": int(span["startTimeUnixNano"]), "end": int(span["endTimeUnixNano"]),
            "attributes": attributes_of(span), "resource": attributes_of(line["resource"])}


class Collector:
    """The recording collector; a context manager."""

    def __init__(self, mode):
        self._process = subprocess.Popen([os.environ["TEST_TRACE_COLLECTOR"], mode], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True)
        self.address = self._process.stdout.readline().strip()

    def spans(self, count):
        """The next spans; waits for them."""
        return [span_of(self._process.stdout.readline()) for _ in range(count)]

    def end(self):
        """Ends the collector. Returns the spans that were not read yet."""
        rest, _ = self._process.communicate()
        return [span_of(line) for line in rest.splitlines()]

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self._process.returncode is None:
            self.end()


def spans_counted(server, outcome):
    pattern = rf'^sortition_trace_spans_total{{outcome="{outcome}"}} (\S+)$'
    return int(float(re.search(pattern, server.metrics(), re.MULTILINE).group(1)))


class TracesTest(unittest.TestCase):
    def start(self, endpoint):
        server = serve(f"--otlp_endpoint={endpoint}")
        self.addCleanup(server.__exit__)
        client = self.enterContext(sortition.Client(server.serving["listen"]))
        return server, client

    def draw(self, client, steps, traceparent=TRACEPARENT, **options):
        sequence = client.open(vocabulary_size=VOCABULARY, seed=SEED, **options)
        tokens = []
        for step in range(steps):
            (result,) = client.step([sequence], numpy.stack([row(step)]), traceparent=traceparent)
            tokens.append(result.token)
        return tokens

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
                if mode != "take":
                    # At most 2,048 spans wait.
                    self.assertGreater(spans_counted(server, "lost"), 0)
                    self.assertEqual(spans_counted(server, "exported"), 0)
                client.close()
                server.terminate()
                self.assertEqual(server.wait(timeout=20), 0)

    def test_endpoint_that_is_no_address_is_refused(self):
        for endpoint in ("collector", "collector:0", "collector:70000", "http://collector:4317/v1/traces", ":4317"):
            with self.subTest(endpoint), self.assertRaisesRegex(RuntimeError, "--otlp_endpoint"):
                Sortitiond(binary(), *Sortitiond.LOOPBACK, f"--otlp_endpoint={endpoint}")


if __name__ == "__main__":
    unittest.main()
