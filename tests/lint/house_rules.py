#!/usr/bin/env python3
"""The house rules of this tree that a program can check.

`house_rules.py` reads every file that git tracks or would track, prints one line a finding (`path:line: rule: what`)
and exits with 1 if there is any.

A rule is a function from one file to its findings; FILE_RULES lists them, and prose.py those
about words. The rules that need the whole tree (links, the layout page) take all files at once; TREE_RULES lists those.
"""

import pathlib
import posixpath
import re
import subprocess
import sys
from typing import Callable, Dict, Iterator, List, NamedTuple, Tuple

import option_tables
import prose

CPP = (".h", ".c", ".cc", ".cu", ".cuh", ".inc", ".glsl", ".comp")
HEADERS = (".h", ".cuh")
SCRIPTS = (".py", ".sh")
SCRIPT_PATHS = ("dev", ".ci/run")
MAX_COLUMNS = 120
MAX_LINES = 500

# Holds one example of every offence.
EXAMPLES = "tests/lint/house_rules_test.py"


class Finding(NamedTuple):
    path: str
    line: int
    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.what}"


# Line number and explanation; the rule's name is added where it is called.
Found = Iterator[Tuple[int, str]]
FileRule = Callable[[str, List[str]], Found]
TreeRule = Callable[[Dict[str, List[str]]], Iterator[Tuple[str, int, str]]]


def is_script(path: str) -> bool:
    return path.endswith(SCRIPTS) or path in SCRIPT_PATHS


def is_code(path: str) -> bool:
    return path.endswith(CPP + (".proto", ".cmake", ".rs", ".go")) or path.endswith("CMakeLists.txt") or is_script(path)


def matching(lines: List[str], pattern: "re.Pattern[str]", what: str) -> Found:
    for number, line in enumerate(lines, 1):
        match = pattern.search(line)
        if match:
            yield number, f"{what}: {match.group(0).strip()}"


def without_comments(lines: List[str]) -> List[str]:
    """The lines with string literals emptied and // comments cut."""
    return [re.sub(r"//.*", "", re.sub(r'"(?:[^"\\]|\\.)*"', '""', line)) for line in lines]


# --- text

MACHINE_PATH = re.compile(r"(?<![\w.})>~/-])/(?:home|Users|root|work|tmp|mnt)/[\w.-]*|\b[A-Z]:\\\\?Users\b")
UNFINISHED = re.compile(r"\b(?:TO[D]O|FIX[M]E|X[X]X|HA[C]K)\b")
LICENCE = re.compile(r"Licensed under the [A]pache|SPDX-[L]icense-Identifier|[Cc]opyright \(c\)|All rights [r]eserved")
REGISTRY = re.compile(
    r"\b(?:pypi\.org|pythonhosted\.org|npmjs\.(?:org|com)|crates\.io|proxy\.golang\.org|anaconda\.org"
    r"|(?:deb|security)\.debian\.org|archive\.ubuntu\.com|docker\.io|ghcr\.io|quay\.io|gcr\.io|nvcr\.io)\b"
)


def machine_path(path: str, lines: List[str]) -> Found:
    """A path of one developer's machine means nothing on the next."""
    return matching(lines, MACHINE_PATH, "a path of one machine")


def unfinished(path: str, lines: List[str]) -> Found:
    """Unfinished work stays out of the tree."""
    return matching(lines, UNFINISHED, "unfinished work")


def licence(path: str, lines: List[str]) -> Found:
    """LICENSE speaks for every file."""
    if path != "LICENSE":
        yield from matching(lines, LICENCE, "a licence text outside LICENSE")


def registry(path: str, lines: List[str]) -> Found:
    """Hosts of packages and images belong to the machine's configuration."""
    return matching(lines, REGISTRY, "a package registry's host")


# --- form


def first_line(path: str, lines: List[str]) -> Found:
    """The first line defines the file."""
    body = lines[1:] if lines and lines[0].startswith("#!") else lines
    start = body[0] if body else ""
    if path.endswith(CPP + (".proto", ".go")) and not start.startswith("// "):
        yield 1, "does not start with a // comment that says what the file is"
    if path.endswith(".rs") and not start.startswith("//! "):
        yield 1, "does not start with a //! comment that says what the file is"
    if is_script(path) and not start.startswith(("# ", '"""')):
        yield 1, "does not start with a comment or docstring that says what the file is"


def pragma_once(path: str, lines: List[str]) -> Found:
    if path.endswith(HEADERS) and "#pragma once" not in lines:
        yield 1, "a header without #pragma once"


def line_length(path: str, lines: List[str]) -> Found:
    if is_code(path):
        for number, line in enumerate(lines, 1):
            if len(line) > MAX_COLUMNS:
                yield number, f"{len(line)} columns, at most {MAX_COLUMNS}"


UNBREAKABLE = re.compile(r"\s*(?:[-*] |\d+\. )?\S*!?\[[^\]]*\]\(\S+\)\S*")


def markdown_line_length(path: str, lines: List[str]) -> Found:
    """Prose wraps as code does. Table rows cannot wrap, nor can a link that stands alone on its line."""
    if path.endswith(".md"):
        for number, line in enumerate(lines, 1):
            exempt = line.lstrip().startswith("|") or UNBREAKABLE.fullmatch(line)
            if len(line) > MAX_COLUMNS and not exempt:
                yield number, f"{len(line)} columns, at most {MAX_COLUMNS}"


# --- structure


def file_length(path: str, lines: List[str]) -> Found:
    """A longer source has more than one subject. Tables (.inc) have one at any length."""
    if path.endswith((".cc", ".h", ".c", ".cu", ".cuh", ".py", ".rs", ".sh")) and len(lines) > MAX_LINES:
        yield 1, f"{len(lines)} lines, at most {MAX_LINES}"


# Folder, its forbidden includes, the reason. The layers are kernels < devices < service; the client is in none.
FORBIDDEN_INCLUDES = (
    ("kernels/", r"(?:absl|grpc\w*|google|prometheus|sortition)/", "kernels include no framework header"),
    ("kernels/", r"(?:devices|service|client|monitoring)/", "kernels know no layer above them"),
    ("devices/", r"(?:grpc\w*|google|sortition)/", "devices know no wire format"),
    ("devices/", r"(?:service|client)/", "devices know no layer above them"),
    ("service/", r"(?:client/|sortition/(?!v1/))", "the service does not know its clients"),
    ("", r"tests/", "only tests include tests"),
)
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]')
GENERATED_ALLOWED = (
    "service/stream/",
    "service/wire/",
    "service/policy/",
    "service/shard/",
    "service/calls/",
    "client/",
    "tests/",
)


def includes(lines: List[str]) -> Iterator[Tuple[int, str]]:
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1)


def include_layers(path: str, lines: List[str]) -> Found:
    if not path.endswith(CPP) or path.startswith("tests/"):
        return
    for number, included in includes(lines):
        for folder, pattern, why in FORBIDDEN_INCLUDES:
            if path.startswith(folder) and re.match(pattern, included):
                yield number, f"includes {included}: {why}"


# The layers inside service/, from the bottom. A file belongs to the longest prefix of its path that is here, and may
# include its own layer and those below it.
SERVICE_LAYERS = (
    ("service/route/route_policy", "service/route/health"),  # observers' events
    ("service/",),
    ("service/memory/",),
    ("service/text/",),
    ("service/wire/", "service/sequence/"),
    ("service/policy/",),
    ("service/route/",),
    ("service/batch/",),
    ("service/shard/",),
    ("service/engine",),
    ("service/stream/",),
    ("service/log/",),
    ("service/net/",),
    ("service/process/",),
    ("service/calls/",),
    ("service/server", "service/main"),
)


def service_layer(path: str) -> int:
    """The place of a path in SERVICE_LAYERS; -1 for a path outside service/."""
    matches = [
        (len(prefix), place)
        for place, layer in enumerate(SERVICE_LAYERS)
        for prefix in layer
        if path.startswith(prefix)
    ]
    return max(matches, default=(0, -1))[1]


def service_layers(path: str, lines: List[str]) -> Found:
    """No file of the service includes a layer above its own."""
    place = service_layer(path)
    if place < 0 or not path.endswith(CPP):
        return
    for number, included in includes(lines):
        if service_layer(included) > place:
            yield number, f"includes {included}, a layer above its own"


def generated_messages(path: str, lines: List[str]) -> Found:
    """Only the two ends of the wire see generated protobuf types."""
    if path.endswith(CPP) and not path.startswith(GENERATED_ALLOWED):
        for number, included in includes(lines):
            if included.endswith(".pb.h"):
                yield number, f"includes {included}, which only {', '.join(GENERATED_ALLOWED)} may"


# Options that are thresholds on probabilities, and numbers that a stage of a chain has for operands.
TABLE = pathlib.Path(__file__).parents[2] / option_tables.TABLE
THRESHOLDS = [column.get("member", column["name"])
              for _, column in option_tables.lines_of(TABLE.read_text(encoding="utf-8"))
              if column.get("high") == "1" and column["form"] != "Required"]
OPTION = rf"\b(?:{'|'.join(THRESHOLDS)}|min_p_distance)_?\b"
OPERAND = r"\boperands\b|\.[abcd]\b(?!\()"
# The members of law::Threshold and law::Bound, and the number that a threshold gives for estimates.
OPAQUE = re.compile(r"\.(?:least_sum|farthest)\b")
ESTIMATE = "LeastSum"
THRESHOLD = re.compile(rf"{OPTION}|{OPERAND}|\b{ESTIMATE}\b")
CALL = re.compile(r"\b([\w:]+)(?:<[^<>]*>)?\(([^()]*)\)")
# Calls whose result is as good as their argument.
TRANSPARENT = re.compile(
    rf"(?:u?int\d+_t|u32|u64|i32|i64|float|double|uint|\w*_cast|(?:std::)?(?:min|max|clamp)|Low|High"
    rf"|(?:law::)?{ESTIMATE})$"
)
ASSIGNED = re.compile(r"(?:(\w+)|\[([\w, ]+)\])\s*(?<![=<>!])=(?!=)\s*(.*)")
IS_TRUTH = re.compile(r"\s[!=]=\s|\s[<>]=?\s")
RELATION = re.compile(r"\s[<>]=?\s")
PART = re.compile(r"&&|\|\||[?;{}]")
THRESHOLD_ALLOWED = ("kernels/law/", "service/wire/", "tests/")
WHY = "a comparison that belongs in kernels/law"


def without_calls(text: str) -> str:
    """Drops calls of functions with their arguments; keeps operands with the value of a threshold."""

    def replaced(call: "re.Match[str]") -> str:
        name, arguments = call.groups()
        if TRANSPARENT.match(name):
            return f" {name} {arguments} "
        return f" {name} " if not arguments and re.fullmatch(OPTION, name) else " "

    while True:
        shorter = CALL.sub(replaced, text)
        if shorter == text:
            return text
        text = shorter


def names_of_thresholds(lines: List[str]) -> "re.Pattern[str]":
    """Matches options, operands, and every name to which one of these is assigned."""
    names: List[str] = []
    while True:
        known = re.compile("|".join([THRESHOLD.pattern] + [rf"\b{name}\b" for name in names]))
        found = len(names)
        for line in lines:
            assigned = ASSIGNED.search(line)
            value = assigned.group(3).split(" ? ")[-1] if assigned else ""
            if assigned and not IS_TRUTH.search(value) and known.search(PART.split(without_calls(value))[0]):
                given = re.findall(r"\w+", assigned.group(1) or assigned.group(2))
                names += [name for name in given if name not in names]
        if len(names) == found:
            return known


def thresholds_in_law(path: str, lines: List[str]) -> Found:
    """Only the law compares a probability with its threshold; service/wire compares only with the published range.

    The names of the operands do not matter in kernels: thresholds and bounds are opaque types, whose members no kernel
    names, and the numbers from which the law makes them are followed from name to name.
    """
    if not path.endswith(CPP) or path.startswith(THRESHOLD_ALLOWED):
        return
    code = without_comments(lines)
    thresholds = re.compile(OPTION)
    if path.startswith("kernels/"):
        yield from matching(code, OPAQUE, WHY)
        thresholds = names_of_thresholds(code)
    for number, line in enumerate(code, 1):
        for part in PART.split(without_calls(line)):
            if RELATION.search(part) and thresholds.search(part):
                yield number, f"{WHY}: {part.strip()}"


SLEEP = re.compile(r"\b(?:sleep_for|sleep_until|SleepFor|usleep|nanosleep|sleep)\s*\(")


SLEEP_ALLOWED = ("tests/attacks/", "tests/e2e/", "tests/bench/", "tests/chaos/", "tests/deploy/")


def no_sleep(path: str, lines: List[str]) -> Found:
    """A test's clock is injected; only tests of whole processes may wait for them."""
    if path.startswith("tests/") and path.endswith(CPP) and not path.startswith(SLEEP_ALLOWED):
        yield from matching(without_comments(lines), SLEEP, "a test that sleeps")


def test_namespace(path: str, lines: List[str]) -> Found:
    """Files of tests are compiled as one; the names of each are in a namespace called like the file."""
    if path.startswith("tests/") and path.endswith("_test.cc"):
        name = posixpath.basename(path)[: -len(".cc")]
        for number, line in enumerate(lines, 1):
            if line.startswith("namespace sortition") and not line.endswith(f"::{name} {{"):
                yield number, f"a namespace that does not end with ::{name}"


WALL_CLOCK = re.compile(r"\babsl::Now\b|\b\w+With(?:Timeout|Deadline)\s*\(")
WALL_CLOCK_ALLOWED = ("service/receipt/receipt_settings.h", "service/log/log.h")


def no_wall_clock(path: str, lines: List[str]) -> Found:
    """Somebody may set the machine's clock, and Abseil's timed waits follow it; only the log is for people."""
    if path.startswith(("service/", "devices/")) and path.endswith(CPP) and path not in WALL_CLOCK_ALLOWED:
        yield from matching(without_comments(lines), WALL_CLOCK, "a time that jumps when the clock is set")


FILE_RULES: Tuple[FileRule, ...] = (
    machine_path,
    unfinished,
    licence,
    registry,
    first_line,
    pragma_once,
    line_length,
    markdown_line_length,
    file_length,
    include_layers,
    service_layers,
    generated_messages,
    thresholds_in_law,
    no_sleep,
    test_namespace,
    no_wall_clock,
    prose.test_names,
)

# --- the tree as a whole

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^\s*(?:```|~~~)")
LAYOUT_PAGE = "ARCHITECTURE.md"
LAYOUT_DEPTH = 2
RULES_PAGE = "tests/lint/house_rules.py"


def folders_of(path: str) -> Iterator[str]:
    parts = path.split("/")[:-1]
    for depth in range(1, len(parts) + 1):
        yield "/".join(parts[:depth])


def heading_anchors(lines: List[str]) -> List[str]:
    titles = [line.lstrip("#").strip() for line in lines if line.startswith("#")]
    return [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]


def links_resolve(files: Dict[str, List[str]]) -> Iterator[Tuple[str, int, str]]:
    folders = {folder for path in files for folder in folders_of(path)} | {"."}
    for path in sorted(files):
        if not path.endswith(".md"):
            continue
        fenced = False
        for number, line in enumerate(files[path], 1):
            fenced ^= bool(FENCE.match(line))
            for target in [] if fenced else LINK.findall(line):
                if re.match(r"[a-z]+:", target):
                    continue
                name, _, anchor = target.partition("#")
                resolved = posixpath.normpath(posixpath.join(posixpath.dirname(path), name)) if name else path
                if resolved not in files and resolved not in folders:
                    yield path, number, f"a link to {target}, which is not in the tree"
                elif anchor and resolved.endswith(".md") and anchor not in heading_anchors(files[resolved]):
                    yield path, number, f"a link to {target}, but there is no such heading"


def folders_are_explained(files: Dict[str, List[str]]) -> Iterator[Tuple[str, int, str]]:
    """Every folder down to LAYOUT_DEPTH has a row in the layout page's table."""
    rows = [line for line in files.get(LAYOUT_PAGE, []) if line.startswith("| `")]
    folders = {folder for path in files for folder in folders_of(path) if folder.count("/") < LAYOUT_DEPTH}
    for folder in sorted(folders):
        if not any(row.startswith(f"| `{folder}/` |") for row in rows):
            yield LAYOUT_PAGE, 1, f"has no row for {folder}/"


def rules_name_files(files: Dict[str, List[str]]) -> Iterator[Tuple[str, int, str]]:
    """The paths in the rules' lists begin paths of the tree."""
    named = [GENERATED_ALLOWED, THRESHOLD_ALLOWED, SLEEP_ALLOWED, WALL_CLOCK_ALLOWED, *SERVICE_LAYERS]
    for prefix in sorted({prefix for prefixes in named for prefix in prefixes}):
        if not any(path.startswith(prefix) for path in files):
            yield RULES_PAGE, 1, f"names {prefix}, which is not in the tree"


TREE_RULES: Tuple[TreeRule, ...] = (links_resolve, folders_are_explained, rules_name_files)


def check_file(path: str, lines: List[str]) -> List[Finding]:
    if path == EXAMPLES:
        return []
    rules = FILE_RULES + prose.PROSE_RULES
    return [Finding(path, line, rule.__name__, what) for rule in rules for line, what in rule(path, lines)]


def check_tree(files: Dict[str, List[str]]) -> List[Finding]:
    """Returns all findings of `files`, a map from path (relative to the root, with /) to lines."""
    findings = [finding for path in sorted(files) for finding in check_file(path, files[path])]
    for rule in TREE_RULES:
        findings += [Finding(path, line, rule.__name__, what) for path, line, what in rule(files)]
    return findings


def read_tree() -> Dict[str, List[str]]:
    """Every file of the working tree that git tracks or would track; a file that is not UTF-8 text has no lines."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"]
    listing = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.decode()
    files = {}
    for path in filter(None, listing.split("\0")):
        try:
            with open(path, encoding="utf-8") as file:
                files[path] = file.read().splitlines()
        except UnicodeDecodeError:
            files[path] = []
        except (FileNotFoundError, IsADirectoryError):
            continue
    return files


def main() -> int:
    files = read_tree()
    findings = check_tree(files)
    for finding in findings:
        print(finding)
    print(f"house rules: {len(files)} files, {len(findings)} findings", file=sys.stderr)
    return 1 if findings or not files else 0


if __name__ == "__main__":
    sys.exit(main())
