"""Holds dashboards, rules and runbooks against what a running server exposes and against each other."""

import json
import os
import re
import subprocess
import tempfile
import unittest
import urllib.error
import urllib.request

import yaml

import expressions
from expressions import ROOT
from sortitiond_process import Sortitiond, binary, refuse_row, tls_flags

METRIC = re.compile(r"\b(?:sortition|process)_\w+")
# Labels in a selector, and those that a grouping or matching names.
SELECTOR = re.compile(r"\b((?:sortition|process)_\w+)\{([^}]*)\}")
GROUPING = re.compile(r"\b(?:by|on|ignoring) \(([^)]*)\)")
MATCHER = re.compile(r'(\w+)\s*(=~|=|!=|!~)\s*"([^"]*)"')
SERIES_SUFFIX = re.compile(r"_(?:bucket|sum|count)$")
# Added by the scrape, not by the server.
SCRAPE_LABELS = {"instance", "job"}


def served(text):
    """From each series' name to a map from its labels' names to their values, and the names of the families."""
    series, families = {}, set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            families.add(line.split()[2])
        elif METRIC.match(line):
            labels = series.setdefault(METRIC.match(line).group(0), {})
            for name, value in re.findall(r'(\w+)="([^"]*)"', line):
                labels.setdefault(name, set()).add(value)
    return series, families


class ServedTest(unittest.TestCase):
    STATUSES = {("GET", "/metrics"): 200, ("GET", "/health"): 200, ("GET", "/"): 200, ("HEAD", "/"): 200,
                ("GET", "/none"): 404, ("POST", "/"): 405}

    @classmethod
    def setUpClass(cls):
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        with Sortitiond(binary(), *Sortitiond.LOOPBACK, *tls_flags(folder)) as server:
            address = server.serving["listen"].replace("127.0.0.1", "localhost")
            refuse_row(address, folder, "--tls", f"--tls_ca={folder}/tls.crt")
            cls.text = server.metrics()
            cls.address = server.serving["metrics"]
            cls.answers = {}
            for method, path in cls.STATUSES:
                body = b"x" * 100_000 if method == "POST" else None
                request = urllib.request.Request(f"http://{cls.address}{path}", body, method=method)
                try:
                    with urllib.request.urlopen(request, timeout=20) as response:
                        cls.answers[method, path] = response.status, response.headers, response.read()
                except urllib.error.HTTPError as error:
                    with error:
                        cls.answers[method, path] = error.code, error.headers, error.read()
        cls.series, cls.families = served(cls.text)

    def test_pages_by_path_and_method(self):
        statuses = {key: answer[0] for key, answer in self.answers.items()}
        self.assertEqual(statuses, self.STATUSES)
        self.assertEqual(self.answers["HEAD", "/"][2], b"")
        self.assertEqual(self.answers["POST", "/"][1]["Allow"], "GET, HEAD")
        self.assertIn("default-src 'none'", self.answers["GET", "/"][1]["Content-Security-Policy"])

    def test_promtool_accepts_the_exposition(self):
        checked = subprocess.run(["promtool", "check", "metrics"], input=self.text, capture_output=True, text=True,
                                 check=False)
        self.assertEqual((checked.returncode, checked.stderr), (0, ""))

    def test_every_metric_named_is_served_or_recorded(self):
        recorded = {rule["record"] for rule in expressions.recordings()}
        for where, expression in expressions.everything():
            names = METRIC.findall(expression)
            records = re.findall(r"\bsortition:[\w:]+", expression)
            self.assertTrue(names or records, f"{where}: no metric in {expression}")
            self.assertLessEqual(set(names), set(self.series), f"{where}: {expression}")
            self.assertLessEqual(set(records), recorded, f"{where}: {expression}")

    def test_every_label_and_value_named_is_served(self):
        labels = set().union(SCRAPE_LABELS, *self.series.values())
        for where, expression in expressions.everything():
            for name, selector in SELECTOR.findall(expression):
                for label, operator, value in MATCHER.findall(selector):
                    if label in SCRAPE_LABELS:
                        continue
                    values = {value} if operator in ("=", "!=") else set(value.split("|"))
                    self.assertLessEqual(values, self.series[name].get(label, set()), f"{where}: {expression}")
            for grouping in GROUPING.findall(expression):
                named = {label.strip() for label in grouping.split(",")} - {"le"}
                self.assertLessEqual(named, labels, f"{where}: {expression}")

    def test_every_metric_served_is_on_a_dashboard(self):
        by_record = {rule["record"]: rule["expr"] for rule in expressions.recordings()}
        shown = set()
        for _, _, expression in expressions.panels():
            for record, recorded in by_record.items():
                expression = expression.replace(record, recorded)
            shown |= {SERIES_SUFFIX.sub("", name) if name not in self.families else name
                      for name in METRIC.findall(expression)}
        self.assertEqual(self.families - shown, set())

    def test_no_panel_of_a_metric_that_is_not_there(self):
        with self.assertRaisesRegex(ValueError, "sortition_none_total"):
            expressions.dashboards.panel("", "", "ops", ("rate(sortition_none_total)", ""))


class RulesTest(unittest.TestCase):
    def test_promtool_parses_every_expression(self):
        asked = [{"record": f"test:expression_{i}", "expr": expression}
                 for i, (_, expression) in enumerate(expressions.everything())]
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            json.dump({"groups": [{"name": "test", "rules": asked}]}, file)
            file.flush()
            for path in (file.name, *expressions.RULES):
                checked = subprocess.run(["promtool", "check", "rules", "--lint-fatal", path], capture_output=True,
                                         text=True, check=False)
                self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)

    def test_every_alert_has_its_page(self):
        names = {alert["alert"] for alert in expressions.alerts()}
        pages = {name.removesuffix(".md") for name in os.listdir(os.path.join(ROOT, "docs/runbooks"))}
        self.assertEqual(pages, names)
        for alert in expressions.alerts():
            self.assertEqual(alert["annotations"]["runbook_url"], f"docs/runbooks/{alert['alert']}.md")
            self.assertIn(alert["labels"]["severity"], ("critical", "warning"))

    def test_every_record_is_used(self):
        asked = " ".join(expression for _, expression in expressions.everything())
        for rule in expressions.recordings():
            self.assertIn(rule["record"], asked)


class AlertsTest(unittest.TestCase):
    """alert_cases.yaml says of each alert which series make it fire and which leave it quiet."""

    @classmethod
    def setUpClass(cls):
        with open(os.path.join(os.path.dirname(__file__), "alert_cases.yaml"), encoding="utf-8") as file:
            cls.cases = yaml.safe_load(file)

    def test_every_alert_has_its_cases(self):
        self.assertEqual(sorted(self.cases), sorted(alert["alert"] for alert in expressions.alerts()))
        for name, case in self.cases.items():
            self.assertEqual(set(case), {"at", "fires", "quiet"}, name)

    def promtool(self, alerts, flip):
        """Runs promtool over these alerts' cases; `flip` inverts the expected results."""
        tests = []
        for alert in alerts:
            case = self.cases[alert["alert"]]
            for kind in ("fires", "quiet"):
                series = [{"series": name, "values": values} for name, values in case[kind]["series"].items()]
                expected = []
                if (kind == "fires") != flip:
                    labels = {"severity": alert["labels"]["severity"], **case["fires"].get("labels", {})}
                    annotations = {"runbook_url": alert["annotations"]["runbook_url"],
                                   "summary": case["fires"].get("summary", alert["annotations"]["summary"])}
                    expected = [{"exp_labels": labels, "exp_annotations": annotations}]
                tests.append({"name": f"{alert['alert']} {kind}", "interval": "1m", "input_series": series,
                              "alert_rule_test": [{"eval_time": case["at"], "alertname": alert["alert"],
                                                   "exp_alerts": expected}]})
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            json.dump({"rule_files": expressions.RULES, "evaluation_interval": "1m", "tests": tests}, file)
            file.flush()
            return subprocess.run(["promtool", "test", "rules", file.name], capture_output=True, text=True,
                                  check=False)

    def test_each_alert_fires_and_keeps_quiet(self):
        ran = self.promtool(expressions.alerts(), flip=False)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)

    def test_a_wrong_expectation_is_noticed(self):
        ran = self.promtool(expressions.alerts()[4:5], flip=True)
        self.assertEqual(len(re.findall(r"^ +name: ", ran.stdout + ran.stderr, re.MULTILINE)), 2)


if __name__ == "__main__":
    unittest.main()
