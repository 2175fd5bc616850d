"""Archives of texts (docs/verifier.md): one that is right, and each way to be wrong by its name.

The texts are few and short, and drawn one position after the other (archive_maker.py).
"""

import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import unittest
from unittest import mock

import archive_maker as maker
import numpy as np
import receipt_maker
from sortition_verify import archive, archive_receipts, receipt_columns, receipts, records, texts

SOURCE = pathlib.Path(os.environ["TEST_SOURCE_DIR"])
TEXTS, TOKENS = 2, 40
OTHER_KEY = bytes([2]) * 32
PLAIN = ("texts.bin", "receipts.bin", "signature.bin", "seeds.txt")  # files that are no JSON


def first_texts(files, each):
    """texts.bin of an archive that has the first texts of each setting alone."""
    given, at, found, count = json.loads(files["settings.json"]), 48, b"", 0
    for setting in given["settings"]:
        size = 32 + 4 * given["tokens"] * (13 if "raw_logprobs" in setting["parameters"] else 3)
        drawn = min(each, setting["texts"])
        found += files["texts.bin"][at:at + drawn * size]
        at, count = at + setting["texts"] * size, count + drawn
    return files["texts.bin"][:8] + struct.pack("<I", count) + files["texts.bin"][12:48] + found


class ArchiveTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = pathlib.Path(cls.folder.name, "machine.tar.gz")
        cls.settings = maker.settings(TEXTS, TOKENS)
        cls.files = maker.files(cls.settings)
        cls.listed = json.loads(cls.settings)["settings"]

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def check_bytes(self, data, **options):
        self.path.write_bytes(data)
        options.setdefault("settings", hashlib.sha256(self.settings).hexdigest())
        return archive.check(str(self.path), **options)

    def check(self, files, **options):
        return self.check_bytes(maker.packed(files), **options)

    def changed(self, name, content, **options):
        """The report on the archive with another content of a file, under a manifest that fits."""
        return self.check(maker.manifested({**self.files, name: content}), **options)

    def refused(self, report):
        """The name of the archive's only problem. Nothing of it was called right."""
        self.assertEqual((len(report.problems), report.checked, report.status()), (1, {}, 4), report.text())
        return report.problems[0]["name"]

    def word_at(self, text, token, word):
        """The place in texts.bin of a word of a token, and its number."""
        at = 48
        for setting in self.listed:
            words = 13 if "raw_logprobs" in setting["parameters"] else 3
            size = 32 + 4 * words * TOKENS
            if text < TEXTS:
                return at + text * size + 32 + 4 * (token * words + word)
            text, at = text - TEXTS, at + TEXTS * size
        raise IndexError(text)

    def with_word(self, text, token, word, change):
        data, at = bytearray(self.files["texts.bin"]), self.word_at(text, token, word)
        data[at:at + 4] = struct.pack("<I", change(struct.unpack_from("<I", data, at)[0]))
        return bytes(data)

    # --- an archive that is right

    def test_everything_is_checked_and_right(self):
        report = self.check(self.files)
        self.assertEqual((report.problems, report.status()), ([], 0), report.text())
        count = TEXTS * len(self.listed) * TOKENS
        with_receipts = count - TEXTS * TOKENS  # blocks have none
        self.assertEqual(report.checked, {
            "files whole, of one machine": 7, "rows of the model": count, "tokens and logprobs drawn again": count,
            "of them with raw logprobs, ranks, entropy, kept counts": TEXTS * TOKENS,
            "receipts under a signature, in whole chains": with_receipts,
            "receipts that agree with the law": with_receipts})
        said = "\n".join(report.not_checked)
        for words in ("113 of 113 rows", "whose the key", "receipts of blocks of drafts"):
            self.assertIn(words, said)
        trusted = self.check(self.files, keys=[receipt_maker.public_key(receipt_maker.KEY)])
        self.assertEqual(trusted.status(), 0)
        self.assertNotIn("whose the key", "\n".join(trusted.not_checked))

    def test_every_way_of_a_token_occurs(self):
        """Each outcome of drafts, and a forced token; or this test does not test their checks."""
        methods, phases = set(), set()
        for at, setting in enumerate(self.listed):
            given = texts.Setting(first=at * TEXTS, **setting)
            tokens = [[struct.unpack_from("<I", self.files["texts.bin"], self.word_at(at * TEXTS + text, n, 0))[0]
                       for n in range(TOKENS)] for text in range(TEXTS)]
            drawn = texts.Texts(texts.Model(json.loads(self.settings)["model"]["seed"]), given, np.array(tokens))
            said = drawn.answers()
            self.assertEqual(said.tokens.reshape(TEXTS, TOKENS).tolist(), tokens, setting["name"])
            methods |= {(given.mode, int(method)) for method in said.methods}
            phases |= set(said.phases.tolist())
        rejection = "VERIFY_MODE_REJECTION"
        self.assertLessEqual({(rejection, method) for method in (1, 3, 4)}, methods)
        self.assertLessEqual({0, 1}, phases)

    def test_settings_are_this_releases(self):
        self.assertEqual(hashlib.sha256(maker.SETTINGS.read_bytes()).hexdigest(), archive.SETTINGS)

    def test_published_archives_are_right(self):
        published = sorted((SOURCE / "docs/proof").glob("*.tar.gz"))
        self.assertTrue(published)
        for path in published:
            report = archive.check(str(path))
            self.assertEqual(report.status(), 0, report.text())

    def test_published_machines_have_drawn_the_published_texts(self):
        """The matrix of docs/proof.md, against the hashes beside the whole archive."""
        folder = SOURCE / "docs/proof"
        page = (SOURCE / "docs/proof.md").read_text(encoding="utf-8")
        rows = {}
        for line in re.findall(r"^\| \[.*\|$", page, re.MULTILINE):
            name, *_, drawn, said = line.strip("| ").split(" | ")
            rows[re.fullmatch(r"\[([\w-]+)\]\(proof/\1\.json\)", name)[1]] = drawn, said
        self.assertEqual(set(rows), {path.stem for path in folder.glob("*.json")})
        (path,) = folder.glob("*.tar.gz")
        whole = archive.unpacked(str(path))
        for name, (drawn, said) in rows.items():
            entry = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
            machine, hashes = entry["machine"], {file: of["sha256"] for file, of in entry["proof"]["files"].items()}
            self.assertEqual(hashes["machine.json"], hashlib.sha256(
                (json.dumps(machine, indent=2) + "\n").encode()).hexdigest(), name)
            self.assertEqual(hashes["settings.json"], archive.SETTINGS, name)
            self.assertEqual(entry["vectors"]["golden_outputs.json"]["different"], [], name)
            each = int(machine.get("texts", 64))
            self.assertEqual(hashes["texts.bin"], hashlib.sha256(first_texts(whole, each)).hexdigest(), name)
            self.assertEqual(drawn, "equal" if "texts" not in machine else f"{each * 13} of 256", name)
            equal = hashes["receipts.bin"] == hashlib.sha256(whole["receipts.bin"]).hexdigest()
            self.assertEqual(said, "equal" if equal else "own" if machine["transport"] != "none" else "some", name)

    # --- one bit

    def test_one_bit_of_any_file_is_named(self):
        for name, content in self.files.items():
            for place in (0, len(content) // 2, len(content) - 2):
                data = bytearray(content)
                data[place] ^= 1
                report = self.check({**self.files, name: bytes(data)})
                self.assertEqual(report.status(), 4, (name, place))
                if name in PLAIN:
                    self.assertEqual(report.problems[0]["name"], "damaged")
                    self.assertIn(name, report.problems[0]["why"])

    def test_each_word_of_a_token_is_named_with_its_place(self):
        last = len(self.listed) * TEXTS - 1
        for word, name in enumerate(texts.WORDS):
            report = self.changed("texts.bin", self.with_word(last, 7, word, lambda value: value ^ 1))
            first = report.problems[0]
            self.assertEqual((first["text"], first["token"]), (last, 7), report.text())
            self.assertIn(name, first["why"])
            self.assertEqual(first["name"], {0: "wrong_token", 2: "wrong_row"}.get(word, "wrong_logprob"))
            self.assertLess(report.checked["tokens and logprobs drawn again"], len(self.listed) * TEXTS * TOKENS)

    def test_a_token_of_each_setting_is_named(self):
        for at, setting in enumerate(self.listed):
            report = self.changed("texts.bin", self.with_word(at * TEXTS + 1, 11, 0, lambda value: value ^ 512))
            first = report.problems[0]
            self.assertEqual((first["name"], first["text"], first["token"]), ("wrong_token", at * TEXTS + 1, 11),
                             setting["name"])

    def test_a_token_outside_the_vocabulary_is_named(self):
        report = self.changed("texts.bin", self.with_word(3, 5, 0, lambda value: value | 1 << 31))
        self.assertEqual(report.problems[0]["name"], "wrong_token")
        self.assertIn("text 3, token 5", report.problems[0]["why"])
        self.assertIn("the texts of penalties", "\n".join(report.not_checked))

    def test_the_hash_of_a_texts_rows_is_compared(self):
        data = bytearray(self.files["texts.bin"])
        data[48] ^= 1
        self.assertEqual(self.changed("texts.bin", bytes(data)).problems[0]["name"], "wrong_row")

    # --- receipts

    def resigned(self, change, key=receipt_maker.KEY):
        """The report on an archive whose receipts are changed and signed again."""
        drawn = []
        for setting in self.listed:
            drawn += [maker.Text(json.loads(self.settings)["model"], setting, len(drawn) + at, TOKENS)
                      for at in range(TEXTS)]
        stored = self.cached_texts(drawn)
        change(stored)
        chains = [maker.Chain(text) for text in stored if not text.setting.get("drafts", {}).get("mode", "").endswith(
            "BLOCK")]
        return self.check(maker.manifested({
            **self.files, "receipts.bin": maker.columns([one for chain in chains for one in chain.records]),
            "signature.bin": receipt_maker.signature(key, *chains, ended=1)}))

    def cached_texts(self, drawn):
        """Gives texts the receipts that the archive has of them."""
        found = {}
        for kind, body in records.records(io.BytesIO(archive.records_of({**self.files, "signature.bin": b""}))):
            if kind == records.OPENING:
                name = records.opening_of(body).request_id.decode()
                found[receipts.digest(body)[:16]] = drawn[int(name.split()[1])]
            else:
                one = records.receipt_of(body)
                pairs = list(zip(one.ids.tolist(), one.bits.tolist()))
                found[one.chain].receipts.append((one.position, one.token, one.logprob, pairs, one.method, one.phase))
        return drawn

    def test_any_records_can_be_packed(self):
        whole = archive.records_of(self.files)
        split = [records.record_bytes(kind, body) for kind, body in records.records(io.BytesIO(whole))]
        self.assertLess(len(self.files["receipts.bin"]), len(whole) * 4 / 5)
        # A receipt twice, one before its opening, one of another chain, and a type that there is not.
        odd = [split[1], *split[:5], split[4], *split[5:50], *split[-1:], split[2], records.record_bytes(9, b""),
               *split[50:60]]
        for listed in (split, odd, []):
            self.assertEqual(receipt_columns.unpacked(maker.columns(listed)), b"".join(listed))

    def test_receipts_that_cannot_be_unpacked_are_damaged(self):
        data = self.files["receipts.bin"]
        count, columns = struct.unpack_from("<2I", data, 8)
        words = 16 + count + 16 * columns  # where columns of 32 bits begin
        changes = {"another beginning": b"x" + data[1:], "behind": data + b"x", "forms": data[:16] + b"\2" + data[17:],
                   "forms, of other receipts": data[:12] + struct.pack("<I", 1 << 31) + data[16:],
                   "early, of many records": data[:8] + struct.pack("<I", 1 << 31) + data[12:],
                   "before an opening": data[:16] + b"\0\1" + data[18:],
                   "a phase": data[:words + 36 * columns] + b"\1" + data[words + 36 * columns + 1:]}
        for size in (0, 8, 15, 16 + count, words, len(data) // 2, len(data) - 1):
            changes[f"early, of {size}"] = data[:size]
        # Each kept count as large as it can be.
        top = words + 35 * columns
        changes["early, of many kept"] = data[:top] + b"\xff" * columns + data[top + columns:]
        for why, changed in changes.items():
            report = self.changed("receipts.bin", changed)
            self.assertEqual(self.refused(report), "damaged", why)
            self.assertIn("receipts.bin: ", report.problems[0]["why"])
            self.assertIn(why.split(",")[0], report.problems[0]["why"])

    def test_one_bit_of_a_kept_token_is_named(self):
        data = bytearray(self.files["receipts.bin"])
        count, columns = struct.unpack_from("<2I", data, 8)
        data[16 + count + 16 * columns + 24 * columns] ^= 1  # the lowest bits of the first receipt's token
        names = [problem["name"] for problem in self.changed("receipts.bin", bytes(data)).problems]
        self.assertEqual(sorted(set(names)), ["wrong_head", "wrong_receipt"])

    def test_receipts_that_a_machine_has_signed_are_compared(self):
        self.assertEqual(self.resigned(lambda drawn: None).problems, [])
        changes = {"token": (1, lambda token: token ^ 1), "logprob": (2, lambda bits: bits ^ 1),
                   "kept_count": (3, lambda pairs: pairs + [(1023, pairs[0][1])]),
                   "kept tokens": (3, lambda pairs: [(pairs[0][0], pairs[0][1] ^ 1), *pairs[1:]]),
                   "method": (4, lambda method: 3 if method == 1 else 1), "phase": (5, lambda phase: phase + 1)}
        for name, (at, change) in changes.items():
            def changed(drawn):
                receipt = list(drawn[1].receipts[9])
                receipt[at] = change(receipt[at])
                drawn[1].receipts[9] = tuple(receipt)

            report = self.resigned(changed)
            self.assertEqual([problem["name"] for problem in report.problems], ["wrong_receipt"], name)
            self.assertIn("text 1, token 9", report.problems[0]["why"])
            self.assertIn(name, report.problems[0]["why"])

    def test_missing_receipts_are_counted(self):
        report = self.resigned(lambda drawn: drawn[5].receipts.pop())
        self.assertEqual([(problem["name"], problem["text"]) for problem in report.problems], [("missing_receipt", 5)])

    def test_a_chain_without_its_first_receipts_is_named(self):
        """A second chain of text 0, whole but for them, and signed."""
        found = list(records.records(io.BytesIO(archive.records_of(self.files))))
        opening = bytearray(found[0][1])
        opening[28:44] = bytes([7]) * 16  # another nonce
        old, head = receipt_maker.sha(found[0][1])[:16], receipt_maker.sha(bytes(opening))
        chain, kept = head[:16], [(records.OPENING, bytes(opening))]
        bodies = [body for kind, body in found if kind == records.RECEIPT and body[:16] == old]
        for body in bodies:
            kept.append((records.RECEIPT, chain + head + body[48:]))
            head = receipt_maker.sha(kept[-1][1])
        body = receipt_maker.public_key(receipt_maker.KEY) + struct.pack("<QI", 1, 1)
        body += records.HEAD.pack(chain, len(bodies), head, 1)
        kept.append((records.SIGNATURE, body + receipt_maker.signed(
            receipt_maker.KEY, b"sortition receipts 1" + body)))
        for cut in (0, 2):
            listed = kept[:1] + kept[1 + cut:] + found[:-1]
            packed = maker.columns([records.record_bytes(*one) for one in listed])
            report = self.changed("receipts.bin", packed)
            self.assertEqual([problem["name"] for problem in report.problems], ["missing_receipt"] * bool(cut), cut)
        self.assertIn("1 chains lack their first receipts", report.text())

    def test_the_first_problems_are_kept_and_all_are_counted(self):
        odd = records.record_bytes(9, b"") * (receipts.MOST_PROBLEMS + 500)
        report = self.changed("signature.bin", self.files["signature.bin"] + odd)
        self.assertEqual(len(report.problems), receipts.MOST_PROBLEMS)
        self.assertEqual(report.problem_counts, {"bad_record": receipts.MOST_PROBLEMS + 500})
        self.assertIn(f"{receipts.MOST_PROBLEMS + 480} more problems bad_record\n1500 problems", report.text())

    def test_openings_take_time_by_their_number(self):
        """Python's calls are counted: a chain's opening looks at no other chain."""
        class Chains(dict):
            walks = 0

            def __iter__(self):
                Chains.walks += 1
                return super().__iter__()

        verifier = archive_receipts.TextReceipts([], [], {}, TOKENS)
        verifier.chains = Chains()
        verifier.read(io.BytesIO(b"".join(receipt_maker.Chain(nonce=nonce).records[0] for nonce in range(20))))
        self.assertEqual((len(verifier.chains), Chains.walks), (20, 0))

    def test_receipts_of_other_parameters_are_named(self):
        def changed(drawn):
            drawn[0].setting = {**drawn[0].setting, "parameters": {**drawn[0].setting["parameters"], "top_k": 49}}

        self.assertEqual([problem["name"] for problem in self.resigned(changed).problems], ["wrong_text"])

    def test_a_signature_by_another_key_is_mixed(self):
        names = {problem["name"] for problem in self.resigned(lambda drawn: None, OTHER_KEY).problems}
        self.assertEqual(names, {"mixed", "unknown_key"})

    def test_an_archive_by_a_key_that_is_not_trusted(self):
        report = self.check(self.files, keys=[receipt_maker.public_key(OTHER_KEY)])
        self.assertEqual({problem["name"] for problem in report.problems}, {"unknown_key"})
        self.assertEqual(report.checked["receipts under a signature, in whole chains"], 0)

    def test_receipts_without_a_signature_are_not_called_right(self):
        report = self.changed("signature.bin", b"")
        self.assertEqual((report.problems, report.status()), ([], 5))
        self.assertIn("under no valid signature", "\n".join(report.not_checked))

    def test_many_signatures_are_too_large(self):
        with mock.patch.object(archive_receipts, "MOST_SIGNATURES", 3):
            report = self.changed("signature.bin", self.files["signature.bin"] * 5)
        self.assertEqual([problem["name"] for problem in report.problems], ["too large"])

    def test_other_seeds_are_named(self):
        report = self.changed("seeds.txt", self.files["seeds.txt"].replace(b"8", b"9", 1))
        self.assertEqual([problem["name"] for problem in report.problems], ["wrong_seed"])

    # --- archives that are none

    def test_cut_archives(self):
        whole = maker.packed(self.files)
        for size in (0, 1, 10, 100, len(whole) // 2, len(whole) - 1):
            self.assertEqual(self.refused(self.check_bytes(whole[:size])), "cut", size)
        tar = gzip.decompress(whole)
        self.assertEqual(self.refused(self.check_bytes(gzip.compress(tar[:len(tar) // 2]))), "cut")
        cut = {**self.files, "texts.bin": self.files["texts.bin"][:-1]}
        self.assertEqual(self.refused(self.check(cut)), "cut")
        self.assertEqual(self.refused(self.check(maker.manifested(cut))), "cut")

    def test_archives_of_two_machines_are_mixed(self):
        other = json.dumps({**json.loads(self.files["machine.json"]), "by": "another"}).encode()
        self.assertEqual(self.refused(self.check({**self.files, "machine.json": other})), "mixed")

    def test_other_laws_models_settings_and_formats(self):
        machine = json.dumps({**json.loads(self.files["machine.json"]), "law_version": "2"}).encode()
        self.assertEqual(self.refused(self.changed("machine.json", machine)), "other law")
        for change in ({"seed": 1}, {"contexts_sha256": "00"}, {"vocabulary": 2048}):
            given = json.loads(self.settings)
            given["model"].update(change)
            self.assertEqual(self.refused(self.changed("settings.json", json.dumps(given).encode())), "other model")
        given = json.loads(self.settings)
        given["settings"][0]["parameters"]["top_k"] = 49
        self.assertEqual(self.refused(self.changed("settings.json", json.dumps(given).encode())), "other settings")
        self.assertEqual(self.refused(self.check(self.files, settings=archive.SETTINGS)), "other settings")
        manifest = self.files["proof.json"].replace(b"proof 1", b"proof 2")
        self.assertEqual(self.refused(self.check({**self.files, "proof.json": manifest})), "unknown format")

    def test_an_archive_of_some_texts_is_not_called_whole(self):
        """Those of each setting's first texts, that the machine says it has drawn."""
        seeds, count = self.files["seeds.txt"].splitlines(keepends=True), len(self.listed)
        split = [records.record_bytes(kind, body)
                 for kind, body in records.records(io.BytesIO(archive.records_of(self.files)))]
        chain = TOKENS + 1
        some = [one for at in range(count - 1) for one in split[chain * TEXTS * at:chain * (TEXTS * at + 1)]]
        files = {**self.files, "texts.bin": first_texts(self.files, 1), "seeds.txt": b"".join(seeds[::TEXTS]),
                 "receipts.bin": maker.columns(some), "signature.bin": b"", "machine.json": json.dumps(
                     {**json.loads(self.files["machine.json"]), "texts": "1"}).encode()}
        report = self.check(maker.manifested(files))
        self.assertEqual((report.problems, report.status()), ([], 5), report.text())
        self.assertEqual(report.checked["tokens and logprobs drawn again"], count * TOKENS)
        self.assertEqual(report.checked["receipts that agree with the law"], (count - 1) * TOKENS)
        self.assertIn(f"{count * (TEXTS - 1)} of {count * TEXTS} texts", "\n".join(report.not_checked))
        for said in ("0", "-1", "01", "", 1, None, "9" * 10):
            machine = json.dumps({**json.loads(self.files["machine.json"]), "texts": said}).encode()
            self.assertEqual(self.refused(self.changed("machine.json", machine)), "damaged", said)

    def test_missing_and_unknown_files(self):
        for name in self.files:
            left = {other: content for other, content in self.files.items() if other != name}
            self.assertEqual(self.refused(self.check(left)), "missing file", name)
        self.assertEqual(self.refused(self.check({**self.files, "../run.sh": b""})), "unknown file")

    def test_gigabytes_are_too_large(self):
        data = io.BytesIO()
        with gzip.GzipFile(fileobj=data, mode="wb", compresslevel=1) as file:
            for _ in range(65):
                file.write(bytes(1 << 20))
        self.assertEqual(self.refused(self.check_bytes(data.getvalue())), "too large")

    def test_large_json_is_too_large(self):
        for name in ("proof.json", "machine.json", "settings.json", "vectors.json"):
            large = b'{"a":[' + b"[]," * (archive.MOST_JSON // 3) + b"0]}"
            files = {**self.files, name: large}
            report = self.check(files if name == "proof.json" else maker.manifested(files))
            self.assertEqual(self.refused(report), "too large", name)

    def test_a_tar_of_many_long_names_is_damaged(self):
        entry = tarfile.TarInfo("././@LongLink")
        entry.type = tarfile.GNUTYPE_LONGNAME
        data = entry.tobuf(tarfile.USTAR_FORMAT) * 3000 + bytes(1024)
        self.assertEqual(self.refused(self.check_bytes(gzip.compress(data))), "damaged")

    def test_what_is_no_tar_of_plain_files_is_damaged(self):
        self.assertEqual(self.refused(self.check_bytes(b"PK" + bytes(100))), "damaged")
        self.assertEqual(self.refused(self.check_bytes(gzip.compress(b"x" * 2000))), "damaged")
        self.assertEqual(self.refused(self.check_bytes(maker.packed(self.files) + b"x")), "damaged")
        tar = gzip.decompress(maker.packed(self.files))
        self.assertEqual(self.refused(self.check_bytes(gzip.compress(tar + b"x" * 512))), "damaged")
        backwards = dict(reversed(list(self.files.items())))
        self.assertEqual(self.refused(self.check(backwards)), "damaged")
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.GNUTYPE_SPARSE, tarfile.FIFOTYPE):
            out = io.BytesIO()
            with tarfile.open(fileobj=out, mode="w") as made:
                entry = tarfile.TarInfo("texts.bin")
                entry.type, entry.linkname = kind, "/etc/passwd"
                made.addfile(entry)
            self.assertEqual(self.refused(self.check_bytes(gzip.compress(out.getvalue()))), "damaged", kind)

    def test_json_that_is_none_is_damaged(self):
        for content in (b"", b"[]", b"{", b"\xff", b'{"a": 1, "a": 2}', b"[" * 100000):
            for name in ("machine.json", "settings.json", "vectors.json"):
                self.assertEqual(self.refused(self.changed(name, content)), "damaged", (name, content[:9]))
            self.assertEqual(self.refused(self.check({**self.files, "proof.json": content})), "damaged")

    def test_golden_rows_that_differ_are_a_problem(self):
        said = {"golden_outputs.json": {"rows": 113, "answered": 113, "different": ["greedy"]}}
        report = self.changed("vectors.json", json.dumps(said).encode())
        self.assertEqual([problem["name"] for problem in report.problems], ["wrong_vectors"])

    # --- the command

    def test_command(self):
        environment = {**os.environ, "PYTHONPATH": str(SOURCE / "client/verify")}
        command = [sys.executable, "-m", "sortition_verify", "archive", "--json=-"]
        self.path.write_bytes(maker.packed(self.files))
        # These settings are the test's and not the release's, so the command refuses the archive.
        said = subprocess.run([*command, str(self.path)], env=environment, capture_output=True, text=True)
        self.assertEqual(said.returncode, 4)
        (report,) = json.loads(said.stdout)
        self.assertEqual((report["status"], report["problems"][0]["name"]), (4, "other settings"))
        self.assertEqual(report["machine"]["by"], "a test")
        written = subprocess.run([*command[:3], "records", str(self.path)], env=environment, capture_output=True)
        self.assertEqual((written.returncode, written.stdout), (0, archive.records_of(self.files)), written.stderr)
        self.path.write_bytes(maker.packed({**self.files, "receipts.bin": b"none"}))
        refused = subprocess.run([*command[:3], "records", str(self.path)], env=environment, capture_output=True)
        self.assertEqual((refused.returncode, refused.stdout), (1, b""))
        self.assertIn(b"damaged: receipts.bin", refused.stderr)
        nowhere = subprocess.run([*command, str(self.path) + "x"], env=environment, capture_output=True, text=True)
        self.assertEqual(nowhere.returncode, 1)


if __name__ == "__main__":
    unittest.main()
