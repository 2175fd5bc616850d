"""Holds the dashboard and the alerting rules against what a running server exposes.

Every metric and label that an expression names must be served, and every metric that is served must be on the
dashboard. With promtool on the path the expressions are also parsed; without, that test says that it was skipped.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

from sortitiond_process import Sortitiond, binary

ROOT = os.environ["TEST_SOURCE_DIR"]
DASHBOARD = os.path.join(ROOT, "monitoring/dashboards/sortition.json")
ALERTS = os.path.join(ROOT, "monitoring/alerts.yaml")

METRIC = re.compile(r"\bsortition_\w+")
# Labels in a selector, and those that a `by` groups.
SELECTOR = re.compile(r"(sortition_\w+)\{([^}]*)\}")
GROUPING = re.compile(r"\bby \(([^)]*)\)")
SERIES_SUFFIX = re.compile(r"_(?:bucket|sum|count)$")
# Added by the scrape, not by the server.
SCRAPE_LABELS = {"instance"}


def expressions_of_dashboard():
    with open(DASHBOARD, encoding="utf-8") as file:
        dashboard = json.load(file)
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def expressions_of_alerts():
    with open(ALERTS, encoding="utf-8") as file:
        return re.findall(r"^ *expr: (.*)$", file.read(), re.MULTILINE)


def served(text):
    """From each series name to the set of its labels' names, and the names of the families."""
    series, families = {}, set()
    for line in text.splitlines():
        if line.startswith("# TYPE sortition_"):
            families.add(line.split()[2])
        elif line.startswith("sortition_"):
            name = METRIC.match(line).group(0)
            labels = line[len(name) :].split("}")[0] if line[len(name)] == "{" else ""
            series.setdefault(name, set()).update(re.findall(r"(\w+)=\"", labels))
    return series, families


class MonitoringTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Sortitiond(binary(), *Sortitiond.LOOPBACK) as server:
            cls.series, cls.families = served(server.metrics())

    def expressions(self):
        found = {"dashboard": expressions_of_dashboard(), "alerts": expressions_of_alerts()}
        for source, expressions in found.items():
            self.assertTrue(expressions, source)
            for expression in expressions:
                yield source, expression

    def test_every_metric_named_is_served(self):
        for source, expression in self.expressions():
            names = METRIC.findall(expression)
            self.assertTrue(names, f"{source}: no metric in {expression}")
            for name in names:
                self.assertIn(name, self.series, f"{source}: {expression}")

    def test_every_label_named_is_served(self):
        for source, expression in self.expressions():
            for name, selector in SELECTOR.findall(expression):
                for label in re.findall(r"(\w+)\s*[=!]~?", selector):
                    self.assertIn(label, self.series[name] | SCRAPE_LABELS, f"{source}: {expression}")
            labels = set().union(SCRAPE_LABELS, *(self.series[name] for name in METRIC.findall(expression)))
            for grouping in GROUPING.findall(expression):
                for label in grouping.split(","):
                    self.assertIn(label.strip(), labels, f"{source}: {expression}")

    def test_every_metric_served_is_on_the_dashboard(self):
        shown = {SERIES_SUFFIX.sub("", name) if name not in self.families else name
                 for expression in expressions_of_dashboard() for name in METRIC.findall(expression)}
        self.assertEqual(shown, self.families)

    def test_alerts_name_reasons_and_causes_that_exist(self):
        with Sortitiond(binary(), *Sortitiond.LOOPBACK) as server:
            text = server.metrics()
        for expression in expressions_of_alerts():
            for label, values in re.findall(r'\b(reason|cause)=~?"([^"]*)"', expression):
                for value in values.split("|"):
                    self.assertIn(f'{label}="{value}"', text)

    @unittest.skipUnless(shutil.which("promtool"), "promtool is not installed: expressions were not parsed")
    def test_promtool_parses_every_expression(self):
        rules = []
        for _, expression in self.expressions():
            # Grafana fills its variables in before Prometheus sees them.
            filled = expression.replace("$__rate_interval", "5m").replace("$instance", ".*")
            rules.append({"record": f"test:expression_{len(rules)}", "expr": filled})
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            json.dump({"groups": [{"name": "test", "rules": rules}]}, file)
            file.flush()
            for path in (file.name, ALERTS):
                command = ["promtool", "check", "rules", path]
                checked = subprocess.run(command, capture_output=True, text=True, check=False)
                self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)


if __name__ == "__main__":
    unittest.main()
