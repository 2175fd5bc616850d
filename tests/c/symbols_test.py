"""The shared library exports the headers' functions and nothing else, and its name has the interface's version."""

import os
import pathlib
import re
import subprocess
import unittest

LIBRARY = os.environ["TEST_C_LIBRARY"]
HEADERS = pathlib.Path(os.environ["TEST_SOURCE_DIR"], "client/c/include/sortition").glob("*.h")
HEADER = "".join(path.read_text() for path in HEADERS)
CONTRACT = pathlib.Path(os.environ["TEST_SOURCE_DIR"], "proto/sortition/v1/errors.proto").read_text()


def output_of(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


class SymbolsTest(unittest.TestCase):
    def test_exports_are_the_headers_functions(self):
        declared = re.findall(r"^SORTITION_API [\w* ]*?\b(sortition_\w+)\(", HEADER, re.MULTILINE)
        self.assertEqual(HEADER.count("\nSORTITION_API "), len(declared))
        exported = [line.split()[-1] for line in output_of("nm", "-D", "--defined-only", LIBRARY).splitlines()]
        self.assertEqual(sorted(exported), sorted(declared))

    def test_soname_has_the_major_version(self):
        major = re.search(r'#define SORTITION_VERSION "(\d+)', HEADER).group(1)
        self.assertIn(f"[libsortition_c.so.{major}]", output_of("readelf", "-d", LIBRARY))

    def test_reasons_are_the_contracts(self):
        contract = dict(re.findall(r"^  ([A-Z_]+) = (\d+);", CONTRACT, re.MULTILINE))
        contract["NONE"] = contract.pop("ERROR_REASON_UNSPECIFIED")
        self.assertEqual(dict(re.findall(r"\bSORTITION_REASON_(\w+) = (\d+)", HEADER)), contract)


if __name__ == "__main__":
    unittest.main()
