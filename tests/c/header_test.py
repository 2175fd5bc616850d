"""The header's promise: earlier ABI versions are served, and a library that is too old is refused at load.

abi_N.h is the interface of ABI version N without comments. `header_test.py --freeze` writes that of the header.
"""

import ctypes
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(os.environ.get("TEST_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
FOLDER = ROOT / "tests/c"
HEADERS = [ROOT / f"client/c/include/sortition/{name}.h" for name in ("sortition_errors", "sortition")]
EXAMPLE = ROOT / "client/examples/batch_engine.c"


def bare(text):
    """Returns a header without comments and without the lines that are no declarations."""
    text = re.sub(r" *//.*", "", text)
    text = re.sub(r"#ifdef __cplusplus\n.*?#endif\n|#(?:include|pragma)[^\n]*", "", text, flags=re.DOTALL)
    return re.sub(r"\n\s*\n", "\n", text).strip() + "\n"


HEADER = bare("".join(path.read_text() for path in HEADERS))


def version_of(header):
    return int(re.search(r"#define SORTITION_ABI_VERSION (\d+)", header).group(1))


def parts_of(header):
    """Returns the declarations by kind: structs with their fields in order, and all others."""
    text = " ".join(re.sub(r"^#.*?(?<!\\)\n", "", header, flags=re.DOTALL | re.MULTILINE).split())
    structs = {name: [field.strip() for field in fields.split(";")[:-1]]
               for fields, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", text)}
    values = [value.strip() for body in re.findall(r"enum \{(.*?)\}", text) for value in body.split(",")]
    functions = re.findall(r"SORTITION_API .*?;", text)
    types = re.findall(r"typedef [^{};]+;", text)
    macros = re.findall(r"^#define (?!SORTITION_(?:VERSION|ABI_VERSION)\b).*", header, re.MULTILINE)
    return structs, {*values, *functions, *types, *macros}


def changes(old, new):
    """Returns the declarations of the old header that the new one lacks or has otherwise, and those that are added."""
    (old_structs, old_others), (new_structs, new_others) = parts_of(old), parts_of(new)
    broken, added = sorted(old_others - new_others), sorted(new_others - old_others)
    for name, fields in old_structs.items():
        now = new_structs.get(name, [])
        if now[:len(fields)] != fields:
            broken.append(name)
        added += [f"{name}.{field}" for field in now[len(fields):]]
    return broken, added + sorted(new_structs.keys() - old_structs.keys())


def frozen():
    """Returns the frozen headers, the oldest first."""
    return sorted((path.read_text() for path in FOLDER.glob("abi_*.h")), key=version_of)


def without(header, first_fields, functions):
    """Returns an older header: structs end before the field that is named, and the functions are missing."""
    for struct, field in first_fields.items():
        cut = rf"(typedef struct {struct} \{{(?:(?!\}}).)*?)\n[^\n]*\b{field};[^}}]*\}}"
        header, count = re.subn(cut, r"\1\n}", header, flags=re.DOTALL)
        assert count == 1, struct
    for function in functions:
        header, count = re.subn(rf"SORTITION_API [\w ]*{function}\(.*?\);\n", "", header, flags=re.DOTALL)
        assert count == 1, function
    return header


def program(folder, header, source, library):
    """Compiles a program with this header, links it with a library and returns its path."""
    (pathlib.Path(folder) / "sortition").mkdir(exist_ok=True)
    guarded = f"#pragma once\n#include <stddef.h>\n#include <stdint.h>\n{header}"
    (pathlib.Path(folder) / "sortition/sortition.h").write_text(guarded)
    subprocess.run([os.environ["TEST_C_COMPILER"], "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I", folder,
                    "-o", f"{folder}/program", source, library, "-lm"], check=True)
    return f"{folder}/program"


def run(*command):
    folder = str(pathlib.Path(os.environ["TEST_C_LIBRARY"]).parent)
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                          env={**os.environ, "LD_LIBRARY_PATH": folder})


class HeaderTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = temporary.name

    def test_nothing_frozen_has_changed(self):
        headers = frozen()
        self.assertEqual([version_of(header) for header in headers], list(range(1, len(headers) + 1)))
        for header in headers:
            self.assertEqual(changes(header, HEADER)[0], [], f"changed since ABI version {version_of(header)}")
        added = changes(headers[-1], HEADER)[1]
        self.assertEqual(version_of(HEADER), version_of(headers[-1]) + bool(added),
                         f"an addition raises SORTITION_ABI_VERSION: {added}")

    def test_every_kind_of_change_is_found(self):
        for old, new, broken, added in (
                ("size_t capacity", "size_t room", "get_tokens", "get_tokens"),
                ("  size_t count;\n", "", "sortition_drafts", ""),
                ("double value,", "float value,", "set_double", "set_double"), ("F16 = 2", "F16 = 4", "F16", "F16"),
                ("  uint32_t turns;\n", "  uint32_t more;\n  uint32_t turns;\n", "sortition_sequence", ".uint32_t"),
                ("  size_t banned_count;\n", "  size_t banned_count;\n  size_t more;\n", "", "row.size_t more"),
                ("UINT64_MAX", "0", "NEVER", "NEVER"),
                ("typedef struct sortition_client sortition_client;", "", "sortition_client", "")):
            self.assertIn(old, HEADER)
            found = changes(HEADER, HEADER.replace(old, new))
            self.assertIn(broken, " ".join(found[0]))
            self.assertIn(added, " ".join(found[1]))
            self.assertEqual(bool(found[0]), bool(broken), old)

    def test_program_of_an_older_header_runs(self):
        older = without(HEADER, {
            "sortition_sequence_options": "receipts", "sortition_drafts": "sampling", "sortition_row": "banned_tokens",
            "sortition_batch": "ready_word", "sortition_position": "tempered", "sortition_result": "rewind_tokens",
            "sortition_client_options": "rows"}, ["sortition_client_get_ignored_fields", "sortition_law_version"])
        self.assertEqual(changes(older, HEADER)[0], [])
        outputs = []
        for header in [HEADER, older, *frozen()]:
            done = run(program(self.folder, header, EXAMPLE, os.environ["TEST_C_LIBRARY"]), "rejection", "16", "3")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            outputs.append(done.stdout)
        self.assertEqual(len(set(outputs)), 1)
        self.assertEqual(outputs[0].count("request"), 24)

    def test_program_of_a_newer_header_is_told(self):
        version = version_of(HEADER)
        newer = HEADER.replace(f"ABI_VERSION {version}\n", f"ABI_VERSION {version + 1}\n")
        done = run(program(self.folder, newer, EXAMPLE, os.environ["TEST_C_LIBRARY"]), "rejection", "16", "3")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn(f"has ABI version {version}, this program needs {version + 1}", done.stderr)

    def test_loader_refuses_a_library_without_a_function(self):
        version = version_of(HEADER) + 1
        source = pathlib.Path(self.folder, "newer.c")
        source.write_text("int sortition_of_tomorrow(void) { return 0; }\n")
        exports = pathlib.Path(self.folder, "exports.map")
        exports.write_text(f"SORTITION_ABI_{version} {{ global: sortition_*; local: *; }};\n")
        name = next(pathlib.Path(os.environ["TEST_C_LIBRARY"]).parent.glob("libsortition_c.so.?")).name
        subprocess.run([os.environ["TEST_C_COMPILER"], "-shared", "-fPIC", f"-Wl,--version-script={exports}",
                        f"-Wl,-soname,{name}", "-o", f"{self.folder}/{name}", str(source)], check=True)
        source.write_text("#include <stdio.h>\nint sortition_of_tomorrow(void);\n"
                          "int main(void) {\n  puts(\"runs\");\n  return sortition_of_tomorrow();\n}\n")
        done = run(program(self.folder, HEADER, str(source), f"{self.folder}/{name}"))
        self.assertEqual(done.stdout, "")
        self.assertIn(f"version `SORTITION_ABI_{version}' not found", done.stderr)

    def test_version_is_found_by_name(self):
        library = ctypes.CDLL(os.environ["TEST_C_LIBRARY"])
        self.assertEqual(library.sortition_abi_version(), version_of(HEADER))


if __name__ == "__main__":
    if sys.argv[1:] == ["--freeze"]:
        number = version_of(HEADER)
        first = f"// The interface of ABI version {number}, frozen: header_test.py compares it with sortition.h.\n"
        (FOLDER / f"abi_{number}.h").write_text(first + "#pragma once\n" + HEADER)
    else:
        unittest.main()
