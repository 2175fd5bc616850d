"""sortition-verify archive: checks archives of texts (docs/verifier.md)."""

import argparse
import json
import sys
import time
from typing import Any, Dict, List

from sortition_verify import archive
from sortition_verify.arguments import keys_of


def main(words: List[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="sortition-verify archive", description="Checks archives of texts.",
        epilog="Exit status: 0 if everything was checked and is right, 4 if there is a problem, 5 if there is none but "
               "a check was not made, 1 for files that cannot be read.")
    parser.add_argument("file", nargs="+")
    parser.add_argument("--keys", action="append", default=[], metavar="FILE", help="public keys that are trusted")
    parser.add_argument("--json", metavar="FILE", help="writes the reports; - is standard output")
    asked = parser.parse_args(words)
    keys = [key for path in asked.keys for key in keys_of(path)]
    reports: List[Dict[str, Any]] = []
    statuses = []
    for path in asked.file:
        begin = time.monotonic()
        report = archive.check(path, keys, progress=lambda line: print(line, file=sys.stderr, flush=True))
        seconds, status = round(time.monotonic() - begin, 2), report.status()
        statuses.append(status)
        reports.append({**vars(report), "status": status, "seconds": seconds})
        if asked.json != "-":
            print(f"{report.text()}\n{seconds} s", flush=True)
    if asked.json:
        text = json.dumps(reports, indent=1)
        if asked.json == "-":
            print(text)
        else:
            with open(asked.json, "w", encoding="utf-8") as file:
                file.write(text + "\n")
    return 4 if 4 in statuses else max(statuses)
