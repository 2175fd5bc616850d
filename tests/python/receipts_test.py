"""Receipts of a sequence in Python, checked by the verifier that shares no code with the service."""

import io
import pathlib
import subprocess
import tempfile
import unittest

import sortition
from sortition_verify import verify

from rows import VOCABULARY, row, serve


class ReceiptsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        key = pathlib.Path(cls.folder.name, "key.pem")
        subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True, capture_output=True)
        public = subprocess.run(["openssl", "pkey", "-in", key, "-pubout", "-outform", "DER"], check=True,
                                capture_output=True).stdout
        cls.public_key = public[-32:]
        cls.server = serve(f"--receipt_key={key}")
        cls.client = sortition.Client(cls.server.serving["listen"])

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.__exit__()
        cls.folder.cleanup()

    def test_a_verifier_agrees(self):
        sequence = self.client.open(vocabulary_size=VOCABULARY, seed=5, top_k=20, temperature=0.9, receipts=True)
        for i in range(12):
            self.client.draw(sequence, row(i))
        records = sequence.take_receipts()
        seed_line = sequence.seed_line
        sequence.close()
        self.assertTrue(sequence.await_receipts())
        records += sequence.take_receipts()
        report = verify(io.BytesIO(records), keys=[self.public_key], seeds=[seed_line])
        self.assertEqual(report.problems, [])
        self.assertEqual((report.receipts, report.signed, report.drawn), (12, 12, 12))
        self.assertTrue(seed_line.startswith("5 "))

    def test_without_receipts_there_are_none(self):
        sequence = self.client.open(vocabulary_size=VOCABULARY)
        with self.assertRaisesRegex(ValueError, "without receipts"):
            sequence.take_receipts()

    def test_a_server_without_a_key_refuses(self):
        with serve() as server:
            with sortition.Client(server.serving["listen"]) as client:
                with self.assertRaises(sortition.Error) as raised:
                    client.open(vocabulary_size=VOCABULARY, receipts=True)
                self.assertEqual(raised.exception.reason, "NOT_IMPLEMENTED")
                self.assertEqual(raised.exception.field, "open.receipts")


if __name__ == "__main__":
    unittest.main()
