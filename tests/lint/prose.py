"""House rules about words: how a comment begins, words that mark a riddle, names that mean two things, test names.

A rule is a function from one file to its findings, as in house_rules.py, which runs them over the whole tree.
"""

import re
from typing import Iterator, List, Tuple

Found = Iterator[Tuple[int, str]]

SLASHES = (".h", ".c", ".cc", ".cu", ".cuh", ".inc", ".comp", ".glsl", ".proto", ".rs", ".go")
HASHES = (".py", ".sh", ".cmake", "CMakeLists.txt")
HASH_PATHS = ("dev", ".ci/run")

# A comment begins with a verb or defines its term.
OPENER = re.compile(
    r"(?:Of|What|Who|Whoever|Whose|Whom|How often|How many|How long|How much|Whether|Among"
    r"|(?:To|With|By|On|For|From|In) (?:whom|which|what|whose)|Where none|Where there) "
)
WORD = re.compile(
    r"\b(?:whoever|whatever|nobody|of (?:its|their) own|go(?:es)? on|gone on|c[oa]mes? to|what comes of|has no say"
    r"|have no say|affairs?|books|the same of|as may be|mishaps?)\b",
    re.IGNORECASE,
)

# Words that point at a quantity instead of naming it.
POINTING = re.compile(r"\b(?:(?:so|as) many|so much)\b", re.IGNORECASE)
FENCE = re.compile(r"^\s*(?:```|~~~)")

# Names that the glossary replaced: as a whole, as a part of CamelCase, or between underscores.
SNAKE = (
    r"name_spaces?|patch(?:es|ed)?|mirrors?|mishaps?|proofs?|proved|known_(?:row|answer)s?|patience|wakeups?|entrants?"
    r"|deliveries|row_(?:verdict|outcome)s?"
)
CAMEL = (
    r"NameSpaces?|Patch(?:es|ed)?|Mirrors?|Mishaps?|Proofs?|Proved|Known(?:Row|Answer)s?|Patience|Wakeups?|Entrants?"
    r"|Deliveries|Row(?:Verdict|Outcome)s?"
)
IDENTIFIER = re.compile(rf"(?<![A-Za-z])(?:{SNAKE})(?![A-Za-z])|(?<![A-Z])(?:{CAMEL})(?![a-z])")
# Words of other projects, and the folders that speak of theirs (Kubernetes' patches, Python's mock.patch).
IDENTIFIER_EXCEPT = re.compile(r"mock\.patch|PhiloxKnownAnswers|\bpatchelf\b")
IDENTIFIER_EXCEPT_PATHS = (
    "client/engines/",
    "deploy/",
    "tests/deploy/",
    "tests/engines/",
    "tests/monitoring/",
    "tests/lint/",
)

TEST = re.compile(r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST)\(\s*\w+,\s*(\w+)\)|^\s+(?:async )?def (test_\w+)\(")
TEST_LONGEST = {".cc": 48, ".py": 60}


# Literals and marks; a mark within a literal begins no comment.
TOKENS = {
    "//": re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)\'|(//)'),
    "#": re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|(?:^|(?<=\s))(#)'),
}


def marks(path: str) -> str:
    """The mark that begins a comment in the file; empty where none does."""
    if path.endswith(SLASHES):
        return "//"
    return "#" if path.endswith(HASHES) or path in HASH_PATHS else ""


def comments(path: str, lines: List[str]) -> Iterator[Tuple[int, str, bool]]:
    """Number, text, and whether the text begins a comment; a docstring of Python is one."""
    mark = marks(path)
    if not mark:
        return
    within = False
    quoted = False
    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        if path.endswith(".py") and (quoted or stripped.startswith('"""')):
            starts = not quoted
            text = stripped[3:] if starts else stripped
            quoted = '"""' not in text
            yield number, text.replace('"""', ""), starts
            within = False
            continue
        at = next((match for match in TOKENS[mark].finditer(line) if match.group(1)), None)
        if at is None or stripped.startswith("#!"):
            within = False
            continue
        alone = stripped.startswith(mark)
        yield number, line[at.end() :].lstrip(mark[0] + "!").lstrip(), not (within and alone)
        within = alone


def comment_openers(path: str, lines: List[str]) -> Found:
    """Subject and verb stand early: "Period of the timer", not "How often is done"."""
    for number, text, starts in comments(path, lines):
        match = starts and OPENER.match(text)
        if match:
            yield number, f"a comment that begins: {match.group(0).strip()}"


def comment_words(path: str, lines: List[str]) -> Found:
    for number, text, _ in comments(path, lines):
        match = WORD.search(text)
        if match:
            yield number, f"a word that makes a riddle: {match.group(0)}"


def pages(path: str, lines: List[str]) -> Iterator[Tuple[int, str]]:
    """Number and text of a page's lines outside of its code."""
    fenced = False
    for number, line in enumerate(lines, 1):
        fenced ^= bool(FENCE.match(line))
        if path.endswith(".md") and not fenced:
            yield number, line


def pointing_quantities(path: str, lines: List[str]) -> Found:
    """A quantity has its name, as in "the first `count` rows"."""
    texts = [(number, text) for number, text, _ in comments(path, lines)]
    for number, text in [*texts, *pages(path, lines)]:
        match = POINTING.search(text)
        if match:
            yield number, f"a quantity without its name: {match.group(0)}"


def banned_names(path: str, lines: List[str]) -> Found:
    """One name for one thing; ARCHITECTURE.md has the glossary."""
    mark = marks(path)
    if not mark or path.startswith(IDENTIFIER_EXCEPT_PATHS):
        return
    for number, line in enumerate(lines, 1):
        code = re.sub(r'"(?:[^"\\]|\\.)*"', '""', line)
        code = re.sub(re.escape(mark) + ".*", "", code) if not code.lstrip().startswith("#include") else ""
        match = IDENTIFIER.search(IDENTIFIER_EXCEPT.sub("", code))
        if match:
            yield number, f"a name that the glossary replaced: {match.group(0)}"


def test_names(path: str, lines: List[str]) -> Found:
    """Condition and result, short enough to be read in a list."""
    longest = next((most for ends, most in TEST_LONGEST.items() if path.endswith(ends)), 0)
    if not longest or not path.startswith("tests/"):
        return
    for number, line in enumerate(lines, 1):
        match = TEST.match(line)
        name = match and (match.group(1) or match.group(2))
        if name and len(name) > longest:
            yield number, f"a test's name of {len(name)} characters, at most {longest}: {name}"


PROSE_RULES = (comment_openers, comment_words, pointing_quantities, banned_names)
