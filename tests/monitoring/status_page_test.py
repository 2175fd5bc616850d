"""The status page in a real browser shows the server's state, and its absence."""

import html
import http.server
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.error
import urllib.request

import screenshot
from sortitiond_process import ENVIRONMENT, Sortitiond, binary, refuse_row

sys.path.append(os.path.join(os.environ["TEST_SOURCE_DIR"], "tests/support"))

from browser import Browser  # noqa: E402

CTL = os.environ["TEST_SORTITIONCTL"]
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
            subprocess.run([DEMO, f"--connect={server.serving['listen']}"], env=ENVIRONMENT,
                           stdout=subprocess.DEVNULL, check=True)
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


class RefusalsTest(unittest.TestCase):
    def test_reason_and_field_are_shown(self):
        with Sortitiond(binary(), *Sortitiond.LOOPBACK) as server, tempfile.TemporaryDirectory() as folder:
            refuse_row(server.serving["listen"], folder)
            document, complaints = browse(f"http://{server.serving['metrics']}/", "--dump-dom")
        self.assertEqual(complaints, [])
        self.assertEqual(text_of(document, "refusals"),
                         "Reason Field at fault Since the start A second LOGIT_NAN rows 1 0")

    def test_without_refusals_it_says_so(self):
        with Sortitiond(binary(), *Sortitiond.LOOPBACK) as server:
            document, _ = browse(f"http://{server.serving['metrics']}/", "--dump-dom")
        self.assertEqual(text_of(document, "refusals"), "None since the start.")


class CompactRowsTest(unittest.TestCase):
    def test_their_rate_is_shown_while_they_come(self):
        with Sortitiond(binary(), *Sortitiond.LOOPBACK) as server:
            # A worker that outlives the page's visit.
            command = [CTL, "bench", f"--server={server.serving['listen']}", "--rows=compact(64)", "--top_k=40",
                       "--duration=1h"]
            with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL) as worker:
                try:
                    while 'sortition_compact_rows_total{outcome="decided"} 0' in server.metrics():
                        pass
                    document, _ = browse(f"http://{server.serving['metrics']}/", "--dump-dom")
                finally:
                    worker.kill()
        self.assertRegex(text_of(document, "bounds"), r"Compact rows, share required again [\d.]+( k)?/s, [\d.]+ %")


# Runs on the page once it has rows of slow steps.
AWAIT_SLOW = """(async () => {
  while (!document.querySelectorAll("#slow tbody tr").length) await new Promise((done) => setTimeout(done, 50));
})()"""


class SlowStepsTest(unittest.TestCase):
    def test_steps_and_their_parts_are_shown(self):
        with Sortitiond(binary(), *Sortitiond.LOOPBACK, "--slow_step=1us") as server:
            # Each of its steps asks a device.
            subprocess.run([CTL, "bench", f"--server={server.serving['listen']}", "--rows=full", "--warm_up=0s",
                            "--duration=500ms"], env=ENVIRONMENT, stdout=subprocess.DEVNULL, check=True)
            with urllib.request.urlopen(f"http://{server.serving['metrics']}/slow", timeout=20) as response:
                slow = json.load(response)
            with Browser() as browser:
                session = browser.open(f"http://{server.serving['metrics']}/")
                browser.evaluate(session, AWAIT_SLOW)
                shown = browser.evaluate(session, "document.querySelectorAll('#slow tbody tr').length")
                counts = browser.evaluate(session, "document.getElementById('slow-counts').textContent")
                gap = browser.evaluate(session, """(() => {
                  const bar = document.querySelector("#slow .parts"), pieces = [...bar.children];
                  return bar.clientWidth - pieces.reduce((sum, one) => sum + one.getBoundingClientRect().width, 0);
                })()""")
        self.assertEqual(shown, min(len(slow["steps"]), 20))
        self.assertGreaterEqual(sum(slow["counts"].values()), 20)
        self.assertIn("in the last 10 minutes", counts)
        self.assertLess(gap, 5, "the parts fill the bar")
        for step in slow["steps"]:
            self.assertEqual(step["devices"], "cpu0")
            self.assertGreater(step["queue"] + step["device"] + step["answer"], 0)

    def test_a_step_of_a_stopped_process_names_the_machine(self):
        with Sortitiond(binary(), *Sortitiond.LOOPBACK, "--slow_step=200ms") as server:
            target = f"--server={server.serving['listen']}"
            with subprocess.Popen([CTL, "bench", target, "--rows=full", "--step_rows=32", "--duration=1h"],
                                  env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as worker:
                try:
                    while "sortition_tokens_total 0" in server.metrics():
                        pass
                    steps = []
                    while not steps:  # until one was in flight when the server was stopped
                        server.send_signal(signal.SIGSTOP)
                        # Ends when the server has not answered for this long.
                        subprocess.run([CTL, "health", target, "--timeout=300ms"], env=ENVIRONMENT,
                                       capture_output=True, check=False)
                        server.send_signal(signal.SIGCONT)
                        with urllib.request.urlopen(f"http://{server.serving['metrics']}/slow", timeout=20) as response:
                            steps = [step for step in json.load(response)["steps"] if step["machine"] > 0.2]
                    with Browser() as browser:
                        session = browser.open(f"http://{server.serving['metrics']}/")
                        browser.evaluate(session, AWAIT_SLOW)
                        shown = browser.evaluate(session, "document.querySelector('#slow tbody').textContent")
                finally:
                    worker.kill()
            self.assertRegex(server.metrics(),
                             r'sortition_control_late_seconds_bucket\{cause="machine",le="[\d.]+"\} [1-9]')
        self.assertRegex(shown, r"machine [\d.]+ ms")

    def test_without_a_control_no_step_names_the_machine(self):
        with Sortitiond(binary(), *Sortitiond.LOOPBACK, "--slow_step=1us", "--hiccup_control=false") as server:
            subprocess.run([CTL, "bench", f"--server={server.serving['listen']}", "--warm_up=0s", "--duration=100ms"],
                           env=ENVIRONMENT, stdout=subprocess.DEVNULL, check=True)
            with urllib.request.urlopen(f"http://{server.serving['metrics']}/slow", timeout=20) as response:
                steps = json.load(response)["steps"]
            self.assertEqual({step["machine"] for step in steps}, {None})
            self.assertIn('sortition_control_late_seconds_count{cause="machine"} 0', server.metrics())

    def test_off_the_section_is_not_there(self):
        with Sortitiond(binary(), *Sortitiond.LOOPBACK, "--slow_step=0") as server, Browser() as browser:
            with self.assertRaises(urllib.error.HTTPError) as raised:
                urllib.request.urlopen(f"http://{server.serving['metrics']}/slow", timeout=20)
            raised.exception.close()
            self.assertEqual(raised.exception.code, 404)
            session = browser.open(f"http://{server.serving['metrics']}/")
            self.assertTrue(browser.evaluate(session, "document.getElementById('slow-section').hidden"))


class HostileTest(unittest.TestCase):
    """The page as it is, before a server that says what a hostile worker or driver could have it say."""

    NAME = '<img src=x onerror="document.title=1">\u202e\x1b[31m</td></table><script>document.title=1</script>'

    @classmethod
    def setUpClass(cls):
        with Sortitiond(binary(), *Sortitiond.LOOPBACK) as server:
            with urllib.request.urlopen(f"http://{server.serving['metrics']}/", timeout=20) as response:
                page = response.read()
            metrics = server.metrics()
        label = cls.NAME.replace("\\", "\\\\").replace('"', '\\"')
        metrics = re.sub(r'hardware="[^"]*"', lambda _: f'hardware="{label}"', metrics)
        step = {"cause": cls.NAME, "worker_session": cls.NAME * 8, "devices": cls.NAME, "trace_id": cls.NAME,
                "batch_id": "1", "rows": 1, "refused_rows": 1, "bytes": 9e15, "ago": 1, "logits": 0, "queue": 1,
                "device": 0, "answer": 0, "wire": 0, "machine": 1}
        slow = {"slow_seconds": 0.065, "minutes": 10, "steps": [step] * 20,
                "counts": {"queue": 10**15, "device": 0, "answer": 0, "wire": 0}}
        answers = {"/": ("text/html", page), "/metrics": ("text/plain", metrics.encode()),
                   "/slow": ("application/json", json.dumps(slow).encode())}

        class Fake(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                kind, body = answers.get(self.path, ("text/plain", b""))
                self.send_response(200 if body else 404)
                self.send_header("Content-Type", kind + "; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments):
                pass

        cls.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Fake)
        thread = threading.Thread(target=cls.server.serve_forever)
        thread.start()
        cls.addClassCleanup(thread.join)
        cls.addClassCleanup(cls.server.server_close)
        cls.addClassCleanup(cls.server.shutdown)

    def open(self, width=1120):
        browser = self.enterContext(Browser(width, 800))
        session = browser.open(f"http://127.0.0.1:{self.server.server_port}/")
        browser.evaluate(session, AWAIT_SLOW)
        return browser, session

    def test_names_stay_texts(self):
        browser, session = self.open()
        self.assertEqual(browser.evaluate(session, "document.title"), "Sortition")
        self.assertEqual(browser.evaluate(session, "document.querySelectorAll('main img, main script').length"), 0)
        self.assertEqual(browser.evaluate(session, "document.querySelector('#slow bdi').textContent"), self.NAME * 8)

    def test_a_phone_scrolls_in_one_direction(self):
        browser, session = self.open()
        browser.call("Emulation.setDeviceMetricsOverride", session, width=360, height=740, deviceScaleFactor=2,
                     mobile=True)
        self.assertLessEqual(browser.evaluate(session, "document.documentElement.scrollWidth"), 360)

    def test_the_dark_scheme_is_followed(self):
        browser, session = self.open()
        ground = "getComputedStyle(document.body).backgroundColor"
        schemes = {}
        for scheme in ("light", "dark"):
            browser.call("Emulation.setEmulatedMedia", session,
                         features=[{"name": "prefers-color-scheme", "value": scheme}])
            schemes[scheme] = browser.evaluate(session, ground)
        self.assertEqual(schemes, {"light": "rgb(246, 247, 249)", "dark": "rgb(18, 22, 28)"})

    def test_the_keyboard_reaches_every_part(self):
        browser, session = self.open()
        reached = set()
        for _ in range(20):
            for kind in ("keyDown", "keyUp"):
                browser.call("Input.dispatchKeyEvent", session, type=kind, key="Tab", code="Tab",
                             windowsVirtualKeyCode=9)
            reached.add(browser.evaluate(
                session, "document.activeElement.ariaLabel || document.activeElement.textContent"))
        self.assertLessEqual({"Devices", "Slow steps", "What the parts mean", "Queue and sequences", "Transports",
                              "Refusals", "Process", "Limits", "metrics", "slow"}, reached)


class PictureTest(unittest.TestCase):
    """The documentation's pictures, which screenshot.py takes."""

    def test_pictures_in_the_docs_show_this_page(self):
        for name in screenshot.SCHEMES.values():
            with open(os.path.join(os.environ["TEST_SOURCE_DIR"], "docs", name), "rb") as file:
                self.assertEqual(screenshot.hash_of(file.read()), screenshot.page_hash(),
                                 f"docs/{name} shows an older page: take it again, as docs/testing.md says")

    def test_picture_is_taken(self):
        pictures = screenshot.take(os.path.dirname(binary()), open_s=3)
        self.assertEqual(set(pictures), set(screenshot.SCHEMES))
        self.assertEqual(len(set(pictures.values())), len(pictures), "the schemes differ")
        for png in pictures.values():
            self.assertEqual(screenshot.hash_of(png), screenshot.page_hash())
            (header,) = [content for kind, content in screenshot.chunks(png) if kind == b"IHDR"]
            width, height = struct.unpack_from(">II", header)
            self.assertEqual(width, screenshot.WIDTH)
            self.assertGreater(height, 600)


class GoneTest(unittest.TestCase):
    def test_a_server_that_is_gone_is_seen(self):
        with Sortitiond(binary(), *Sortitiond.LOOPBACK) as server:
            with tempfile.NamedTemporaryFile("w", suffix=".html") as page:
                # The page as a file: the pages that it reads are not there.
                with urllib.request.urlopen(f"http://{server.serving['metrics']}/", timeout=20) as response:
                    page.write(response.read().decode())
                page.flush()
                document, _ = browse(f"file://{page.name}", "--dump-dom")
        self.assertRegex(text_of(document, "state"), "^no answer: ")


if __name__ == "__main__":
    unittest.main()
