#!/usr/bin/env python3
"""Writes the Grafana dashboards: dashboards.py FOLDER.

An expression names metrics of catalogue.h or service/metrics.inc, and records of rules/recording.yaml. Here they stand
without the labels and ranges that Grafana's variables select. A name that none has is an error.
"""

import json
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# A metric or record, its labels, and the call of rate around it.
SERIES = re.compile(r"(rate\()?\b((?:sortition|process)[_:][\w:]+)(?:\{(.*?)\})?(?(1)\))")
# These records describe a job, not an instance.
JOB_RECORDS = ("sortition:row_failures", "sortition:slow_steps")

INSTANCE = "{{instance}}"
DEVICE = "{{instance}} {{device}}"
SUM_DEVICE = "sum by (job, instance, device)"
SHARE = {"min": 0, "max": 1}
LABELS_ALONE = {"excludeByName": {"Time": True, "__name__": True, "Value": True}}


def names(path, pattern):
    with open(os.path.join(HERE, path), encoding="utf-8") as file:
        return re.findall(pattern, file.read())


NAMES = {*names("catalogue.h", r'= \{\s*"(\w+)"'), *names("../service/metrics.inc", r'"(sortition_\w+)"'),
         *names("rules/recording.yaml", r"- record: (\S+)")}


def select(match):
    """The series with the labels and range that Grafana's variables select."""
    rate, name, labels = match.groups()
    if not {name, re.sub("_(?:bucket|sum|count)$", "", name)} & NAMES:
        raise ValueError(f"neither a metric nor a record: {name}")
    selected = ['job=~"$job"'] + ([] if name.startswith(JOB_RECORDS) else ['instance=~"$instance"'])
    series = f"{name}{{{','.join(selected + [labels] * bool(labels))}}}"
    series = f"rate({series}[$__rate_interval])" if rate else series
    # Other processes that Prometheus scrapes have metrics of these names, too.
    return series + (" and on (job, instance) sortition_build_info" if name.startswith("process_") else "")


def queries(pairs, **options):
    return [{"refId": letter, "datasource": SOURCE, "expr": SERIES.sub(select, expression), "legendFormat": legend,
             **options} for letter, (expression, legend) in zip("ABCD", pairs)]


def quantile(share, histogram, labels="le"):
    return f"histogram_quantile({share}, sum by ({labels}) (rate({histogram}_bucket)))"


def device_quantile(share, histogram):
    return quantile(share, histogram, "le, job, instance, device")


def panel(title, description, unit, *pairs, width=None, scale=None):
    """A graph, from pairs of an expression and its legend."""
    return width, {
        "type": "timeseries", "title": title, "description": description, "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": unit, **({"min": 0} if scale is None else scale)}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": queries(pairs)}


def table(title, description, expression, columns, width=None):
    """The labels that an expression has at an instant; `columns` says how Grafana organizes them."""
    return width, {
        "type": "table", "title": title, "description": description, "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": "none"}, "overrides": []}, "options": {},
        "targets": queries([(expression, "")], instant=True, format="table"),
        "transformations": [{"id": "organize", "options": columns}]}


# From each dashboard's name to its description, and the titles of its rows, each followed by the row's panels.
DASHBOARDS = {
    "overview": ("Rate, errors and duration of the stream; what is full; transports; versions.", [
        "Rate, errors, duration",
        panel("Tokens",
              "Rows received and rows answered with a token, per second. The two differ when rows are refused.", "ops",
              ("sum(rate(sortition_tokens_total))", "tokens"), ("sum(rate(sortition_rows_total))", "rows")),
        panel("Refusals by reason",
              "Rows, sequences, messages and calls refused, per second. docs/protocol.md says what each reason means.",
              "ops", ("sum by (reason) (rate(sortition_errors_total)) > 0 or sum(rate(sortition_errors_total))",
                      "{{reason}}")),
        panel("Step latency", "From a step's arrival to the answer of its last row.", "s",
              (quantile(0.5, "sortition_step_latency_seconds"), "median"),
              (quantile(0.9, "sortition_step_latency_seconds"), "90 %"),
              (quantile(0.99, "sortition_step_latency_seconds"), "99 %")),
        panel("Rows failed by the server",
              "Share of rows refused with OVERLOADED, DEADLINE_PASSED or DEVICE_FAILED. The objective is less than "
              "0.1 %.", "percentunit", ("sortition:row_failures:ratio_rate5m", "{{job}}, 5 min"),
              ("sortition:row_failures:ratio_rate1h", "{{job}}, 1 h"),
              ("sortition:row_failures:ratio_rate30m", "{{job}}, 30 min"),
              ("sortition:row_failures:ratio_rate6h", "{{job}}, 6 h")),
        panel("Slow steps", "Share of steps that took longer than 65 ms. The objective is less than 1 %.",
              "percentunit", ("sortition:slow_steps:ratio_rate5m", "{{job}}, 5 min"),
              ("sortition:slow_steps:ratio_rate1h", "{{job}}, 1 h")),
        panel("Steps", "Step messages a second, and rows in each.", "short",
              ("sum(rate(sortition_steps_total))", "steps/s"),
              ("sum(rate(sortition_rows_total)) / sum(rate(sortition_steps_total))", "rows a step")),
        "What is full",
        panel("Queue",
              "Rows that wait for a device, by instance, and their bound; steps sent early that wait for their logits.",
              "short", ("sortition_queued_rows", INSTANCE),
              ('max(sortition_limit{name="max_queued_rows"})', "max_queued_rows"),
              ("sum(rate(sortition_ready_wait_seconds_sum))", "steps without logits")),
        panel("Queue, share",
              "Rows that wait, as a share of the bound on rows, and their expected time, as a share of the bound on "
              "time.", "percentunit", ("sortition:queue_full:ratio", f"{INSTANCE} rows"),
              ("sortition:queue_time:ratio", f"{INSTANCE} time"), scale=SHARE),
        panel("Streams, share", "Open streams as a share of max_streams.", "percentunit",
              ("sortition:streams_full:ratio", INSTANCE), scale=SHARE),
        panel("Processors", "Processors that each instance keeps busy.", "short",
              ("rate(process_cpu_seconds_total)", INSTANCE)),
        panel("Resident memory", "Memory of each instance.", "bytes", ("process_resident_memory_bytes", INSTANCE)),
        panel("Descriptors", "Open file descriptors; each connection takes one.", "short",
              ("process_open_fds", INSTANCE), ("max(process_max_fds)", "most"),
              ("sortition:descriptors_open:ratio", f"{INSTANCE}, share")),
        panel("Machine",
              "99th percentile of the time by which a thread that sleeps on each core woke too late, by cause: the "
              "machine let nothing run, or other threads ran or the quota of processor time was used up. What is long "
              "here is long in every step.", "s",
              (quantile(0.99, "sortition_control_late_seconds", "le, cause"), "{{cause}}")),
        "Transports",
        panel("Bytes received",
              "Bytes of messages received, by transport, and the bytes of logits and masks among them.", "Bps",
              ("sum by (transport) (rate(sortition_received_bytes_total))", "{{transport}}"),
              ("sum(rate(sortition_payload_bytes_total))", "payload")),
        panel("Bytes sent", "Bytes of messages sent, by transport.", "Bps",
              ("sum by (transport) (rate(sortition_sent_bytes_total))", "{{transport}}")),
        panel("Messages", "Messages a second, by transport.", "ops",
              ("sum by (transport) (rate(sortition_received_messages_total))", "{{transport}} in"),
              ("sum by (transport) (rate(sortition_sent_messages_total))", "{{transport}} out")),
        panel("Streams", "Open streams, by instance and transport.", "short",
              ("sum by (instance, transport) (sortition_streams)", "{{instance}} {{transport}}"),
              ('max(sortition_limit{name="max_streams"})', "max_streams")),
        panel("Streams opened", "Streams admitted a second.", "ops",
              ("sum by (transport) (rate(sortition_streams_opened_total))", "{{transport}}")),
        panel("Streams and connections ended",
              "Streams ended a second: by the client, drained (shutdown or stream age), abandoned (the connection was "
              "lost, or the client read nothing). Connections that the guard of HTTP/2 ended, by what they sent too "
              "much of.", "ops", ("sum by (how) (rate(sortition_streams_ended_total))", "{{how}}"),
              ("sum by (excess) (rate(sortition_connections_ended_total))", "connections: {{excess}}")),
        panel("Shared memory", "Memory that workers share with the service, and its bound.", "bytes",
              ("sum by (instance) (sortition_memory_bytes)", INSTANCE),
              ('max(sortition_limit{name="max_memory_bytes"})', "limit")),
        panel("Regions and connections", "Regions of shared memory, and connections to the memory socket.", "short",
              ("sum(sortition_memory_regions)", "regions"), ("sum(sortition_memory_connections)", "connections")),
        panel("Bytes read in place", "Bulk bytes that lay in shared memory and were not sent over a stream.", "Bps",
              ("sum(rate(sortition_shared_payload_bytes_total))", "shared")),
        panel("Compact rows",
              "Rows that came in compact form, by outcome: decided, or why the whole row or more of its tokens were "
              "required.", "ops", ("sum by (outcome) (rate(sortition_compact_rows_total))", "{{outcome}}")),
        panel("Spans of traces",
              "Spans that the collector of --otlp_endpoint took, and those that were lost because it did not take them "
              "in time. A lost span costs no step.", "ops",
              ("sum by (outcome) (rate(sortition_trace_spans_total))", "{{outcome}}")),
        panel("Certificate ends in",
              "Time until the certificate in the file of --tls_certificate ends to be valid. Streams that are open "
              "then continue; new ones are refused by workers.", "s",
              ("sortition_tls_certificate_end_timestamp_seconds - time()", INSTANCE), scale={}),
        "Instances",
        table("Versions", "Versions of each instance.", "sortition_build_info",
              LABELS_ALONE, width=12),
        panel("Draining", "Instances that are shutting down.", "short", ("sortition_draining", INSTANCE), width=6),
        panel("Uptime", "Time since each instance started.", "s", ("time() - process_start_time_seconds", INSTANCE),
              width=6),
    ]),
    "rows": ("Rows that were refused and the field at fault; compact rows; phases; receipts.", [
        "Refusals",
        panel("By reason", "Rows, sequences, messages and calls. A reason without refusals is left out.", "ops",
              ("sum by (reason) (rate(sortition_errors_total)) > 0 or sum(rate(sortition_errors_total))",
               "{{reason}}")),
        panel("By reason and field",
              "The ten pairs with most refusals. other: a field that is none of an open, a step or its parameters; "
              "none: no field is at fault. The first refusals of a pair are in the table alone.", "ops",
              ("topk(10, sum by (reason, field) (rate(sortition_refused_fields_total)))", "{{reason}} {{field}}")),
        table("Since the start", "All refusals of the instances that run, by reason and field.",
              "sort_desc(sum by (reason, field) (sortition_refused_fields_total))",
              {"excludeByName": {"Time": True}, "renameByName": {"Value": "refused"}}),
        "Compact rows",
        panel("By outcome", "Decided, or why the row was required.", "ops",
              ("sum by (outcome) (rate(sortition_compact_rows_total))", "{{outcome}}")),
        panel("Share required again",
              "Compact rows that did not decide their answer, of all. Each costs a second message.", "percentunit",
              ('1 - sum(rate(sortition_compact_rows_total{outcome="decided"})) / '
               "sum(rate(sortition_compact_rows_total))", "share")),
        "Phases",
        panel("Rows by phase",
              "Rows whose last token was drawn in a phase, by its number in the sequence. Rows outside of phases are "
              "not among them.", "ops", ("sum by (phase) (rate(sortition_phase_tokens_total))", "{{phase}}")),
        "Receipts",
        panel("By step", "Made, written to a file, and lost because they could not be.", "ops",
              ("sum by (step) (rate(sortition_receipts_total))", "{{step}}")),
        panel("Cannot be written", "1 while receipts cannot be written.", "short",
              ("sortition_receipts_failing", INSTANCE)),
    ]),
    "devices": ("Utilisation, saturation and errors of each device.", [
        "Devices",
        table("Devices", "Devices of each instance.", "sortition_device_info",
              LABELS_ALONE, width=16),
        panel("In service",
              "1 while a device serves. 0 during its self-test, in quarantine, or while it is missing although "
              "--devices names it.", "short", (f'{SUM_DEVICE} (sortition_device_state{{state="serving"}})', DEVICE),
              width=8, scale=SHARE),
        "Utilisation",
        panel("Busy", "Share of its slots' time that a device spent on batches.", "percentunit",
              ("sortition:device_busy:ratio_rate5m", DEVICE), scale=SHARE),
        panel("Batches held", "Batches that a device has been given and has not finished, and its slots.", "short",
              ("sortition_device_batches", DEVICE), ("sortition_device_batch_slots", f"{DEVICE} slots")),
        panel("Rows held", "Rows of the batches that a device has.", "short", ("sortition_device_rows", DEVICE)),
        panel("Rows", "Rows finished a second.", "ops", (f"{SUM_DEVICE} (rate(sortition_batch_rows_sum))", DEVICE)),
        panel("Batches", "Batches finished a second.", "ops",
              (f"{SUM_DEVICE} (rate(sortition_batches_total))", DEVICE)),
        panel("Rows a batch",
              "Mean and 99th percentile. Large batches mean that rows wait for each other; a device that keeps up gets "
              "small ones.", "short",
              (f"{SUM_DEVICE} (rate(sortition_batch_rows_sum)) / {SUM_DEVICE} (rate(sortition_batch_rows_count))",
               f"{DEVICE} mean"),
              (device_quantile(0.99, "sortition_batch_rows"), f"{DEVICE} 99 %")),
        "Time",
        panel("Kernel time", "Time that a device spent on a batch.", "s",
              (device_quantile(0.5, "sortition_kernel_seconds"), f"{DEVICE} median"),
              (device_quantile(0.99, "sortition_kernel_seconds"), f"{DEVICE} 99 %")),
        panel("Kernel time a row", "Mean time on a device for each row.", "s",
              (f"{SUM_DEVICE} (rate(sortition_kernel_seconds_sum)) / {SUM_DEVICE} (rate(sortition_batch_rows_sum))",
               DEVICE)),
        panel("Wait for a device", "Time that a batch's oldest row had waited.", "s",
              (quantile(0.5, "sortition_queue_wait_seconds"), "median"),
              (quantile(0.99, "sortition_queue_wait_seconds"), "99 %")),
        "Errors",
        panel("Failures",
              "Batches whose answers were not used, because the device failed or gave a wrong one, per second.", "ops",
              (f"{SUM_DEVICE} (rate(sortition_device_failures_total))", DEVICE)),
        panel("Rows run again", "Rows of failed batches that went to another device, per second.", "ops",
              (f"{SUM_DEVICE} (rate(sortition_rerun_rows_total))", DEVICE)),
        panel("Live rows checked",
              "Live rows whose answer was compared with the reference (--recheck_share), per second. A wrong one takes "
              "the device out of service.", "ops",
              ("sum by (job, instance, device, result) (rate(sortition_rechecked_rows_total))",
               f"{DEVICE} {{{{result}}}}")),
        "Routing",
        panel("Batches by reason",
              "Reason for the choice of a batch's device: fastest (expected to finish first, by measured cost), only "
              "(no other device that serves can take it), or by policy.", "ops",
              ("sum by (device, reason) (rate(sortition_routed_batches_total))", "{{device}} {{reason}}")),
    ]),
    "sequences": ("Sequence state: its size, evictions, replays, and rows that contest a sequence.", [
        "State",
        panel("Live sequences", "Sequences whose state is held, by instance, and the bound.", "short",
              ("sortition_live_sequences", INSTANCE),
              ('max(sortition_limit{name="max_sequences"})', "max_sequences")),
        panel("Memory of sequences",
              "Bytes of states, options and histories in transfer, by instance, and the bound.", "bytes",
              ("sortition_state_bytes", INSTANCE),
              ('max(sortition_limit{name="max_state_bytes"})', "max_state_bytes")),
        panel("Memory a sequence",
              "Bytes of sequences divided by the sequences with state. Options of sequences without state count, too.",
              "bytes", ("sum(sortition_state_bytes) / sum(sortition_live_sequences)", "mean")),
        "Coming and going",
        panel("Opened", "Sequences opened a second, those opened again included.", "ops",
              ("sum(rate(sortition_sequences_opened_total))", "opened")),
        panel("Evictions",
              "Idle sequences forgotten a second, by the bound: count (max_sequences), bytes (max_state_bytes), idle "
              "(sequence_ttl).", "ops", ("sum by (cause) (rate(sortition_evictions_total))", "{{cause}}")),
        panel("Replays",
              "Histories sent again because the server did not have them, per second, and requests for one.", "ops",
              ("sum(rate(sortition_replays_total))", "replays"),
              ('sum(rate(sortition_errors_total{reason="HISTORY_REQUIRED"}))', "HISTORY_REQUIRED")),
        panel("Replayed tokens", "Tokens of histories sent again, per second.", "ops",
              ("sum(rate(sortition_replayed_tokens_total))", "tokens")),
        panel("Replayed tokens for each drawn", "Cost of replays, by instance.", "short",
              ("sortition:replayed_tokens:ratio_rate5m", INSTANCE)),
        "Contested",
        panel("Stale and superseded",
              "Rows refused because another stream or a later step owns the sequence, per second.", "ops",
              ('sum by (reason) (rate(sortition_errors_total{reason=~"STALE_STEP|SUPERSEDED|STEP_CONFLICT|'
               'STEP_IN_FLIGHT"}))', "{{reason}}")),
        panel("Contested rows",
              "Rows refused because another stream or a later step owns the sequence, as a share of all rows, by "
              "instance.", "percentunit", ("sortition:contested_rows:ratio_rate5m", INSTANCE)),
        "Policies",
        panel("Policies on opens",
              "Opens that the operator's policies have refused, changed or marked, each second.", "short",
              ("sum by (action) (rate(sortition_policy_actions_total))", "{{action}}")),
        "Files",
        panel("Files that cannot be used",
              "1 while a changed file cannot be used, by its flag: what it said before holds. The log line \"file\" "
              "says why.", "short", ("sortition_file_failing", f"{INSTANCE} {{{{file}}}}")),
    ]),
}


def placed(entries):
    """The panels, each with its number and its place: three in a line of 24 columns, or all that the row has."""
    rows = []
    for entry in entries:
        if isinstance(entry, str):
            rows.append((entry, []))
        else:
            rows[-1][1].append(entry)
    panels, y = [], 0

    def place(shown, x, width, height):
        panels.append({"id": len(panels) + 1, **shown, "gridPos": {"x": x, "y": y, "w": width, "h": height}})

    for title, members in rows:
        place({"type": "row", "title": title, "collapsed": False, "panels": []}, 0, 24, 1)
        x, y = 0, y + 1
        for width, shown in members:
            width = width or 24 // min(len(members), 3)
            if x + width > 24:
                x, y = 0, y + 8
            place(shown, x, width, 8)
            x += width
        y += 8
    return panels


def variable(name, query):
    return {"name": name, "label": name.capitalize(), "type": "query", "datasource": SOURCE,
            "query": {"query": query, "refId": name}, "refresh": 2, "includeAll": True, "multi": True, "allValue": ".*",
            "current": {"text": "All", "value": "$__all"}}


def dashboards():
    """(name, dashboard as Grafana imports it)."""
    for name, (description, entries) in DASHBOARDS.items():
        yield name, {
            "uid": f"sortition-{name}", "title": f"Sortition {name}", "description": description, "tags": ["sortition"],
            "timezone": "browser", "schemaVersion": 39, "version": 1, "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"}, "editable": True, "graphTooltip": 1, "annotations": {"list": []},
            "links": [{"type": "dashboards", "title": "Sortition", "tags": ["sortition"], "asDropdown": False,
                       "keepTime": True, "includeVars": True}],
            "templating": {"list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
                 "current": {}, "hide": 0},
                variable("job", "label_values(sortition_build_info, job)"),
                variable("instance", 'label_values(sortition_build_info{job=~"$job"}, instance)')]},
            "panels": placed(entries)}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    os.makedirs(sys.argv[1], exist_ok=True)
    for name, dashboard in dashboards():
        with open(os.path.join(sys.argv[1], f"{name}.json"), "w", encoding="utf-8") as file:
            json.dump(dashboard, file, indent=1)


if __name__ == "__main__":
    main()
