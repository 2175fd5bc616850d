"""Runs published vectors, checks receipts, or looks for watermarks.

    python -m sortition_verify FILE...
    python -m sortition_verify receipts FILE [--keys=FILE...] [--seeds=FILE] [--row=POSITION=FILE.npy...]
                                             [--prompt=FILE] [--tolerance=NATS] [--masks=FILE.npy] [--without-draws]
    python -m sortition_verify watermark --keys=FILE [--tokenizer=FILE] [TEXT | --serve=HOST:PORT]

A file of vectors is a JSON object with the list `rows`, or one row a line, and `-` is standard input. Prints each
difference and how many rows hold. The exit status is 1 if any differs, or if there was no row.

Receipts are checked as docs/receipts.md says, from a file of any size. A file of keys has public keys as PEM or in
hexadecimal. `--prompt` is a JSON list of tokens. The report says what was not checked. The exit status is 4 if there is
a problem, and 5 if there is none but a check that was asked for was not made for all receipts: the signatures always,
the draws where seeds are given, the rows where logits are, for these.
"""

import argparse
import base64
import json
import re
import sys
from typing import Any, Iterator, List, TextIO

import numpy as np

from sortition_verify import archive_command, watermark_service
from sortition_verify.functions import widen
from sortition_verify.receipts import verify
from sortition_verify.vectors import differences


PUBLIC_KEY = bytes.fromhex("302a300506032b6570032100")  # the bytes before the 32 of the key in a PEM file


def rows_of(file: TextIO) -> Iterator[dict]:
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
            for row in rows_of(file):
                rows += 1
                found = differences(row)
                differing += bool(found)
                for difference in found:
                    print(f"{row.get('row', row)['name']}{difference}")
    print(f"{rows} rows, {differing} differ")
    return 1 if differing or not rows else 0


def row_of_npy(path: str) -> Any:
    """The f32 bits of a .npy file's only row: float32, float16, or bfloat16 as uint16."""
    row = np.load(path, allow_pickle=False)
    names = {"float32": "f32", "float16": "f16", "uint16": "bf16"}
    if row.dtype.name not in names or row.size != row.shape[-1]:
        raise SystemExit(f"{path}: {row.dtype.name} of shape {row.shape}; one row of float32, float16 or uint16 only")
    return widen(row.reshape(-1).view(f"<u{row.itemsize}"), names[row.dtype.name])


def keys_of(path: str) -> List[bytes]:
    """The public keys of a file: PEM of Ed25519, or 64 hexadecimal digits a line."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    found = [base64.b64decode(body) for body in re.findall("-----BEGIN PUBLIC KEY-----(.*?)-----END", text, re.DOTALL)]
    if not found:
        found = [PUBLIC_KEY + bytes.fromhex(line) for line in text.split()]
    if not found or any(len(key) != 44 or not key.startswith(PUBLIC_KEY) for key in found):
        raise SystemExit(f"{path}: no public keys of Ed25519, as PEM or in hexadecimal")
    return [key[-32:] for key in found]


def check_receipts(words: List[str]) -> int:
    parser = argparse.ArgumentParser(prog="sortition_verify receipts", description="Checks a file of receipts.")
    parser.add_argument("file")
    parser.add_argument("--keys", action="append", default=[], help="a file of public keys that are trusted")
    parser.add_argument("--seeds", help="a file of lines: SEED SALT")
    parser.add_argument("--row", action="append", default=[], help="POSITION=FILE.npy, the logits of a position")
    parser.add_argument("--prompt", help="a file with the prompt's tokens, a JSON list")
    parser.add_argument("--tolerance", type=float, help="nats by which recomputed logits may lose the race")
    parser.add_argument("--masks", help="packed masks of steps, .npy of int32 or uint32, in any order")
    parser.add_argument("--without-draws", action="store_true", help="check signatures and chains alone")
    asked = parser.parse_args(words)
    seeds, prompt = [], None
    if asked.seeds:
        with open(asked.seeds, encoding="utf-8") as file:
            seeds = list(file)
    if asked.prompt:
        with open(asked.prompt, encoding="utf-8") as file:
            prompt = json.load(file)
    masks = np.atleast_2d(np.load(asked.masks, allow_pickle=False)) if asked.masks else ()
    if asked.masks and masks.dtype.name not in ("int32", "uint32"):
        raise SystemExit(f"{asked.masks}: {masks.dtype.name}; masks are words of int32 or uint32")
    rows = {int(place): row_of_npy(path) for place, path in (word.split("=", 1) for word in asked.row)} or None
    with open(asked.file, "rb") as receipts:
        keys = [key for path in asked.keys for key in keys_of(path)]
        report = verify(receipts, keys, seeds, rows, prompt, asked.tolerance, not asked.without_draws, masks)
    print(report.text())
    if report.problems:
        return 4
    made = report.signed == report.receipts > 0 and (not seeds or report.drawn == report.receipts)
    return 0 if made and (not rows or report.rows >= len(rows)) else 5


def main() -> int:
    if sys.argv[1:2] == ["receipts"]:
        return check_receipts(sys.argv[2:])
    if sys.argv[1:2] == ["watermark"]:
        return watermark_service.main(sys.argv[2:])
    if sys.argv[1:2] == ["archive"]:
        return archive_command.main(sys.argv[2:], keys_of)
    return run_vectors(sys.argv[2:] if sys.argv[1:2] == ["vectors"] else sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
