"""Receipts from a server, through the Python client, checked by the verifier in numpy; and scores with races."""

import base64
import io
import os
import pathlib
import sys
import tempfile
import unittest

import numpy
import sortition
import sortition_verify

from both import BothTest
from rows import VOCABULARY, row, serve

sys.path.append(str(pathlib.Path(os.environ["TEST_SOURCE_DIR"]) / "tests/verifier"))

import receipt_maker  # noqa: E402

KEY = bytes([1]) * 32
SALT = bytes(range(16))


def write_key(path):
    """An Ed25519 key as PEM: PKCS 8."""
    der = bytes.fromhex("302e020100300506032b657004220420") + KEY
    text = base64.b64encode(der).decode()
    pathlib.Path(path).write_text(f"-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n")
    os.chmod(path, 0o600)


class ReceiptsTest(unittest.TestCase):
    OPTIONS = (
        {"temperature": 0.8, "top_p": 0.95},
        {"temperature": 0.0},
        {"top_k": 20, "repetition_penalty": 1.25, "frequency_penalty": 0.5, "dry": {"multiplier": 0.8}},
        {"min_p": 0.05, "xtc": {"probability": 0.5}, "chain": {"preset": "PRESET_LLAMA_CPP"},
         "logit_bias": [{"token": 5, "bias": 4.0}], "stop_token_ids": [9], "min_tokens": 3},
    )

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        write_key(f"{cls.folder.name}/key.pem")
        cls.server = serve(f"--receipt_key={cls.folder.name}/key.pem")
        cls.client = sortition.Client(cls.server.serving["listen"])

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.__exit__()
        cls.folder.cleanup()

    def text(self, options, tokens=12, drafts=False):
        """A sequence's log of receipts, and its logits by position."""
        log = sortition.ReceiptLog(SALT)
        sequence = self.client.open(vocabulary_size=VOCABULARY, prompt=[3, 1, 4], seed=42, receipts=log, **options)
        rows = {}
        for step in range(tokens):
            logits = row(step)
            rows[sequence.position] = sortition_verify.float_bits(logits)
            if drafts and step % 3 == 0:
                two = numpy.stack([logits, row(1000 + step)])
                rows[sequence.position + 1] = sortition_verify.float_bits(two[1])
                self.client.verify(sequence, two, sortition.Drafts([int(logits.argmax())]))
            else:
                self.client.draw(sequence, logits)
        sequence.close()
        self.assertTrue(log.await_end(30))
        return log, rows

    def test_all_three_checks_hold(self):
        for options in self.OPTIONS:
            for drafts in (False, True):
                log, rows = self.text(options, drafts=drafts)
                report = sortition_verify.verify(io.BytesIO(log.take()), [receipt_maker.public_key(KEY)],
                                                 [log.seed_line], rows, [3, 1, 4])
                self.assertEqual(report.problems, [], options)
                self.assertGreaterEqual(report.receipts, 12)
                self.assertEqual((report.signed, report.drawn, report.rows), (report.receipts,) * 3, options)
                self.assertEqual(log.take(), b"")

    def test_a_changed_byte_and_other_logits_are_found(self):
        log, rows = self.text(self.OPTIONS[0])
        records, keys = log.take(), [receipt_maker.public_key(KEY)]
        self.assertEqual(log.seed_line, f"42 {SALT.hex()}")
        changed = bytearray(records)
        changed[len(changed) // 2] ^= 1
        self.assertTrue(sortition_verify.verify(io.BytesIO(changed), keys, [log.seed_line]).problems)
        rows[min(rows)] = rows[max(rows)]
        found = sortition_verify.verify(io.BytesIO(records), keys, [log.seed_line], rows).problems
        self.assertEqual([problem.name for problem in found], ["wrong_row"])

    def test_refused_without_a_key(self):
        with self.assertRaisesRegex(ValueError, "16 bytes"):
            sortition.ReceiptLog(b"short")
        with serve() as server, sortition.Client(server.serving["listen"]) as client:
            with self.assertRaises(sortition.Error) as caught:
                client.open(vocabulary_size=VOCABULARY, seed=1, receipts=sortition.ReceiptLog())
            self.assertEqual((caught.exception.reason, caught.exception.field), ("NOT_IMPLEMENTED", "open.receipts"))


class RaceTest(BothTest):
    def test_ranks_and_margins_are_those_of_the_law(self):
        options, tokens = {"temperature": 0.9, "top_k": 50}, [7, 8, 9]
        logits = numpy.stack([row(seed) for seed in range(3)])
        for sampler, sequence in zip((self.client, self.sampler), self.both(seed=5, raw_logprobs={}, **options)):
            score = sampler.score(sequence, logits, tokens, requested=[[1], [], [2, 3]], race=True)
            self.assertEqual([len(part.requested_logprobs) for part in score.raw], [1, 0, 2])
            for place, token in enumerate(tokens):
                checked = sortition_verify.Row(bits=sortition_verify.float_bits(logits[place]), seed=5, position=place,
                                               compiled=sortition_verify.compile_options(options))
                kept = sortition_verify.answer(checked).processed
                far = sortition_verify.row.margin(kept.ids, kept.distances, checked.noise(), token)
                self.assertEqual(score.race_margins[place], numpy.float32(far))
                self.assertEqual(score.race_ranks[place] == 1, far == 0)

    def test_a_drawn_token_has_rank_1(self):
        for sampler, sequence in zip((self.client, self.sampler), self.both(seed=6, top_p=0.9)):
            other = sampler.open(vocabulary_size=VOCABULARY, seed=6, top_p=0.9)
            token = sampler.draw(other, row(1)).token
            score = sampler.score(sequence, [row(1)], sortition.Scored([token], race=True).tokens, race=True)
            self.assertEqual((score.race_ranks, score.race_margins), ([1], [0.0]))


if __name__ == "__main__":
    unittest.main()
