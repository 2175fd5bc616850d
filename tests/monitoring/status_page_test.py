"""The status page in a real browser shows what the server says, and says so when the server is gone."""

import html
import os
import re
import shutil
import subprocess
import tempfile
import unittest
import urllib.request

from sortitiond_process import ENVIRONMENT, Sortitiond, binary

DEMO = os.environ["TEST_DEMO"]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or "chromium"


def browse(url, *options):
    """The page's document after its scripts have run for seconds of virtual time, and their errors."""
    with tempfile.TemporaryDirectory() as profile:
        ran = subprocess.run(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--disable-component-update", "--disable-background-networking", "--no-first-run",
             f"--user-data-dir={profile}", "--enable-logging=stderr", "--virtual-time-budget=7000", *options, url],
            capture_output=True, text=True, timeout=120, check=True)
    return ran.stdout, re.findall(r"CONSOLE.*", ran.stderr)


def text_of(document, element):
    """The text within the element of this id, tags dropped."""
    inner = re.search(rf'<(\w+)[^>]* id="{element}"[^>]*>(.*?)</\1>', document, re.DOTALL).group(2)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", inner)).split())


class StatusPageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Sortitiond(binary(), *Sortitiond.LOOPBACK, "--cpu_threads=2", "--devices=cpu,cuda:none") as server:
            subprocess.run([DEMO, f"--connect={server.serving['listen']}", "--sequences=8", "--tokens=20"],
                           env=ENVIRONMENT, stdout=subprocess.DEVNULL, check=True)
            cls.document, cls.complaints = browse(f"http://{server.serving['metrics']}/", "--dump-dom")
            cls.metrics = server.metrics()

    def metric(self, series):
        return float(re.search(rf"^{re.escape(series)} (\S+)$", self.metrics, re.MULTILINE).group(1))

    def test_scripts_do_not_complain(self):
        self.assertEqual(self.complaints, [])

    def test_it_serves_and_says_what(self):
        self.assertEqual(text_of(self.document, "state"), "serving")
        build = re.search(r"^sortition_build_info\{(.*)\}", self.metrics, re.MULTILINE).group(1)
        labels = dict(re.findall(r'(\w+)="([^"]*)"', build))
        self.assertEqual(text_of(self.document, "versions"),
                         f"version {labels['version']} · law {labels['law_version']} · gRPC {labels['grpc_version']}")

    def test_devices_with_load_and_health(self):
        hardware = re.search(r'sortition_device_info\{.*hardware="([^"]*)"', self.metrics).group(1)
        devices = text_of(self.document, "devices")
        self.assertIn("cpu0 serving " + " ".join(hardware.split()) + " cpu 0.0 %", devices)
        self.assertIn("cuda:none missing", devices)

    def test_queue_sequences_and_their_bounds(self):
        bounds = text_of(self.document, "bounds")
        self.assertIn("Rows waiting 0 of 16.4 k", bounds)
        live = int(self.metric("sortition_live_sequences"))
        self.assertIn(f"Sequences with state {live} of 200 k", bounds)
        opened = int(self.metric("sortition_sequences_opened_total"))
        self.assertGreaterEqual(opened, 8)
        self.assertIn(f"Sequences opened {opened}", bounds)
        self.assertIn("Compact rows, share required again none", bounds)

    def test_every_transport(self):
        transports = text_of(self.document, "transports")
        for transport in re.findall(r'^sortition_streams\{transport="(\w+)"\}', self.metrics, re.MULTILINE):
            self.assertIn(f"{transport} 0 0 B/s", transports)

    def test_every_limit(self):
        limits = text_of(self.document, "limits")
        names = re.findall(r'^sortition_limit\{name="(\w+)"', self.metrics, re.MULTILINE)
        self.assertIn("max_queued_rows", names)
        for name in names:
            self.assertIn(name, limits)


class CompactRowsTest(unittest.TestCase):
    def test_their_rate_is_shown_while_they_come(self):
        with Sortitiond(binary(), *Sortitiond.LOOPBACK) as server:
            # A worker that outlives the page's visit.
            command = [DEMO, f"--connect={server.serving['listen']}", "--sequences=8", "--tokens=100000",
                       "--rows=compact(64)"]
            with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL) as worker:
                try:
                    while 'sortition_compact_rows_total{outcome="decided"} 0' in server.metrics():
                        pass
                    document, _ = browse(f"http://{server.serving['metrics']}/", "--dump-dom")
                finally:
                    worker.kill()
        self.assertRegex(text_of(document, "bounds"), r"Compact rows, share required again [\d.]+( k)?/s, [\d.]+ %")


class GoneTest(unittest.TestCase):
    def test_a_server_that_is_gone_is_seen(self):
        with Sortitiond(binary(), *Sortitiond.LOOPBACK) as server:
            with tempfile.NamedTemporaryFile("w", suffix=".html") as page:
                # The page as a file: what it reads beside itself is not there.
                with urllib.request.urlopen(f"http://{server.serving['metrics']}/", timeout=20) as response:
                    page.write(response.read().decode())
                page.flush()
                document, _ = browse(f"file://{page.name}", "--dump-dom")
        self.assertRegex(text_of(document, "state"), "^no answer: ")


if __name__ == "__main__":
    unittest.main()
