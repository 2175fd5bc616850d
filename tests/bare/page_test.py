"""The figures and rules of docs/without-client.md are those of the server, the contract and both programs."""

import json
import os
import re
import subprocess
import sys
import unittest

from sortition.v1.errors_pb2 import ErrorReason

from sortitiond_process import Sortitiond, binary
from worker_test import SOURCE

sys.path.insert(0, str(SOURCE / "client/examples"))

import bare_worker  # pylint: disable=wrong-import-position

PAGE = (SOURCE / "docs/without-client.md").read_text(encoding="utf-8")
GO = (SOURCE / "client/examples/bare_worker.go").read_text(encoding="utf-8")
SECONDS = {"ms": 0.001, "s": 1, "MiB": 1 << 20, "milliseconds": 0.001, "": 1}


def tables():
    """The page's tables, as rows of cells without their backticks."""
    found = re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE)
    return [[[cell.strip().replace("`", "") for cell in line[1:-1].split("|")] for line in table.splitlines()[2:]]
            for table in found]


def value_of(text):
    """The page's "16 MiB", "30 s" or "4096" as a number of bytes, seconds or things."""
    number, unit = re.match(r"(\d+) ?(\w*)", text).groups()
    return int(number) * SECONDS[unit]


def words(text):
    return set(re.findall(r"\b[A-Z][A-Z_]+\b", text))


class PageTest(unittest.TestCase):
    def setUp(self):
        self.channel, self.reasons, self.limits = tables()

    def test_limits(self):
        with Sortitiond(binary(), *Sortitiond.LOOPBACK) as server:
            info = subprocess.run([os.environ["TEST_SORTITIONCTL"], "info", "--json",
                                   f"--server={server.serving['listen']}"], capture_output=True, check=True).stdout
        known = {limit["name"]: int(limit["value"]) * SECONDS.get(limit["unit"], 1)
                 for limit in json.loads(info)["limits"]}
        sources = (SOURCE / "service/server.cc").read_text() + (SOURCE / "service/flags.inc").read_text()
        for name, number in re.findall(r"(GRPC_ARG_\w+), ([\d']+)\)", sources):
            known[name] = int(number.replace("'", "")) / 1000
        known["drain_grace"] = int(re.search(r"drain_grace, absl::Seconds\((\d+)\)", sources).group(1))
        self.assertGreater(len(self.limits), 10)
        for name, value, _ in self.limits:
            with self.subTest(name):
                self.assertAlmostEqual(value_of(value), known[name])
        least = re.search(r"never below (\d+ s)", self.channel[0][3]).group(1)
        self.assertEqual(value_of(least), known["min_ping_interval"])
        self.assertIn(f"more often than every {least} ", PAGE)

    def test_channels_of_the_programs(self):
        go = dict(re.findall(r"\b(Time|Timeout): (\d+ \* time\.Second)", GO))
        said = {}
        for _, python, in_go, value in self.channel[:-1]:
            unit = 0.001 if python.endswith("_ms") else 1
            said[python] = -1 if value == "no limit" else round(value_of(value) / unit)
            if python.startswith("grpc.keepalive"):
                self.assertEqual(go[in_go.rpartition(".")[2]], f"{value_of(value)} * time.Second")
        self.assertEqual(said, dict(bare_worker.OPTIONS))

    def test_pauses_and_sizes_of_the_programs(self):
        first, longest = re.search(r"(\d+ ms) after the\s+first failure, doubled to (\d+ s)", PAGE).groups()
        size, rows = re.search(r"(\d+ MiB) and (\d+) rows a message", PAGE).groups()
        self.assertEqual(value_of(self.channel[-1][3]), value_of(longest))
        python = (bare_worker.PAUSE_S, bare_worker.LONGEST_PAUSE_S, bare_worker.MESSAGE_BYTES, bare_worker.MESSAGE_ROWS)
        self.assertEqual(python, (value_of(first), value_of(longest), value_of(size), value_of(rows)))
        for line in (rf"firstPause += {value_of(first) * 1000:.0f} \* time.Millisecond",
                     rf"longestPause += {value_of(longest)} \* time.Second",
                     rf"messageBytes += {value_of(size) >> 20} << 20", rf"messageRows += {value_of(rows)} "):
            self.assertRegex(GO, line)

    def test_refusals(self):
        groups = [words(names) for names, _ in self.reasons]
        self.assertEqual(sorted(name for group in groups for name in group),
                         sorted(set(ErrorReason.keys()) - {"ERROR_REASON_UNSPECIFIED"}))
        mended = [bare_worker.REPLAY, bare_worker.REOPEN, bare_worker.LATER, bare_worker.ELSEWHERE]
        self.assertEqual(groups[:4], [{ErrorReason.Name(reason) for reason in group} for group in mended])
        in_go = [set(re.findall(r"v1\.ErrorReason_(\w+)", case))
                 for case in re.findall(r"case (v1\.ErrorReason_.*?):", GO, re.DOTALL)]
        self.assertCountEqual(in_go, groups[:4])

    def test_statuses_that_are_final(self):
        said = words(re.search(r"A call that ends with (.*?) would", PAGE, re.DOTALL).group(1))
        self.assertEqual(said, {status.name for status in bare_worker.FINAL})
        case = re.search(r"case (codes\..*?):", GO, re.DOTALL).group(1)
        self.assertEqual({re.sub(r"(?<=.)([A-Z])", r"_\1", name).upper() for name in re.findall(r"codes\.(\w+)", case)},
                         said)


if __name__ == "__main__":
    unittest.main()
