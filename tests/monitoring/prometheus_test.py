"""Every expression of dashboards, rules and autoscaling gets its data from a real Prometheus and a loaded server."""

import json
import math
import os
import subprocess
import tempfile
import time
import unittest
import urllib.parse
import urllib.request

import yaml

import expressions
from sortitiond_process import ENVIRONMENT, Sortitiond, binary, free_port, refuse_row, tls_flags

CTL = os.environ["TEST_SORTITIONCTL"]
DEADLINE_S = 60
SCRAPE = "250ms"


class Prometheus:
    """Scrapes the addresses and evaluates the tree's rules; a context manager."""

    def __init__(self, folder, *targets):
        config = {
            "global": {"scrape_interval": SCRAPE, "scrape_timeout": SCRAPE, "evaluation_interval": SCRAPE},
            "rule_files": expressions.RULES,
            "scrape_configs": [{"job_name": "sortition", "static_configs": [{"targets": list(targets)}]}],
        }
        with open(os.path.join(folder, "prometheus.yml"), "w", encoding="utf-8") as file:
            yaml.safe_dump(config, file)
        self.address = f"127.0.0.1:{free_port()}"
        self._process = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address={self.address}", "--log.level=warn"])

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._process.terminate()
        self._process.wait()

    def ask(self, path, **parameters):
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=20) as response:
            return json.load(response)["data"]

    def query(self, expression):
        """The values of an instant query."""
        return [float(sample["value"][1]) for sample in self.ask("query", query=expression)["result"]]

    def await_data(self, expression):
        """The values of an instant query, as soon as it has some. A scrape that takes too long leaves none until the
        next one."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            try:
                if values := self.query(expression):
                    return values
            except OSError:
                pass  # it is still starting
            if self._process.poll() is not None:
                raise RuntimeError("Prometheus has ended")
            time.sleep(0.1)
        raise TimeoutError(f"no data for {expression}")


class PrometheusTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        socket_path = f"unix:{folder}/sortition.sock"
        server = cls.enterClassContext(Sortitiond(
            binary(), f"--listen=127.0.0.1:0,{socket_path}", "--metrics_listen=127.0.0.1:0", "--cpu_threads=1",
            *tls_flags(folder)))
        refuse_row(socket_path, folder)
        for rows in ("full", "compact(64)"):
            worker = subprocess.Popen(
                [CTL, "bench", f"--server={socket_path}", f"--rows={rows}", "--step_rows=8", "--vocabulary=32768",
                 "--temperature=0.8", "--top_k=40", "--repetition_penalty=1.1", "--logprobs=3", "--duration=1h"],
                env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            cls.addClassCleanup(worker.wait)
            cls.addClassCleanup(worker.terminate)
        cls.prometheus = cls.enterClassContext(Prometheus(folder, server.serving["metrics"]))
        cls.prometheus.await_data("rate(sortition_tokens_total[1m]) > 100")
        for rule in expressions.recordings():
            cls.prometheus.await_data(rule["record"])

    def check(self, where, expression):
        try:
            values = self.prometheus.await_data(expression)
        except TimeoutError as error:
            self.fail(f"{where}: {error}")
        self.assertTrue(all(map(math.isfinite, values)), f"{where}: {values} for {expression}")

    def test_every_panel_has_data(self):
        for name, title, expression in expressions.panels():
            self.check(f"{name}: {title}", expression)

    def test_every_rule_has_data(self):
        for rule in expressions.rules():
            self.check(rule.get("alert", rule.get("record")), expressions.measured(rule["expr"]))

    def test_the_autoscaler_has_data(self):
        self.check("prometheus-adapter.yaml", expressions.autoscaling())
        self.check("scaled-object.yaml", expressions.keda().replace('{pod!=""}', ""))

    def test_nothing_fires_over_a_healthy_server(self):
        firing = [alert["labels"]["alertname"] for alert in self.prometheus.ask("alerts")["alerts"]
                  if alert["state"] == "firing"]
        self.assertEqual(firing, [])


if __name__ == "__main__":
    unittest.main()
