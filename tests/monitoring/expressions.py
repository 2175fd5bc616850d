"""The PromQL expressions of dashboards and rules."""

import glob
import os
import re
import sys

import yaml

ROOT = os.environ["TEST_SOURCE_DIR"]
sys.path.append(os.path.join(ROOT, "monitoring"))

import dashboards  # noqa: E402

RULES = sorted(glob.glob(os.path.join(ROOT, "monitoring/rules/*.yaml")))

# Values of the variables that Grafana fills in before Prometheus sees an expression.
VARIABLES = {"$__rate_interval": "1m", "$job": ".*", "$instance": ".*"}
COMPARISON = re.compile(r"\s*(?:[<>]=?|[!=]=)\s*[\d.]+")


def panels():
    """(dashboard's name, panel's title, expression) of every query of every panel."""
    for name, dashboard in dashboards.dashboards():
        for panel in dashboard["panels"]:
            for target in panel.get("targets", []):
                expression = target["expr"]
                for variable, value in VARIABLES.items():
                    expression = expression.replace(variable, value)
                yield name, panel["title"], expression


def rules():
    for path in RULES:
        with open(path, encoding="utf-8") as file:
            for group in yaml.safe_load(file)["groups"]:
                yield from group["rules"]


def alerts():
    return [rule for rule in rules() if "alert" in rule]


def recordings():
    return [rule for rule in rules() if "record" in rule]


def autoscaling():
    """The query by which the metrics adapter answers the autoscaler, for the replicas of one scrape."""
    with open(os.path.join(ROOT, "monitoring/prometheus-adapter.yaml"), encoding="utf-8") as file:
        (rule,) = yaml.safe_load(file)["rules"]
    series = rule["seriesQuery"].split("{")[0]
    query = rule["metricsQuery"].replace("<<.GroupBy>>", "instance").replace("<<.Series>>", series)
    return query.replace("{<<.LabelMatchers>>}", "")


def keda():
    """The query by which KEDA scales."""
    with open(os.path.join(ROOT, "deploy/kubernetes/overlays/keda/scaled-object.yaml"), encoding="utf-8") as file:
        return yaml.safe_load(file)["spec"]["triggers"][0]["metadata"]["query"]


def everything():
    """(where it stands, expression)."""
    yield from ((f"{name}: {title}", expression) for name, title, expression in panels())
    yield from ((rule.get("alert", rule.get("record")), rule["expr"]) for rule in rules())


def measured(expression):
    """The quantity that an alert's expression compares: has a value also while nothing is wrong."""
    absent = re.fullmatch(r"absent\((.*)\)", expression)
    return absent.group(1) if absent else COMPARISON.sub("", expression)
