"""Random rows through the verifier in numpy, against the reference: many_rows.py ROWS SEED VOCABULARY

TEST_VERIFIER_ROWS names the program that makes the rows and their answers. They come in parts: part n has the seed
SEED + n. Prints a line a part, and at the end how many rows have run. The exit status is 1 if a row differs. A row's
name has the values that make it again.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
ROWS = os.environ.get("TEST_VERIFIER_ROWS", "")
PART = 20000


def made(count, seed, vocabulary):
    """Rows with the reference's answers, one a line."""
    return subprocess.run([ROWS, "make", str(count), str(seed), str(vocabulary)], capture_output=True, text=True,
                          check=True).stdout


def answered(rows):
    """Rows with the reference's answers in place of theirs, one a line."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"rows": rows}, file)
        file.flush()
        return subprocess.run([ROWS, "answer", file.name], capture_output=True, text=True, check=True).stdout


def says(rows):
    """Returns the verifier's answers to rows, one a line."""
    ran = subprocess.run([sys.executable, "-m", "sortition_verify", "-"], input=rows, capture_output=True, text=True,
                         env={**os.environ, "PYTHONPATH": str(SOURCE / "client/verify")})
    return ran.stdout.strip() or ran.stderr.strip()


def hold(said, count):
    return bool(re.search(rf"^{count} rows, 0 differ$", said, re.MULTILINE))


def main():
    count, first, vocabulary = (int(word) for word in sys.argv[1:])
    seconds, differing = 0.0, False
    for start in range(0, count, PART):
        part, seed = min(PART, count - start), first + start // PART
        rows = made(part, seed, vocabulary)
        begin = time.monotonic()
        said = says(rows)
        seconds += time.monotonic() - begin
        differing |= not hold(said, part)
        print(f"seed {seed}: {said}", flush=True)
    print(f"{count} rows of 1 to {vocabulary} tokens, seeds {first} to {seed}, {seconds:.0f} s")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
