"""Runs published vectors: python -m sortition_verify FILE...

A file is a JSON object with the list `rows`, or one row a line, and `-` is standard input. Prints each difference and
how many rows hold. The exit status is 1 if any differs, or if there was no row.
"""

import json
import sys
from typing import Iterator, TextIO

from sortition_verify.vectors import differences


def rows_of(file: TextIO) -> Iterator[dict]:
    line = file.readline()
    if line.strip() != "{":
        while line:
            yield json.loads(line)
            line = file.readline()
        return
    yield from json.loads(line + file.read())["rows"]


def main() -> int:
    rows = differing = 0
    for path in sys.argv[1:]:
        with sys.stdin if path == "-" else open(path, encoding="utf-8") as file:
            for row in rows_of(file):
                rows += 1
                found = differences(row)
                differing += bool(found)
                for difference in found:
                    print(f"{row.get('row', row)['name']}{difference}")
    print(f"{rows} rows, {differing} differ")
    return 1 if differing or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
