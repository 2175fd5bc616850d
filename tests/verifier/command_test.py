"""The command sortition-verify: values and files that cannot be used are named with their option, and no status says
that something was checked which was not."""

import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np
import receipt_maker as maker
from sortition_verify import records

SOURCE = pathlib.Path(os.environ["TEST_SOURCE_DIR"])
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE / "client/verify")}


class CommandTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.chain = maker.Chain().draw(3)
        cls.seed = maker.seed_line(cls.chain)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, content):
        """A file of bytes, text or an array."""
        path = self.folder / name
        if isinstance(content, np.ndarray):
            np.save(path, content)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def run_on(self, *words, **environment):
        return subprocess.run([sys.executable, "-m", "sortition_verify", *map(str, words)],
                              env={**ENVIRONMENT, **environment}, capture_output=True, timeout=60)

    def receipts(self, data, *words):
        return self.run_on("receipts", self.write("file.bin", data), *words)

    def row(self, position, name=None):
        return self.write(name or f"{position}.npy", self.chain.rows[position].view(np.float32))

    def assert_refused(self, ran, *said):
        """One line on the standard error, with all of `said`."""
        error = ran.stderr.decode()
        self.assertEqual((ran.returncode, ran.stdout, error.count("\n")), (1, b"", 1), error)
        for part in said:
            self.assertIn(part, error)

    # --- rows

    def test_a_row_of_no_receipt_is_not_compared(self):
        # Two receipts of position 3, of one of which a retry's answer was lost.
        again = maker.Chain().draw(1)
        receipt = records.receipt_of(again.records[1][5:])
        kept = [(int(token), int(bits)) for token, bits in zip(receipt.ids, receipt.bits)]
        again.receipt(position=3, token=receipt.token, logprob=receipt.logprob, kept=kept)
        seeds = f"--seeds={self.write('seeds', self.seed)}"
        ran = self.receipts(again.file(), seeds, f"--row=3={self.row(3)}", f"--row=999={self.row(4)}")
        self.assertEqual(ran.returncode, 5, ran.stdout)
        self.assertIn(b"row: 2 hold", ran.stdout)
        self.assertEqual(self.receipts(again.file(), seeds, f"--row=3={self.row(3)}").returncode, 0)

    def test_a_row_that_could_not_be_compared_is_no_success(self):
        """One of a position's receipts is compared, and another one is under a mask that was not given."""
        chain = maker.Chain().draw(2)
        receipt = records.receipt_of(chain.records[2][5:])
        kept = [(int(token), int(bits)) for token, bits in zip(receipt.ids, receipt.bits)]
        head = chain.head
        chain.receipt(position=4, token=receipt.token, logprob=receipt.logprob, kept=kept, flags=2 | 4)
        body = chain.records.pop()[5:] + bytes(32)
        chain.head = maker.sha(body)
        chain.records.append(maker.record(records.RECEIPT, body))
        self.assertNotEqual(head, chain.head)
        ran = self.receipts(chain.file(), f"--seeds={self.write('seeds', self.seed)}", f"--row=4={self.row(4)}")
        self.assertIn(b"1 whose step's mask was not given", ran.stdout)
        self.assertEqual(ran.returncode, 5)

    def test_a_position_twice_is_refused(self):
        path = self.row(3)
        self.assert_refused(self.receipts(self.chain.file(), f"--row=3={path}", f"--row=3={path}"),
                            f"--row=3={path}: the position has a row already")

    def test_rows_of_several_chains_are_refused(self):
        other = maker.Chain(nonce=5, seed=9).draw(1)
        self.assert_refused(self.receipts(self.chain.file() + other.file(), f"--row=3={self.row(3)}"),
                            "file.bin: --row: logits are those of one chain")

    def test_a_token_of_no_vocabulary_ends_no_check(self):
        rows = np.zeros(50, np.float32)
        for listed, method, *options in ((True, 1), (False, 1), (False, 3), (False, 3, "--tolerance=1")):
            chain = maker.Chain(parameters={"frequency_penalty": 0.5}).draw(1, token=51, listed=listed, method=method)
            chain.receipt(position=4, token=1, logprob=0, kept=[(1, 0x3F800000)])
            ran = self.receipts(chain.file(), f"--seeds={self.write('seeds', self.seed)}",
                                f"--prompt={self.write('prompt.json', '[3, 1, 4]')}", *options,
                                *(f"--row={place}={self.write(f'{place}.npy', rows)}" for place in (3, 4)))
            self.assertEqual((ran.returncode, ran.stderr), (4, b""))
            self.assertIn(b"wrong_row", ran.stdout)
            self.assertIn(b"1 without the tokens before them, all of the vocabulary", ran.stdout)

    def test_a_big_endian_row_has_the_same_numbers(self):
        path = self.write("big.npy", self.chain.rows[3].view(np.float32).astype(">f4"))
        ran = self.receipts(self.chain.file(), f"--seeds={self.write('seeds', self.seed)}", f"--row=3={path}")
        self.assertEqual(ran.returncode, 0, ran.stdout)

    # --- options

    def test_options_that_cannot_be_used_are_named(self):
        row, none = self.row(3), self.write("none.npy", b"x")
        matrix, doubles = self.write("matrix.npy", np.zeros((2, 50), "f4")), self.write("doubles.npy", np.zeros(50))
        words, number = self.write("words.npy", np.zeros((1, 2), "f4")), self.write("number.npy", np.array(1, "f4"))
        for option, why in (
                (f"--row=x={row}", "not POSITION=FILE.npy"), ("--row=3", "not POSITION"), ("--row=3=", "not POSITION"),
                (f"--row=-1={row}", "not POSITION"), (f"--row={1 << 32}={row}", "not POSITION"),
                (f"--row=3={none}", "no .npy file"), (f"--row=3={matrix}", "one row of"),
                (f"--row=3={doubles}", "float64"), (f"--row=3={self.write('0.npy', b'')}", "no .npy file"),
                (f"--row=3={number}", "dimensions"), (f"--row=3={self.write('zip.npy', b'PK' + bytes(40))}", "no .npy"),
                (f"--masks={words}", "words of int32 or uint32"), (f"--masks={none}", "no .npy file"),
                (f"--masks={self.write('cube.npy', np.zeros((1, 1, 2), 'i4'))}", "rows of words"),
                (f"--keys={self.write('key', 'zz')}", "no public keys"),
                (f"--keys={self.write('pem', '-----BEGIN PUBLIC KEY-----x-----END')}", "no public keys"),
                (f"--keys={self.write('binary', bytes([255]))}", "codec"),
                (f"--seeds={self.folder / 'binary'}", "codec"),
                (f"--prompt={self.folder / 'binary'}", "codec"), (f"--prompt={self.write('a.json', '{')}", "no JSON"),
                (f"--prompt={self.write('b.json', '[1, -1]')}", "no list of tokens"),
                (f"--prompt={self.write('c.json', '[true]')}", "no list of tokens"),
                (f"--prompt={self.write('d.json', '[' * 100_000)}", "no JSON"),
                ("--tolerance=nan", "a finite number"), ("--tolerance=-1", "a finite number"),
                ("--tolerance=inf", "a finite number")):
            self.assert_refused(self.receipts(self.chain.file(), option), f"{option}: ", why)

    def test_vectors_that_are_none_are_named(self):
        published = json.loads((SOURCE / "kernels/law/vectors/golden_outputs.json").read_text(encoding="utf-8"))["rows"]
        row = json.dumps(next(row for row in published if "elements" in row["logits"]))
        changes = {"position": ("noise", "position", -1), "wide": ("noise", "position", 2**70),
                   "infinite": ("noise", "seed", float("inf")), "empty": ("logits", "elements", []),
                   "score": ("score", None, 10**9), "patch": ("patches", None, [[10**6, 0, 0]])}
        texts = {"deep": "[" * 100_000}
        for name, (member, part, value) in changes.items():
            changed = json.loads(row)
            if part:
                changed[member][part] = value
            else:
                changed[member] = value
            texts[name] = json.dumps(changed)
        for name, text in texts.items():
            ran = self.run_on("vectors", self.write(f"{name}.json", text + "\n"))
            if name in ("empty", "position", "score"):
                self.assertNotIn(b"Traceback", ran.stderr, name)
            else:
                self.assert_refused(ran, f"{name}.json: not published rows")

    # --- import

    def test_import_refuses_records_of_no_form(self):
        receipt = {"type": "receipt", "chain": "00" * 16, "previous": "00" * 32, "index": "0", "step_id": "1",
                   "position": 3, "offset": 0, "method": 1, "draw_salt": 0, "temperature": 0, "token": 1, "logprob": 0,
                   "kept_count": 1, "kept": [[1, 0]]}

        def imported(**changes):
            text = json.dumps({**receipt, **changes}, sort_keys=True, separators=(",", ":"))
            return self.run_on("import", self.write("lines", text + "\n"))

        self.assertEqual(records.receipt_of(imported().stdout[5:]).token, 1)
        for changes, why in (({"kept_count": 2}, "another length"), ({"method": 9}, "method 9"),
                             ({"kept": [[2, 0], [1, 0]], "kept_count": 2}, "do not ascend"), ({"phase": 0}, "phase 0")):
            self.assert_refused(imported(**changes), "lines: bad_record: line 1: ", why)

    # --- what is printed

    def test_a_report_is_printed_in_any_locale(self):
        ran = self.run_on("receipts", self.write("file.bin", self.chain.file()),
                          f"--seeds={self.write('seeds', chr(0x2192) + ' 00')}", PYTHONIOENCODING="cp1252")
        self.assertEqual((ran.returncode, ran.stderr), (4, b""))
        self.assertIn(rb"'\u2192'", ran.stdout)

    def test_names_of_files_are_printed_plainly(self):
        for name in ("a\n::error::b.tar.gz", "\u00e9\u2028.tar.gz", os.fsdecode(b"\xff.tar.gz")):
            path = self.folder / name
            path.write_bytes((SOURCE / "docs/proof/cpu-scalar.tar.gz").read_bytes()[:-9])
            for encoding in ("utf-8", "cp1252"):
                for words in (["archive", path], ["records", path], ["receipts", path], ["import", path]):
                    ran = self.run_on(*words, PYTHONIOENCODING=encoding)
                    self.assertNotIn(b"Traceback", ran.stderr, words)
                    self.assertNotIn(b"\n::", ran.stdout + ran.stderr)
                    self.assertNotIn(path.name.encode("utf-8", "surrogateescape"), ran.stdout + ran.stderr)


if __name__ == "__main__":
    unittest.main()
