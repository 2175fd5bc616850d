"""sortition-verify: checks archives of texts, receipts and published vectors, or looks for watermarks.

    sortition-verify archive FILE... [--keys=FILE...] [--json=FILE]
    sortition-verify receipts FILE [--keys=FILE...] [--seeds=FILE] [--row=POSITION=FILE.npy...]
                                   [--prompt=FILE] [--tolerance=NATS] [--masks=FILE.npy] [--without-draws]
    sortition-verify inclusion FILE --root=FILE [--seeds=FILE]
    sortition-verify import FILE >FILE
    sortition-verify records ARCHIVE >FILE
    sortition-verify vectors FILE...
    sortition-verify watermark --keys=FILE [--tokenizer=FILE] [TEXT | --serve=HOST:PORT]

`python3 -m sortition_verify` is the same program. A file of keys has public keys as PEM or in hexadecimal.

Archives are checked as docs/verifier.md says. The report says what was not checked. The exit status is 0 if everything
was checked and is right, 4 if there is a problem, and 5 if there is none but a check was not made.

Receipts are checked as docs/receipts.md says, from a file of any size. `--prompt` is a JSON list of tokens. The exit
status is as for archives, where the checks that were asked for are: the signatures always, the draws where seeds are
given, the rows where logits are, for these. `inclusion` checks that one receipt is under a root that you trust, and its
draw, with the same status. `import` writes receipts of JSON as records, and stops with status 1 at the first line that
is none (docs/receipts-elsewhere.md). `records` writes the receipts of an archive as records, and checks nothing.

A file of vectors is a JSON object with the list `rows`, or one row a line, and `-` is standard input. Prints each
difference and how many rows hold. The exit status is 1 if any differs, or if there was no row.
"""

import argparse
import io
import json
import sys
from typing import Callable, Dict, Iterator, List, TextIO

from sortition_verify import archive, archive_command, receipt_json, watermark_service
from sortition_verify.arguments import keys_of, lines_of, masks_of, refuse, rows_of, tokens_of
from sortition_verify.inclusion import verify_inclusion
from sortition_verify.receipts import SeveralChains, verify
from sortition_verify.records import DECODERS, BadRecord, record_bytes
from sortition_verify.row import RowError
from sortition_verify.vectors import differences


def published_rows(file: TextIO) -> Iterator[dict]:
    line = file.readline()
    if line.strip() != "{":
        while line:
            yield json.loads(line)
            line = file.readline()
        return
    yield from json.loads(line + file.read())["rows"]


def run_vectors(paths: List[str]) -> int:
    rows = differing = 0
    for path in paths:
        with sys.stdin if path == "-" else open(path, encoding="utf-8") as file:
            try:
                for row in published_rows(file):
                    rows += 1
                    found = differences(row)
                    differing += bool(found)
                    for difference in found:
                        print(f"{row.get('row', row)['name']}{difference}")
            except (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, RowError, TypeError,
                    ValueError) as error:
                refuse("", path, f"not published rows, after {rows}: {error!r:.200}")
    print(f"{rows} rows, {differing} differ")
    return 1 if differing or not rows else 0


def check_receipts(words: List[str]) -> int:
    parser = argparse.ArgumentParser(prog="sortition-verify receipts", description="Checks a file of receipts.")
    parser.add_argument("file")
    parser.add_argument("--keys", action="append", default=[], help="a file of public keys that are trusted")
    parser.add_argument("--seeds", help="a file of lines: SEED SALT")
    parser.add_argument("--row", action="append", default=[], help="POSITION=FILE.npy, the logits of a position")
    parser.add_argument("--prompt", help="a file with the prompt's tokens, a JSON list")
    parser.add_argument("--tolerance", type=float, help="nats by which recomputed logits may lose the race")
    parser.add_argument("--masks", help="packed masks of steps, .npy of int32 or uint32, in any order")
    parser.add_argument("--without-draws", action="store_true", help="check signatures and chains alone")
    asked = parser.parse_args(words)
    seeds, rows = lines_of("--seeds", asked.seeds), rows_of(asked.row)
    prompt = tokens_of("--prompt", asked.prompt) if asked.prompt else None
    masks = masks_of(asked.masks) if asked.masks else ()
    keys = [key for path in asked.keys for key in keys_of(path)]
    if asked.tolerance is not None and not 0 <= asked.tolerance < float("inf"):
        refuse("--tolerance", f"{asked.tolerance:g}", "not a finite number of nats, at least 0")
    with open(asked.file, "rb") as receipts:
        try:
            report = verify(receipts, keys, seeds, rows or None, prompt, asked.tolerance, not asked.without_draws,
                            masks)
        except SeveralChains as error:
            refuse("", asked.file, f"--row: {error}")
    print(report.text())
    if report.problems:
        return 4
    made = report.signed == report.receipts > 0 and (not seeds or report.drawn == report.receipts)
    is_compared = report.compared == set(rows) and set(report.not_compared) <= {"without logits"}
    return 0 if made and (not rows or is_compared) else 5


def check_inclusion(words: List[str]) -> int:
    parser = argparse.ArgumentParser(prog="sortition-verify inclusion", description="Checks one receipt and a root.")
    parser.add_argument("file")
    parser.add_argument("--root", required=True, help="a file with the root, from a place that you trust")
    parser.add_argument("--seeds", help="a file of lines: SEED SALT")
    asked = parser.parse_args(words)
    with open(asked.file, "rb") as inclusion, open(asked.root, "rb") as root:
        stated = inclusion.read(receipt_json.MOST_LINE), root.read(receipt_json.MOST_LINE)
    seeds = lines_of("--seeds", asked.seeds)
    report, shown = verify_inclusion(*stated, seeds)
    print(f"inclusion: {shown or 'nothing is shown'}\n{report.text()}")
    if report.problems:
        return 4
    return 0 if shown and (not seeds or report.drawn == report.receipts) else 5


def import_json(words: List[str]) -> int:
    parser = argparse.ArgumentParser(prog="sortition-verify import", description="Writes receipts of JSON as records.")
    parser.add_argument("file")
    asked = parser.parse_args(words)
    with open(asked.file, "rb") as lines:
        try:
            for number, (kind, body) in enumerate(receipt_json.lines(lines), 1):
                try:
                    DECODERS[kind](body)
                except BadRecord as error:
                    raise BadRecord(error.problem, f"line {number}: {error.why}") from None
                sys.stdout.buffer.write(record_bytes(kind, body))
        except BadRecord as error:
            refuse("", asked.file, error)
    return 0


def write_records(words: List[str]) -> int:
    parser = argparse.ArgumentParser(prog="sortition-verify records", description="Writes an archive's receipts.")
    parser.add_argument("file")
    asked = parser.parse_args(words)
    try:
        files = archive.unpacked(asked.file)
        sys.stdout.buffer.write(archive.records_of({"receipts.bin": b"", "signature.bin": b"", **files}))
    except archive.Refused as refusal:
        refuse("", asked.file, refusal)
    return 0


COMMANDS: Dict[str, Callable[[List[str]], int]] = {
    "archive": archive_command.main, "import": import_json, "inclusion": check_inclusion,
    "receipts": check_receipts, "records": write_records, "vectors": run_vectors, "watermark": watermark_service.main,
}


def main() -> int:
    name, *words = sys.argv[1:] or [""]
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a report is printed in any locale
    if name in ("", "-h", "--help"):
        print(__doc__)
        return 0 if name else 1
    try:
        # Files alone are vectors.
        return COMMANDS[name](words) if name in COMMANDS else run_vectors(sys.argv[1:])
    except OSError as error:
        raise SystemExit(f"sortition-verify: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
