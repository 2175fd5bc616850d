"""Receipts in Python: the findings, the unchecked parts, and each problem by its name (docs/receipts.md)."""

import base64
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import numpy as np
import receipt_maker as maker
from sortition_verify import ed25519, records, verify

SOURCE = pathlib.Path(os.environ["TEST_SOURCE_DIR"])
TRUSTED = maker.public_key(maker.KEY)
OTHER_KEY = bytes([2]) * 32
found_names = set()
# Each chain's prompt ends with the phase's `begin`. The third drawn token is forced, and the fourth is outside.
PHASES = {"temperature": 0.75, "presence_penalty": 0.25,
          "phases": [{"begin": [1, 4], "end": [8, 9], "max_tokens": 2, "then": [7],
                      "parameters": {"temperature": 0.25, "presence_penalty": 0.0, "frequency_penalty": 0.5,
                                     "banned_token_ids": [9]}},
                     {"begin": [49], "end": [2], "parameters": {"temperature": 0.0}}]}


def check(data, **options):
    """The report on a file; `problems` gets pairs of name and index."""
    report = verify(io.BytesIO(data), **{"keys": [TRUSTED], **options})
    found_names.update(problem.name for problem in report.problems)
    report.found = [(problem.name, problem.index) for problem in report.problems]
    return report


class SignatureTest(unittest.TestCase):
    # RFC 8032, section 7.1: secret key, message, signature.
    PUBLISHED = (
        ("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60", "",
         "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595b"
         "be24655141438e7a100b"),
        ("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb", "72",
         "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb430"
         "2aeeb00d291612bb0c00"),
    )

    def test_published_signatures(self):
        for secret, message, signature in self.PUBLISHED:
            key, message = maker.public_key(bytes.fromhex(secret)), bytes.fromhex(message)
            self.assertEqual(maker.signed(bytes.fromhex(secret), message).hex(), signature)
            self.assertTrue(ed25519.verifies(key, bytes.fromhex(signature), message))
            self.assertFalse(ed25519.verifies(key, bytes.fromhex(signature), message + b"x"))

    def test_other_encodings_are_refused(self):
        message = b"text"
        signature = maker.signed(maker.KEY, message)
        self.assertTrue(ed25519.verifies(TRUSTED, signature, message))
        for place in (0, 31, 32, 63):
            changed = bytearray(signature)
            changed[place] ^= 1
            self.assertFalse(ed25519.verifies(TRUSTED, bytes(changed), message), place)
        larger = int.from_bytes(signature[32:], "little") + ed25519.ORDER
        self.assertFalse(ed25519.verifies(TRUSTED, signature[:32] + larger.to_bytes(32, "little"), message))
        self.assertFalse(ed25519.verifies((2**255 - 1).to_bytes(32, "little"), signature, message))
        self.assertFalse(ed25519.verifies(TRUSTED, signature[:63], message))


class ReceiptsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.chain = maker.Chain().draw(6)
        cls.seeds = [maker.seed_line(cls.chain)]

    def file(self, order=None, private=maker.KEY):
        """The chain's file with its receipts in another order, or others in their place."""
        parts = self.chain.records if order is None else [self.chain.records[place] for place in order]
        return b"".join(parts) + maker.signature(private, self.chain)

    def test_a_true_file_holds(self):
        report = check(self.file(), seeds=self.seeds, rows=self.chain.rows, prompt=self.chain.prompt)
        self.assertEqual((report.receipts, report.signed, report.drawn, report.rows, report.found), (6, 6, 6, 6, []))
        self.assertIn("no problem found", report.text())

    def test_every_kind_of_parameters_holds(self):
        for parameters in ({"temperature": 0.0}, {"quadratic_smoothing": {"factor": 0.25}},
                           {"mirostat": {"version": 2}},
                           {"dynamic_temperature": {"range": 0.5}, "chain": {"preset": "PRESET_LLAMA_CPP"}},
                           {"typical_p": 0.5, "top_k": 9,
                            "chain": {"explicit": {"samplers": ["top_k", "typical_p"]}}},
                           {"dry": {"multiplier": 1.0, "sequence_breakers": [{"tokens": [1, 2]}]},
                            "repetition_penalty": 1.25, "logit_bias": [{"token": 3, "bias": 2.0}], "min_p": 0.03125},
                           PHASES):
            chain = maker.Chain(parameters=parameters).draw(4)
            report = check(chain.file(), seeds=[maker.seed_line(chain)], rows=chain.rows, prompt=chain.prompt)
            self.assertEqual((report.signed, report.drawn, report.found), (4, 4, []), parameters)
            self.assertEqual(report.rows, 0 if "mirostat" in parameters else 4, parameters)
            self.assertEqual(records.parameters_of(maker.words_of(parameters)), parameters)

    def test_another_phase_is_found(self):
        chain = maker.Chain(parameters=PHASES).draw(1).draw(1, phase=0).draw(1, phase=3).draw(1, phase=1)
        report = check(chain.file(), seeds=[maker.seed_line(chain)], rows=chain.rows, prompt=chain.prompt)
        self.assertEqual([name for name, index in report.found if index == 0], [])
        for index in (1, 2, 3):
            self.assertIn(("wrong_row", index), report.found)
        self.assertIn(("wrong_token", 2), report.found)

    def test_it_says_what_it_did_not_check(self):
        unsigned = self.file() + b"".join(maker.Chain(nonce=1, seed=7).draw(2).records)
        said = check(unsigned, seeds=self.seeds).text()
        self.assertIn("signature and chain: 6 hold; not checked: 2 not under a valid signature", said)
        self.assertIn("draw: 6 hold; not checked: 2 without the seed", said)
        self.assertIn("row: 0 hold; not checked: 8 without logits", said)
        marked = maker.Chain(flags=1).draw(2).draw(1, method=3).draw(1, method=4).draw(1, listed=False)
        said = check(marked.file(), seeds=[maker.seed_line(marked)]).text()
        self.assertIn("draw: 0 hold; not checked: 2 decided by a draft's probabilities, 2 with a watermark, 1 without a"
                      " list of their kept tokens", said)
        self.assertIn("no problem found", said)

    def test_a_cut_file(self):
        file = self.file()
        ends = set(np.cumsum([len(part) for part in self.chain.records])) | {0, len(file)}
        for length in range(0, len(file), 23):
            found = check(file[:length]).found
            self.assertEqual(found, [] if length in ends else [("cut_record", None)], length)
        self.assertEqual(check(file[:len(b"".join(self.chain.records))]).signed, 0)

    def test_reordered_missing_and_repeated_receipts(self):
        for order in ([0, 1, 3, 2, 4, 5, 6], [0, 1, 2, 4, 5, 6], [0, 1, 2, 2, 3, 4, 5, 6]):
            report = check(self.file(order))
            self.assertEqual(report.found[0][0], "broken_chain", order)
            self.assertEqual(report.signed, 0, order)  # nothing links those before the break to the signature
        missing_end = check(self.file([0, 1, 2, 3, 4, 5]))
        self.assertEqual((missing_end.found, missing_end.signed), ([("wrong_head", 6)], 0))

    def test_spliced_receipts(self):
        other = maker.Chain(nonce=5, seed=9).draw(6)
        # The other chain's receipts under this chain's name.
        taken = [record.replace(other.id, self.chain.id) for record in other.records[1:]]
        report = check(self.chain.records[0] + b"".join(taken) + maker.signature(maker.KEY, self.chain))
        self.assertIn(("broken_chain", 0), report.found)
        self.assertEqual(report.signed, 0)
        report = check(b"".join(self.chain.records[:3] + taken[2:]) + maker.signature(maker.KEY, self.chain))
        self.assertIn(("broken_chain", 2), report.found)

    def test_chains_side_by_side(self):
        other = maker.Chain(nonce=5, seed=9).draw(6)
        mixed = [record for pair in zip(self.chain.records, other.records) for record in pair]
        report = check(b"".join(mixed) + maker.signature(maker.KEY, self.chain, other),
                       seeds=[*self.seeds, maker.seed_line(other)])
        self.assertEqual((report.chains, report.signed, report.drawn, report.found), (2, 12, 12, []))

    def test_a_file_that_begins_within_a_chain(self):
        report = check(self.file([0, 4, 5, 6]), seeds=self.seeds)
        self.assertEqual((report.signed, report.drawn, report.found), (3, 3, []))
        self.assertIn("1 chains begin before the file", report.text())
        self.assertEqual(check(self.file([0, 4, 6]), seeds=self.seeds).found[0], ("broken_chain", 5))

    def test_changed_bytes(self):
        file = self.file()
        for place in range(len(self.chain.records[0]) + 5, len(file), 61):
            changed = bytearray(file)
            changed[place] ^= 4
            report = check(bytes(changed))
            self.assertTrue(report.problems, place)
            self.assertLess(report.signed, 6, place)

    def test_other_key(self):
        report = check(self.file(private=OTHER_KEY))
        self.assertEqual((report.found, report.signed), ([("unknown_key", None)], 0))
        self.assertEqual(check(self.file(private=OTHER_KEY), keys=[]).signed, 6)
        forged = bytearray(self.file())
        forged[-1] ^= 1
        self.assertEqual(check(bytes(forged)).found, [("wrong_signature", None)])

    def test_other_law(self):
        chain = maker.Chain(law_version=2).draw(2)
        report = check(chain.file(), seeds=[maker.seed_line(chain)])
        self.assertEqual(report.found[0][0], "unknown_law")
        self.assertEqual(report.drawn, 0)

    def test_unknown_chain(self):
        self.assertEqual(check(self.file([1])).found, [("unknown_chain", 0), ("unknown_chain", None)])

    def test_a_seed_that_does_not_open(self):
        for line in ("43 " + maker.SALT.hex(), "42 " + bytes(16).hex(), "42", "-1 " + maker.SALT.hex(), "42 00ff"):
            report = check(self.file(), seeds=[line, "# a note", ""])
            self.assertEqual((report.found, report.problems[0].line, report.drawn), ([("wrong_seed", None)], line, 0))

    def test_a_wrong_token_and_a_wrong_logprob(self):
        chain = maker.Chain().draw(2)
        position, kept = len(chain.tokens), [(1, 0x40000000), (2, 0x3F800000), (5, 0)]
        chain.receipt(position=position, token=7, logprob=0, kept=kept)
        chain.receipt(position=position + 1, token=1, logprob=0, kept=kept, method=2)
        chain.draw(1, logprob=0xBF800000)
        chain.receipt(position=position + 2, token=1, logprob=0, kept=kept, temperature=1 << 24)
        chain.receipt(position=position + 3, token=1, logprob=0, kept=[(1, 0x7FC00000)])
        chain.receipt(position=position + 4, token=1, logprob=0, kept=[(1, 0), (50, 0)])
        report = check(chain.file(), seeds=[maker.seed_line(chain)])
        self.assertEqual(report.found, [("wrong_token", 2), ("wrong_token", 3), ("wrong_logprob", 4),
                                        ("wrong_token", 5), ("wrong_token", 6), ("wrong_token", 7)])
        self.assertEqual(report.drawn, 2)
        # The drawn token exchanged for another kept one, with the right logprob of that one.
        truth = maker.Chain().draw(1)
        receipt = records.receipt_of(truth.records[1][5:])
        other = int(next(token for token in receipt.ids if token != receipt.token))
        kept = maker.law.receipts.kept_distribution(maker.compile_parameters(truth.parameters)[0], receipt)
        chain = maker.Chain().draw(1, token=other, logprob=kept.logprob_bits(kept.bits_and_rank(other)[0]))
        self.assertEqual(check(chain.file(), seeds=[maker.seed_line(chain)]).found, [("wrong_token", 0)])
        self.assertEqual(check(chain.file()).found, [])  # nothing tells it without the seed

    def test_bad_records(self):
        opening, receipt = self.chain.records[:2]
        kept = records.RECEIPT_HEAD.size + 5
        bad = {"type": maker.record(9, b"")}
        for name, place, value in (("method", 5 + 84, 7), ("flags", 5 + 80, 8), ("count of 0", 5 + 104, 0),
                                   ("descending", kept, 255)):
            bad[name] = receipt[:place] + bytes([value]) + receipt[place + 1:]
        bad["longer"] = maker.record(2, receipt[5:] + b"x")
        bad["opening"] = maker.record(1, opening[5:-1])
        bad["signature"] = maker.record(3, bytes(60))
        for name, record in bad.items():
            report = check(opening + record)
            self.assertEqual(report.found, [("bad_record", None)], name)
            self.assertEqual(report.receipts, int(record[0] == records.RECEIPT), name)
        self.assertEqual(check(opening + b"\x02\xff\xff\xff\xff" + self.file()).found, [("bad_record", None)])

    def test_the_first_problems_are_kept_and_all_are_counted(self):
        most = maker.receipts.MOST_PROBLEMS
        report = check(maker.record(9, b"") * (most + 5) + self.file([1]))
        self.assertEqual(report.found, [("bad_record", None)] * most)
        self.assertEqual(report.problem_counts, {"bad_record": most + 5, "unknown_chain": 2})
        self.assertIn("7 more problems, by name of all: {'bad_record': 1005, 'unknown_chain': 2}\n1007 problems",
                      report.text())

    def test_parameters_that_are_none(self):
        for words in ([99, 1, 4], [1, 2, 0, 0], [1, 1], [2, 1, 5, 1, 1, 0], [12, 1, 7], [1, 1, 0x7FC00000], [3, 1, 0]):
            chain = maker.Chain(words=words).draw(2)
            report = check(chain.file(), seeds=[maker.seed_line(chain)])
            self.assertEqual((report.signed, report.drawn, report.found), (2, 0, [("bad_record", None)]), words)
            self.assertIn("2 with parameters that are none", report.text())

    def test_integers_that_are_not_those_of_the_parameters(self):
        integers = maker.integers_of(PHASES)
        self.assertEqual([phase[0] for phase in integers], [0, 0, 1])
        for phase in range(-1, 3):
            stated = [list(part) for part in integers]
            if phase >= 0:
                stated[phase][1] += 1
            chain = maker.Chain(parameters=PHASES, integers=stated).draw(4)
            report = check(chain.file(), seeds=[maker.seed_line(chain)])
            self.assertEqual((report.signed, report.drawn, [name for name, _ in report.found]),
                             (4, 4, []) if phase < 0 else (4, 0, ["wrong_integers"]), phase)
            self.assertEqual("4 with wrong integers" in report.text(), phase >= 0)

    def test_integers_of_another_length(self):
        parameters = {"temperature": 0.5}
        chain = maker.Chain(parameters=parameters, integers=maker.integers_of(parameters))
        body = chain.records[0][5:]
        for cut in range(1, 41):
            self.assertEqual(check(maker.record(1, body[:-cut])).found, [("bad_record", None)], cut)
        for more in (b"x", bytes(4), bytes(16)):
            self.assertEqual(check(maker.record(1, body + more)).found, [("bad_record", None)], more)

    def test_random_bytes_are_reported(self):
        generator, file = np.random.default_rng(8), self.file()
        for number in range(150):
            changed = bytearray(file)
            for place in generator.integers(0, len(file), 1 + number % 5):
                changed[place] = int(generator.integers(0, 256))
            report = check(bytes(changed), seeds=self.seeds, rows=self.chain.rows)
            self.assertTrue(report.problems or bytes(changed) == file, number)

    def test_signed_nonsense_is_reported(self):
        """A signer may state any parameters and kept tokens; none stops the verifier."""
        generator = np.random.default_rng(1)
        odd = [0, 0.01, 1, 100, float("nan"), float("inf"), 1e-30, -1, 1e30]
        for number in range(150):
            parameters = {name: float(generator.choice(odd)) for name in ("temperature", "top_p")}
            for name, part in (("dynamic_temperature", "range"), ("quadratic_smoothing", "factor"),
                               ("dry", "multiplier")):
                if generator.random() < 0.3:
                    parameters[name] = {part: float(generator.choice(odd))}
            chain = maker.Chain(parameters=parameters)
            ids = sorted({int(token) for token in generator.integers(0, 60 if number % 2 else 2**32, 3)})
            odd_bits = [0, 0xFF800000, 0x7F800000, 0x7FC00000, int(generator.integers(0, 2**32))]
            bits = generator.choice(odd_bits, len(ids))
            chain.receipt(position=5, token=ids[0], logprob=0, kept=[(a, int(b)) for a, b in zip(ids, bits)],
                          temperature=int(generator.choice([0, 1, 2**32 - 1])), method=1 + number % 4)
            rows = {5: generator.integers(0, 2**32, 50).astype(np.uint32)}
            report = check(b"".join(chain.records), seeds=[maker.seed_line(chain)], rows=rows, prompt=[1, 2, 1, 2, 1],
                           tolerance=0.1 if number % 3 else None)
            self.assertEqual((report.receipts, report.signed), (1, 0))

    def test_rows(self):
        rows = {position: bits.copy() for position, bits in self.chain.rows.items()}
        first = min(rows)
        rows[first][np.argmax(rows[first].view(np.float32))] ^= 1
        report = check(self.file(), seeds=self.seeds, rows=rows)
        self.assertEqual((report.rows, [name for name, _ in report.found]), (5, ["wrong_row"]))
        rows[first][:] = 0x7FC00000
        self.assertIn("the logits fail", check(self.file(), seeds=self.seeds, rows=rows).text())
        self.assertIn("row: 0 hold; not checked: 6 without the seed", check(self.file(), rows=self.chain.rows).text())
        penalized = maker.Chain(parameters={"presence_penalty": 1.5}).draw(3)
        options = dict(seeds=[maker.seed_line(penalized)], rows=penalized.rows)
        self.assertEqual(check(penalized.file(), prompt=penalized.prompt, **options).rows, 3)
        self.assertIn("3 without the tokens before them", check(penalized.file(), **options).text())
        self.assertEqual([name for name, _ in check(penalized.file(), prompt=[10, 11, 12], **options).found][:1], [])

    def test_recomputed_rows_by_the_margin(self):
        generator = np.random.default_rng(3)
        near = {position: maker.law.float_bits(bits.view(np.float32) + generator.normal(size=len(bits)) * 1e-4)
                for position, bits in self.chain.rows.items()}
        self.assertEqual(check(self.file(), seeds=self.seeds, rows=near).rows, 0)
        self.assertEqual(check(self.file(), seeds=self.seeds, rows=near, tolerance=1e-2).rows, 6)
        far = {position: maker.law.float_bits(bits.view(np.float32)[::-1]) for position, bits in near.items()}
        report = check(self.file(), seeds=self.seeds, rows=far, tolerance=1e-2)
        self.assertIn("wrong_row", [name for name, _ in report.found])
        self.assertRegex(report.text(), r"the token lost by [0-9.inf]+ nats, 0.01 allowed")

    def test_a_margin_is_a_number_of_nats(self):
        for wrong in (float("nan"), float("inf"), -1e-3):
            with self.assertRaisesRegex(ValueError, "^tolerance: "):
                check(self.file(), seeds=self.seeds, rows=self.chain.rows, tolerance=wrong)

    def test_a_margin_needs_the_seed(self):
        report = check(self.file(), rows=self.chain.rows, tolerance=1e-2)
        self.assertEqual((report.rows, report.not_compared["whose margin needs the seed"]), (0, 6))

    def test_each_problem_of_the_page_was_found(self):
        page = (SOURCE / "docs/receipts.md").read_text(encoding="utf-8")
        named = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
        suite = unittest.defaultTestLoader.loadTestsFromTestCase(ReceiptsTest)
        mine = self.id().rsplit(".", 1)[1]
        unittest.TestSuite(test for test in suite if test.id().rsplit(".", 1)[1] != mine).run(unittest.TestResult())
        self.assertEqual(found_names, named)


VECTORS, MASKS = (json.loads((SOURCE / "tests/verifier" / name).read_text(encoding="utf-8"))
                  for name in ("receipts_vectors.json", "receipt_masks_vectors.json"))


def given_with(item):
    """Rows by position and packed masks of an item of the vectors of masks."""
    rows = {7 + place: np.array(bits, np.uint32) for place, bits in enumerate(item["rows"])}
    return rows, [np.frombuffer(bytes.fromhex(mask), "<i4") for mask in item["masks"]]


def expected(file):
    """Counts and problems that a verifier finds in a file of the vectors."""
    problems = [(problem["problem"], problem.get("chain"), problem.get("index"), problem.get("line"))
                for problem in file["problems"]]
    return [file["receipts"], file["signed"], file["drawn"]], problems


class VectorsTest(unittest.TestCase):
    def test_files(self):
        for file in VECTORS["files"]:
            keys = [bytes.fromhex(key) for key in file["keys"]]
            report = verify(io.BytesIO(bytes.fromhex(file["records"])), keys, file["seeds"])
            problems = [(problem.name, problem.chain and problem.chain.hex(), problem.index, problem.line)
                        for problem in report.problems]
            found = [report.receipts, report.signed, report.drawn], problems
            self.assertEqual(found, expected(file), file["name"])

    def test_masks(self):
        for item in MASKS["files"]:
            file, (rows, masks) = item["file"], given_with(item)
            report = verify(io.BytesIO(bytes.fromhex(file["records"])), [bytes.fromhex(key) for key in file["keys"]],
                            file["seeds"], rows, masks=masks)
            problems = [(problem.name, problem.chain and problem.chain.hex(), problem.index, problem.line)
                        for problem in report.problems]
            found = [report.receipts, report.signed, report.drawn], problems
            self.assertEqual((found, report.rows), (expected(file), item["compared"]), file["name"])
            unknown = report.not_compared["whose step's mask was not given"]
            self.assertEqual(unknown, len(rows) - item["compared"] - len(file["problems"]) if rows else 0, file["name"])
        for given in MASKS["masks"]:
            mask = np.frombuffer(bytes.fromhex(given["mask"]), "<u4")
            words = records.live_words(mask, given["live_vocabulary_size"])
            self.assertEqual(records.mask_digest(words).hex(), given["hash"])

    def test_commitments_and_parameters(self):
        for given in VECTORS["commitments"]:
            commitment = maker.receipts.seed_commitment(int(given["seed"]), bytes.fromhex(given["salt"]))
            self.assertEqual(commitment.hex(), given["commitment"])
        for given in VECTORS["parameters"]:
            self.assertEqual(maker.words_of(records.parameters_of(given["words"])), given["words"])
            self.assertEqual(maker.words_of(given["json"]), given["words"])
        self.assertGreater(len(VECTORS["parameters"]), 5)


class CommandTest(unittest.TestCase):
    def run_on(self, data, *words, seed=None, rows=(), keys=None):
        with tempfile.TemporaryDirectory() as folder:
            at = pathlib.Path(folder)
            (at / "file").write_bytes(data)
            command = [sys.executable, "-m", "sortition_verify", "receipts", str(at / "file"), *words]
            for name, text in (("seeds", seed), ("keys", keys)):
                if text is not None:
                    (at / name).write_text(text)
                    command.append(f"--{name}={at / name}")
            for position, bits in rows:
                np.save(at / f"{position}.npy", bits.view(np.float32))
                command.append(f"--row={position}={at / str(position)}.npy")
            environment = {**os.environ, "PYTHONPATH": str(SOURCE / "client/verify")}
            return subprocess.run(command, env=environment, capture_output=True, text=True)

    def test_status_and_report(self):
        chain = maker.Chain().draw(3)
        rows, seed = list(chain.rows.items())[:1], maker.seed_line(chain)
        pem = base64.b64encode(bytes.fromhex("302a300506032b6570032100") + TRUSTED).decode()
        for keys in (TRUSTED.hex() + "\n", f"-----BEGIN PUBLIC KEY-----\n{pem}\n-----END PUBLIC KEY-----\n"):
            held = self.run_on(chain.file(), keys=keys, seed=seed, rows=rows)
            self.assertEqual((held.returncode, held.stderr), (0, ""), held.stdout)
            self.assertIn("row: 1 hold; not checked: 2 without logits", held.stdout)
        self.assertIn("no public keys", self.run_on(chain.file(), keys="0011\n").stderr)
        self.assertEqual(self.run_on(chain.file(), keys=maker.public_key(OTHER_KEY).hex()).returncode, 4)
        self.assertEqual(self.run_on(chain.file()[:-1]).returncode, 4)
        self.assertEqual(self.run_on(b"".join(chain.records)).returncode, 5)  # nothing is signed
        self.assertEqual(self.run_on(chain.file(), "--tolerance=0.1", rows=rows).returncode, 5)  # no seed
        self.assertEqual(self.run_on(chain.file(), seed=f"7 {maker.SALT.hex()}").returncode, 4)

    def test_large_files_are_streamed(self):
        """Kept sets of 4,096 tokens, 128 MB of them, take no memory."""
        chain = maker.Chain(vocabulary=5000)
        kept = [(token, 0) for token in range(4096)]
        with tempfile.NamedTemporaryFile() as file:
            file.write(chain.records[0])
            for number in range(128 * 2**20 // 32768):
                chain.receipt(position=number, token=1, logprob=0, kept=kept)
                file.write(chain.records.pop())
            file.write(maker.signature(maker.KEY, chain))
            file.flush()
            code = ("import resource, sys; from sortition_verify.__main__ import main;"
                    "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; status = main();"
                    "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before); sys.exit(status)")
            environment = {**os.environ, "PYTHONPATH": str(SOURCE / "client/verify")}
            ran = subprocess.run([sys.executable, "-c", code, "receipts", file.name, "--without-draws"],
                                 env=environment, capture_output=True, text=True)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("4096 receipts", ran.stdout)
        self.assertLess(int(ran.stdout.splitlines()[-1]), 16 * 1024, "KiB")


if __name__ == "__main__":
    unittest.main()
