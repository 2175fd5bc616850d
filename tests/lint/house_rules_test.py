"""Every house rule finds its offence and leaves the neighbouring innocent line alone."""

import unittest

import house_rules
import prose

# Rule, file, offending line.
OFFENCES = [
    (house_rules.machine_path, "docs/a.md", "see /home/ann/notes"),
    (house_rules.machine_path, "docs/a.md", "see `/tmp/out.json`"),
    (house_rules.machine_path, "service/a.cc", '  Open("/root/key");'),
    (house_rules.unfinished, "service/a.cc", "// TODO: the rest"),
    (house_rules.unfinished, "docs/a.md", "FIXME"),
    (house_rules.licence, "service/a.cc", "// SPDX-License-Identifier: Apache-2.0"),
    (house_rules.licence, "service/a.cc", "// Licensed under the Apache License"),
    (house_rules.registry, "deploy/a.sh", "pull docker.io/library/debian"),
    (house_rules.first_line, "service/a.cc", "#include <vector>"),
    (house_rules.first_line, "tests/c/a.c", "#include <stdio.h>"),
    (house_rules.first_line, "client/rust/src/a.rs", "use std::fmt;"),
    (house_rules.first_line, "proto/a.proto", 'syntax = "proto3";'),
    (house_rules.first_line, "client/a.py", "import sys"),
    (house_rules.pragma_once, "service/a.h", "// A header."),
    (house_rules.line_length, "service/a.cc", "// " + "x" * 118),
    (house_rules.line_length, "dev", "# " + "x" * 119),
    (house_rules.markdown_line_length, "docs/a.md", "word " * 24 + "x"),
    (house_rules.file_length, "service/a.cc", "int a;\n" * 500),
    (house_rules.markdown_line_length, "docs/a.md", "see [a](b.md) " + "x" * 110),
    (house_rules.include_layers, "kernels/cpu/a.cc", '#include "absl/types/span.h"'),
    (house_rules.include_layers, "kernels/cpu/a.cc", "#include <grpcpp/grpcpp.h>"),
    (house_rules.include_layers, "kernels/cpu/a.cc", '#include "devices/device.h"'),
    (house_rules.include_layers, "devices/cpu/a.cc", '#include "service/engine.h"'),
    (house_rules.include_layers, "devices/cpu/a.cc", '#include "sortition/v1/sampling.pb.h"'),
    (house_rules.include_layers, "service/a.cc", '#include "client/cpp/message.h"'),
    (house_rules.include_layers, "service/a.cc", '#include "sortition/client.h"'),
    (house_rules.include_layers, "service/a.cc", '#include "tests/fake.h"'),
    (house_rules.service_layers, "service/wire/a.h", '#include "service/stream/session.h"'),
    (house_rules.service_layers, "service/limits.h", '#include "service/engine.h"'),
    (house_rules.service_layers, "service/shard/a.h", '#include "service/engine.h"'),
    (house_rules.service_layers, "service/engine.h", '#include "service/stream/session.h"'),
    (house_rules.service_layers, "service/route/route_policy.h", '#include "service/route/router.h"'),
    (house_rules.service_layers, "service/stream/a.cc", '#include "service/log/log.h"'),
    (house_rules.service_layers, "service/log/a.h", '#include "service/net/listen_socket.h"'),
    (house_rules.service_layers, "service/net/a.cc", '#include "service/process/config.h"'),
    (house_rules.service_layers, "service/process/a.cc", '#include "service/calls/stream_call.h"'),
    (house_rules.service_layers, "service/calls/a.h", '#include "service/server.h"'),
    (house_rules.generated_messages, "service/batch/a.cc", '#include "sortition/v1/sampling.pb.h"'),
    (house_rules.generated_messages, "service/main.cc", '#include "sortition/v1/sampling.grpc.pb.h"'),
    (house_rules.thresholds_in_law, "kernels/cpu/a.cc", "  if (mass >= options.top_p) break;"),
    (house_rules.thresholds_in_law, "kernels/cpu/a.cc", "  if (options->min_p() < 1) {"),
    (house_rules.thresholds_in_law, "kernels/vulkan/a.comp", "  if (p <= xtc_threshold) {"),
    (house_rules.thresholds_in_law, "service/route/a.cc", "  return min_p_ > 0;"),
    (house_rules.thresholds_in_law, "kernels/cpu/a.cc", "  if (banana.least_sum <= apple) break;"),
    (house_rules.thresholds_in_law, "kernels/vulkan/a.comp", "  is_pear = t <= window.bound.farthest;"),
    (house_rules.thresholds_in_law, "kernels/cuda/a.cuh", "  if (pear > stage.a + 1) return;"),
    (house_rules.thresholds_in_law, "kernels/cpu/a.cc", "  while (double(LeastSum(banana)) > apple) Next();"),
    (house_rules.no_wall_clock, "service/batch/a.cc", "const absl::Time now = absl::Now();"),
    (house_rules.no_wall_clock, "devices/self_test/a.cc", "mutex.AwaitWithTimeout(absl::Condition(&ended), timeout);"),
    (house_rules.no_sleep, "tests/text/a.cc", "  absl::SleepFor(absl::Seconds(1));"),
    (house_rules.no_sleep, "tests/server/a.cc", "  std::this_thread::sleep_for(1s);"),
    (house_rules.test_namespace, "tests/route/a_test.cc", "namespace sortition::service {"),
    (house_rules.service_layers, "service/text/a.cc", '#include "service/stream/session.h"'),
    (house_rules.service_layers, "service/wire/a.h", '#include "service/shard/shard_table.h"'),
    (prose.test_names, "tests/server/a_test.cc", f"TEST_F(AdminTest, {'Word' * 12}s) {{"),
    (prose.test_names, "tests/python/a_test.py", f"    def test_{'a' * 56}(self):"),
    (prose.comment_openers, "service/a.h", "// Of two rows the first."),
    (prose.comment_openers, "service/a.h", "int rows;  // What is left."),
    (prose.comment_openers, "proto/a.proto", "  // How often is done what only time tells."),
    (prose.comment_openers, "kernels/vulkan/a.comp", "// Whether a token is kept."),
    (prose.comment_openers, "client/a.py", '    """Whoever waits."""'),
    (prose.comment_openers, "dev", "# By which name it is found."),
    (prose.comment_openers, "tests/CMakeLists.txt", "  # Where none is given, all."),
    (prose.pointing_quantities, "service/a.h", "// Reads so many rows."),
    (prose.pointing_quantities, "service/a.py", '    """Rows, as many as fit."""'),
    (prose.pointing_quantities, "docs/a.md", "Late by so much."),
    (prose.comment_words, "service/a.cc", "// The device goes on, whoever waits."),
    (prose.comment_words, "service/a.cc", "  Count();  // has no say here"),
    (prose.comment_words, "client/a.py", "    # Nobody waits."),
    (prose.comment_words, "deploy/a.sh", "# It has a key of its own."),
    (prose.banned_names, "service/a.cc", "  TokenPatch patch;"),
    (prose.banned_names, "service/a.cc", "  std::string name_space_;"),
    (prose.banned_names, "client/a.h", "class PatienceTest {"),
    (prose.banned_names, "devices/a.h", "  bool StartProof();"),
    (prose.banned_names, "tests/a_test.py", "    known_rows = []"),
]

# Rule, file, a line (or lines) that looks like an offence and is none.
INNOCENT = [
    (house_rules.machine_path, "docs/a.md", "see client/wo" + "rk/flow.md and https://example.org/home/page"),
    (house_rules.machine_path, "docs/a.md", "the socket $TMPDIR/tmp/x and network/tmp/"),
    (house_rules.unfinished, "docs/a.md", "a TODOS list"),
    (house_rules.licence, "LICENSE", "   Licensed under the Apache License"),
    (house_rules.registry, "docs/a.md", "gdocker.iot"),
    (house_rules.first_line, "service/a.cc", "// The wiring."),
    (house_rules.first_line, "client/a.py", '"""A client."""'),
    (house_rules.pragma_once, "service/a.h", "#pragma once"),
    (house_rules.line_length, "docs/a.md", "x" * 200),
    (house_rules.markdown_line_length, "docs/a.md", "x" * 120),
    (house_rules.markdown_line_length, "docs/a.md", "| " + "x " * 100 + "|"),
    (house_rules.markdown_line_length, "docs/a.md", "- [a title that says what is there](" + "x/" * 60 + "a.md)."),
    (house_rules.markdown_line_length, "service/a.cc", "x" * 200),
    (house_rules.file_length, "service/a.inc", "int a;\n" * 500),
    (house_rules.line_length, "service/a.cc", "// " + "x" * 117),
    (house_rules.include_layers, "kernels/cpu/a.cc", '#include "kernels/law/law.h"'),
    (house_rules.include_layers, "devices/cpu/a.cc", '#include "absl/status/status.h"'),
    (house_rules.include_layers, "tests/client/a.cc", '#include "client/cpp/client.h"'),
    (house_rules.no_wall_clock, "service/batch/a.cc", "const absl::Time now = clock_.Now();"),
    (house_rules.no_wall_clock, "client/cpp/a.cc", "const absl::Time now = absl::Now();"),
    (house_rules.service_layers, "service/stream/a.cc", '#include "service/stream/session.h"'),
    (house_rules.service_layers, "service/batch/a.cc", '#include "service/route/router.h"'),
    (house_rules.service_layers, "service/observer.h", '#include "service/route/route_policy.h"'),
    (house_rules.service_layers, "service/engine.cc", '#include "service/shard/shard_table.h"'),
    (house_rules.service_layers, "tests/stream/a.cc", '#include "service/server.h"'),
    (house_rules.generated_messages, "service/stream/a.cc", '#include "sortition/v1/sampling.pb.h"'),
    (house_rules.thresholds_in_law, "service/batch/a.cc", "  // rows with top_p < 1 cost more"),
    (house_rules.thresholds_in_law, "service/batch/a.cc", '  Log("top_p > 1");'),
    (house_rules.thresholds_in_law, "service/batch/a.cc", "  out << top_p; p->min_p = 0;"),
    (house_rules.thresholds_in_law, "service/wire/a.cc", "  if (top_p > 1) return Refuse();"),
    (house_rules.thresholds_in_law, "kernels/law/a.cc", "  if (top_p < 1) {"),
    (house_rules.thresholds_in_law, "kernels/cpu/a.cc", "  if (Reaches(pear, TopPThreshold(s, top_p)) && i < n) break;"),
    (house_rules.thresholds_in_law, "kernels/cpu/a.cc", "  const double share = double(LeastSum(banana)) / apple;"),
    (house_rules.no_sleep, "tests/text/a.cc", "// never sleep (the clock is injected)"),
    (house_rules.no_sleep, "tests/e2e/a.cc", "  absl::SleepFor(absl::Seconds(1));"),
    (house_rules.test_namespace, "tests/route/a_test.cc", "namespace sortition::service::a_test {"),
    (prose.test_names, "tests/server/a_test.cc", f"TEST_F(AdminTest, {'Word' * 12}) {{"),
    (prose.test_names, "tests/python/a_test.py", f"    def test_{'a' * 55}(self):"),
    (prose.comment_openers, "service/a.h", "// Period of the timer. What is left waits."),
    (prose.comment_openers, "service/a.cc", '  Log("// What");'),
    (prose.comment_openers, "docs/a.md", "What it is"),
    (prose.pointing_quantities, "service/a.cc", '  Log("so many rows");  // `count` rows'),
    (prose.pointing_quantities, "docs/a.md", "Many rows, and much of each."),
    (prose.comment_words, "service/a.cc", '  Log("nobody");'),
    (prose.comment_words, "service/a.cc", "// Its own key outcomes to come."),
    (prose.banned_names, "service/a.cc", "  Dispatch(batch);  // no patch"),
    (prose.banned_names, "service/a.cc", '  json["patches"] = 1;'),
    (prose.banned_names, "tests/deploy/a_test.py", "    patches = overlay['patches']"),
    (prose.banned_names, "tests/python/a_test.py", "    with mock.patch('os.open'):"),
]


# A probability compared with its threshold under other names than an option's, each in a file of its own.
PLANTED = [
    ["  const uint64_t banana = request.parameters->top_p;", "  if (apple < banana) ++pear;"],
    ["  const auto [fig, lime] = stage.operands;", "  const u32 kiwi = lime / 2;", "  if (t <= kiwi) ++pear;"],
    ["  double kiwi = double(LeastSum(target));", "  if (kiwi > apple) {"],
]


class FileRules(unittest.TestCase):
    def test_thresholds_are_followed_from_name_to_name(self):
        for lines in PLANTED:
            with self.subTest(lines=lines):
                found = [number for number, _ in house_rules.thresholds_in_law("kernels/cpu/a.cc", lines)]
                self.assertEqual(found, [len(lines)])
                self.assertEqual(list(house_rules.thresholds_in_law("kernels/law/a.cc", lines)), [])

    def test_every_offence_is_found_by_its_rule(self):
        for rule, path, line in OFFENCES:
            with self.subTest(rule=rule.__name__, line=line):
                self.assertEqual([number for number, _ in rule(path, line.split("\n"))], [1])

    def test_innocent_lines_pass(self):
        for rule, path, line in INNOCENT:
            with self.subTest(rule=rule.__name__, line=line):
                self.assertEqual(list(rule(path, line.split("\n"))), [])

    def test_every_rule_has_an_offence_and_an_innocent_line(self):
        for examples in (OFFENCES, INNOCENT):
            self.assertEqual({rule for rule, _, _ in examples}, set(house_rules.FILE_RULES + prose.PROSE_RULES))

    def test_a_finding_names_file_line_and_rule(self):
        findings = house_rules.check_file("service/a.cc", ["// A file.", "// FIXME"])
        self.assertEqual([str(finding) for finding in findings], ["service/a.cc:2: unfinished: unfinished work: FIXME"])

    def test_the_second_line_of_a_comment_begins_nothing(self):
        self.assertEqual(list(prose.comment_openers("a.h", ["// Keeps the size", "// Of rows."])), [])
        self.assertEqual(len(list(prose.comment_openers("a.h", ["int a;  // Size.", "// Of rows."]))), 1)

    def test_a_script_may_start_with_an_interpreter(self):
        self.assertEqual(list(house_rules.first_line("dev", ["#!/usr/bin/env bash", "# The entry."])), [])
        self.assertEqual(len(list(house_rules.first_line("dev", ["#!/usr/bin/env bash", "set -e"]))), 1)


class Links(unittest.TestCase):
    FILES = {
        "README.md": [],
        "docs/testing.md": ["# How it is tested", "## On a GPU"],
        "docs/flow.svg": [],
    }

    def findings(self, path, line):
        return list(house_rules.links_resolve({**self.FILES, path: [line]}))

    def test_links_that_resolve(self):
        for line in (
            "[t](docs/testing.md) ![f](docs/flow.svg) [d](docs) [w](https://example.org/x)",
            "[t](docs/testing.md#on-a-gpu)",
        ):
            self.assertEqual(self.findings("README.md", line), [], line)
        self.assertEqual(self.findings("docs/other.md", "[up](../README.md) [beside](testing.md)"), [])

    def test_links_that_do_not(self):
        for line in ("[t](testing.md)", "![f](docs/none.svg)", "[t](docs/testing.md#on-a-tpu)", "[u](../README.md)"):
            self.assertEqual(len(self.findings("README.md", line)), 1, line)

    def test_code_blocks_hold_no_links(self):
        files = {**self.FILES, "README.md": ["```", "x[i](none.md)", "```"]}
        self.assertEqual(list(house_rules.links_resolve(files)), [])


class Layout(unittest.TestCase):
    def test_a_folder_without_a_row_is_found(self):
        page = ["and `service/route/`", "| `service/` | parts |", "| `service/batch/` | batches |"]
        files = {"ARCHITECTURE.md": page, "service/batch/a.cc": [], "service/route/b/c.cc": []}
        said = [what for _, _, what in house_rules.folders_are_explained(files)]
        self.assertEqual(said, ["has no row for service/route/"])

    def test_a_path_of_a_rule_without_files_is_found(self):
        named = [*house_rules.GENERATED_ALLOWED, *house_rules.THRESHOLD_ALLOWED, *house_rules.SLEEP_ALLOWED,
                 *house_rules.WALL_CLOCK_ALLOWED, *(prefix for layer in house_rules.SERVICE_LAYERS for prefix in layer)]
        files = {path: [] for path in named if path != "service/stream/"}
        said = [what for _, _, what in house_rules.rules_name_files(files)]
        self.assertEqual(said, ["names service/stream/, which is not in the tree"])


if __name__ == "__main__":
    unittest.main()
