"""The crate declares the structs and functions of the C headers: names, order and types."""

import os
import pathlib
import re
import unittest

ROOT = pathlib.Path(os.environ["TEST_SOURCE_DIR"])
HEADERS = (ROOT / "client/c/include/sortition").glob("*.h")
HEADER = re.sub(r"//.*", "", "".join(path.read_text() for path in HEADERS))
CRATE = re.sub(r"//.*", "", (ROOT / "client/rust/src/ffi.rs").read_text())

NUMBERS = {"size_t": "usize", "uint8_t": "u8", "uint32_t": "u32", "int32_t": "i32", "uint64_t": "u64",
           "sortition_code": "i32", "float": "f32", "double": "f64", "char": "c_char", "void": "c_void"}
SHORT = {"sortition_sparse_probabilities": "CSparse"}
ALIASES = {"OnError": "*mut *mut CError"}


def in_rust(c_type):
    """Converts a type of C, such as "const uint32_t*"."""
    words = re.findall(r"\w+|\*", c_type)
    constant = words[0] == "const"
    name, *stars = words[1:] if constant else words
    rust = NUMBERS.get(name) or SHORT.get(name) or "C" + "".join(part.title() for part in name.split("_")[1:])
    for star in stars:
        if star == "*":
            rust = f"*{'const' if constant else 'mut'} {rust}"
            constant = False
        else:
            constant = star == "const"  # const after a star belongs to the next pointer
    return rust


def split_declaration(text):
    """Type and name of "const char* name"."""
    match = re.fullmatch(r"\s*(.*?)\b(\w+)\s*", text, re.DOTALL)
    return match.group(1), match.group(2)


class DeclarationsTest(unittest.TestCase):
    def test_versions_are_the_headers(self):
        version = re.search(r'#define SORTITION_VERSION ("[\d.]+")', HEADER).group(1)
        parts = [int(part) for part in re.findall(r"\d+", version)]
        number = parts[0] * 1000000 + parts[1] * 1000 + parts[2]
        self.assertIn(f"#define SORTITION_VERSION_NUMBER {number} ", HEADER)
        self.assertIn(f"\nversion = {version}\n", (ROOT / "client/rust/Cargo.toml").read_text())

    def test_structs_are_the_headers(self):
        declared = re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", HEADER, re.DOTALL)
        self.assertGreaterEqual(len(declared), 15)
        for body, name in declared:
            fields = [split_declaration(field) for field in body.split(";") if field.strip()]
            self.assertEqual(fields[0], ("size_t ", "struct_size"), name)
            expected = [(field, in_rust(c_type)) for c_type, field in fields[1:]]
            match = re.search(rf"^    {in_rust(name)} \{{(.*?)\}}", CRATE, re.MULTILINE | re.DOTALL)
            self.assertIsNotNone(match, name)
            found = [tuple(part.strip() for part in field.split(":")) for field in match.group(1).split(",")]
            self.assertEqual(found, expected, name)

    def test_functions_are_the_headers(self):
        declared = re.findall(r"^SORTITION_API ([\w* ]*?)(\w+)\(([^)]*)\)", HEADER, re.MULTILINE)
        self.assertGreaterEqual(len(declared), 36)
        for result, name, parameters in declared:
            match = re.search(rf"fn {name}\(([^)]*)\)(?:\s*-> ([^;]*))?;", CRATE)
            self.assertIsNotNone(match, name)
            self.assertEqual(match.group(2) or "c_void", in_rust(result), name)
            c_types = [split_declaration(part)[0] for part in parameters.split(",") if part.strip() != "void"]
            found = [part.split(":")[1].strip() for part in match.group(1).split(",") if part.strip()]
            expected = ["StepDone" if "step_done" in c_type else in_rust(c_type) for c_type in c_types]
            self.assertEqual([ALIASES.get(kind, kind) for kind in found], expected, name)


if __name__ == "__main__":
    unittest.main()
