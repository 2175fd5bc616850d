"""The recording collector as a process, and the spans that it got."""

import base64
import json
import os
import queue
import subprocess
import threading

WAIT_S = 60


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
            "error": span.get("status", {}).get("message", ""),
            "attributes": attributes_of(span), "resource": attributes_of(line["resource"])}


class Collector:
    """The recording collector; a context manager. `place`: its address, and a folder with its certificate."""

    def __init__(self, mode, *place):
        self._process = subprocess.Popen([os.environ["TEST_TRACE_COLLECTOR"], mode, *place], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True)
        self.address = self._process.stdout.readline().strip()
        self._spans = queue.SimpleQueue()
        # The collector takes no more spans while its output is full.
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self._process.stdout:
            self._spans.put(span_of(line))

    def spans(self, count):
        """The next spans; waits for them."""
        return [self._spans.get(timeout=WAIT_S) for _ in range(count)]

    def end(self):
        """Ends the collector. Returns the spans that were not read yet."""
        self._process.stdin.close()
        self._reader.join()
        self._process.stdout.close()
        self._process.wait()
        return [self._spans.get() for _ in range(self._spans.qsize())]

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self._process.returncode is None:
            self.end()
