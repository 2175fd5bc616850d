#!/usr/bin/env python3
"""Prints figures of the tree's size, for a look before and after a change.

`figures.py [REVISION]` counts the files that git tracks, in the working tree or in a revision: lines of text, and the
largest folders.
"""

import re
import subprocess
import sys
from collections import Counter
from typing import Iterator, Tuple

CODE = (".h", ".c", ".cc", ".cu", ".cuh", ".inc", ".glsl", ".comp", ".proto", ".py", ".rs", ".go", ".sh", ".js")
GENERATED = re.compile(r"\.json$|^tests/fuzz/corpus/|option_table\.py$")


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], check=True, stdout=subprocess.PIPE).stdout


def texts(revision: str) -> Iterator[Tuple[str, str]]:
    """Paths and contents of the tracked files that are text."""
    if revision:
        paths = git("ls-tree", "-r", "-z", "--name-only", revision).decode().split("\0")[:-1]
    else:
        paths = git("ls-files", "-z").decode().split("\0")[:-1]
    for path in paths:
        try:
            content = git("show", f"{revision}:{path}") if revision else open(path, "rb").read()
            yield path, content.decode("utf-8")
        except (OSError, UnicodeDecodeError):
            continue


def kind_of(path: str) -> str:
    if GENERATED.search(path):
        return "made by programs, or data"
    if path.startswith("tests/"):
        return "tests"
    if path.endswith(CODE):
        return "source"
    return "pages" if path.endswith(".md") else "build and configuration"


def main() -> None:
    lines: Counter[str] = Counter()
    folders: Counter[str] = Counter()
    for path, content in texts(sys.argv[1] if len(sys.argv) > 1 else ""):
        lines[kind_of(path)] += content.count("\n")
        folders[path.rpartition("/")[0]] += 1
    for kind, count in lines.most_common():
        print(f"lines, {kind}: {count}")
    print(f"lines, all: {sum(lines.values())}")
    for folder, count in folders.most_common(6):
        print(f"files in {folder}: {count}")


if __name__ == "__main__":
    main()
