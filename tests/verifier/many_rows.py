"""Random rows through the verifiers in numpy and in a browser, against the reference: many_rows.py ROWS SEED VOCABULARY

TEST_VERIFIER_ROWS names the program that makes the rows and their answers. They come in parts: part n has the seed
SEED + n. Prints a line a part, and at the end how many rows each verifier has run. The exit status is 1 if a row
differs. A row's name is what makes it again.
"""

import os
import pathlib
import re
import subprocess
import sys
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
ROWS = os.environ.get("TEST_VERIFIER_ROWS", "")
PART = 20000

sys.path[:0] = [str(SOURCE / "client/verifier"), str(SOURCE / "tests/support")]

import browser  # noqa: E402
from page import page  # noqa: E402


def made(count, seed, vocabulary):
    """Rows with the reference's answers, one a line."""
    return subprocess.run([ROWS, "make", str(count), str(seed), str(vocabulary)], capture_output=True, text=True,
                          check=True).stdout


def numpy_says(rows):
    ran = subprocess.run([sys.executable, "-m", "sortition_verify", "-"], input=rows, capture_output=True, text=True,
                         env={**os.environ, "PYTHONPATH": str(SOURCE / "client/python")})
    return ran.stdout.strip() or ran.stderr.strip()


def page_says(rows):
    listed = ",\n".join(rows.splitlines()).replace("</", "<\\/")
    text = page([]).replace('type="application/json">[]', f'type="application/json">[{{"rows":[{listed}]}}]', 1)
    return browser.browse(text, "at('run').click();")["verdict"]


VERIFIERS = {"numpy": numpy_says, "the page": page_says} if browser.CHROMIUM else {"numpy": numpy_says}


def hold(said, count):
    return bool(re.search(rf"^{count} rows, 0 differ$", said, re.MULTILINE))


def main():
    count, first, vocabulary = (int(word) for word in sys.argv[1:])
    seconds, differing = dict.fromkeys(VERIFIERS, 0.0), False
    for start in range(0, count, PART):
        part, seed = min(PART, count - start), first + start // PART
        rows = made(part, seed, vocabulary)
        for name, says in VERIFIERS.items():
            begin = time.monotonic()
            said = says(rows)
            seconds[name] += time.monotonic() - begin
            differing |= not hold(said, part)
            print(f"seed {seed}, {name}: {said}", flush=True)
    for name in VERIFIERS:
        print(f"{name}: {count} rows of 1 to {vocabulary} tokens, seeds {first} to {seed}, {seconds[name]:.0f} s")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
