"""Manual pages and completion: every flag of the sources is in them, and bash completes them."""

import gzip
import os
import pathlib
import re
import subprocess
import unittest

SOURCE = pathlib.Path(os.environ["TEST_SOURCE_DIR"])
MANUALS = pathlib.Path(os.environ["TEST_BUILD_DIR"], "deploy/packages/manuals")
# From each program to its page's section and the sources that define its flags.
PROGRAMS = {
    "sortitiond": (8, ["service/flags.inc", "service/tuning_flags.inc"]),
    "sortitionctl": (1, ["client/cli/*.cc"]),
    "sortition_self_test": (1, ["tests/conformance/self_test_main.cc"]),
}


def flags(patterns):
    text = "".join(file.read_text(encoding="utf-8") for pattern in patterns for file in SOURCE.glob(pattern))
    text = re.sub(r"^#define (?:.*\\\n)*.*", "", text, flags=re.MULTILINE)  # these make flags of the table of options
    lines = re.findall(r"^(?:SETTING|NUMBER|LIMIT)\([\w:]+, (\w+),|^TIME_LIMIT\((\w+),", text, re.MULTILINE)
    return {name for pair in lines for name in pair if name} | set(
        re.findall(r"ABSL_FLAG\(\s*(?:[^,()<>]|<[^>]*>|\([^)]*\))+,\s*(\w+),", text))


def complete(program, *words):
    """Returns bash's completions of the last word, as after a press of the tab key."""
    script = f"""
      compopt() {{ :; }}  # works only while bash completes by itself
      . {MANUALS}/completion/{program}
      COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
      _{program}
      printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", script, "bash", program, *words], stdout=subprocess.PIPE, text=True,
                          check=True)
    return set(done.stdout.split())


class ManualsTest(unittest.TestCase):
    def test_every_flag_is_in_page_and_completion(self):
        for program, (section, sources) in PROGRAMS.items():
            expected = flags(sources)
            if program == "sortitionctl":
                expected |= {"temperature", "p_less", "xtc_threshold", "min_tokens", "dry_base"}
            self.assertGreater(len(expected), 3, program)
            page = gzip.decompress((MANUALS / f"{program}.{section}.gz").read_bytes()).decode()
            in_page = set(re.findall(r"^\\fB\\-\\-(\w+)\\fR", page, re.MULTILINE))
            self.assertEqual(expected - in_page, set(), program)
            completed = {word.strip("-=") for word in complete(program, "--")}
            self.assertEqual(completed, in_page, program)

    def test_pages_say_what_flags_and_commands_are_for(self):
        page = gzip.decompress((MANUALS / "sortitiond.8.gz").read_bytes()).decode()
        self.assertIn("\\fB\\-\\-drain_grace\\fR=\\fI30s\\fR\nHow long steps in flight may take", page)
        self.assertIn("Exit codes: 0 drained", page)
        self.assertIn('.SH TUNING FLAGS\n', page)
        for file in MANUALS.glob("*.gz"):
            for line in gzip.decompress(file.read_bytes()).decode().splitlines():
                self.assertRegex(line, r"^(\.(TH|SH|B|PP|TP|nf|fi)\b|[^.'])", f"{file.name}: {line}")

    def test_bash_completes_flags_commands_and_files(self):
        self.assertEqual(complete("sortitiond", "--tls_k"), {"--tls_key="})
        self.assertEqual(complete("sortitiond", "--insec"), {"--insecure"})
        self.assertEqual(complete("sortitionctl", "he"), {"health"})
        self.assertEqual(complete("sortitionctl", "--server", "=", "host", "wa"), {"watch"})
        self.assertEqual(complete("sortitionctl", "sample", "inf"), set())
        self.assertEqual(complete("sortitiond", "--tls_key", "=", f"{SOURCE}/LICEN"), {f"{SOURCE}/LICENSE"})


if __name__ == "__main__":
    unittest.main()
