"""Receipts as JSON and in Merkle trees (docs/receipts-elsewhere.md): sortitionctl makes them, the verifier in Python
checks them."""

import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import receipt_maker as maker
from sortition_verify import inclusion as tree
from sortition_verify import receipt_json, records, verify, verify_inclusion

SOURCE, TOOL = pathlib.Path(os.environ["TEST_SOURCE_DIR"]), os.environ["TEST_SORTITIONCTL"]
TRUSTED = maker.public_key(maker.KEY)
VECTORS = json.loads((SOURCE / "tests/verifier/receipts_vectors.json").read_text(encoding="utf-8"))["files"]
# Leaves and the roots of the first 1 to 8, as the tests of Certificate Transparency have them.
LEAVES = ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
ROOTS = ("6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
         "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
         "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
         "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
         "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
         "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
         "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
         "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328")


def run(*words, tool=TOOL):
    environment = {**os.environ, "PYTHONPATH": str(SOURCE / "client/verify")}
    return subprocess.run([*([tool] if isinstance(tool, str) else tool), *map(str, words)], env=environment,
                          capture_output=True)


def python(*words):
    return run(*words, tool=(sys.executable, "-m", "sortition_verify"))


def found(data, **options):
    return [problem.name for problem in verify(io.BytesIO(data), **{"keys": [TRUSTED], **options}).problems]


def tree_root(leaves):
    """MTH of RFC 6962, section 2.1, as it is written there."""
    if len(leaves) == 1:
        return maker.sha(b"\0" + leaves[0])
    half = 1 << (len(leaves) - 1).bit_length() - 1
    return maker.sha(b"\1" + tree_root(leaves[:half]) + tree_root(leaves[half:]))


def tree_path(place, leaves):
    """PATH of the same section."""
    if len(leaves) == 1:
        return []
    half = 1 << (len(leaves) - 1).bit_length() - 1
    if place < half:
        return tree_path(place, leaves[:half]) + [tree_root(leaves[half:])]
    return tree_path(place - half, leaves[half:]) + [tree_root(leaves[:half])]


def line(value):
    return receipt_json.canonical(value) + b"\n"


class FolderTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, data):
        (self.folder / name).write_bytes(data)
        return self.folder / name


class JsonTest(FolderTest):
    @classmethod
    def setUpClass(cls):
        parameters = {"temperature": 0.8, "top_k": 9}
        cls.chain = maker.Chain(parameters=parameters, integers=maker.integers_of(parameters)).draw(3)
        cls.seeds = [maker.seed_line(cls.chain)]
        with tempfile.NamedTemporaryFile() as file:
            file.write(cls.chain.file())
            file.flush()
            cls.text = run("receipts", "export", file.name).stdout

    def test_export_and_import_lose_nothing(self):
        exported = 0
        for vector in VECTORS:
            data = bytes.fromhex(vector["records"])
            made = run("receipts", "export", self.write("file", data))
            if {problem["problem"] for problem in vector["problems"]} & {"bad_record", "cut_record"}:
                self.assertEqual(made.returncode, 1, vector["name"])
                self.assertRegex(made.stderr, b"file: (bad|cut)_record: ", vector["name"])
                continue
            self.assertEqual((made.returncode, made.stderr), (0, b""), vector["name"])
            again = python("import", self.write("file.json", made.stdout))
            self.assertEqual((again.returncode, again.stdout), (0, data), vector["name"])
            keys = [bytes.fromhex(key) for key in vector["keys"]]
            self.assertEqual(verify(io.BytesIO(made.stdout), keys, vector["seeds"]),
                             verify(io.BytesIO(data), keys, vector["seeds"]), vector["name"])
            exported += 1
        self.assertGreater(exported, 30)

    def test_json_is_checked_like_records(self):
        report = verify(io.BytesIO(self.text), [TRUSTED], self.seeds)
        self.assertEqual((report.receipts, report.signed, report.drawn, report.problems), (3, 3, 3, []))

    def test_one_changed_bit_is_named(self):
        self.assertEqual(found(self.text, seeds=self.seeds), [])
        second = self.text.index(b"\n") + 1
        end = self.text.index(b"\n", second) + 1
        every_bit = {(place, bit) for place in range(second, end) for bit in range(8)}
        for place, bit in sorted(every_bit | {(place, place % 8) for place in range(0, len(self.text), 5)}):
            changed = bytearray(self.text)
            changed[place] ^= 1 << bit
            self.assertNotEqual(found(bytes(changed), seeds=self.seeds), [], (place, bit))

    def test_bad_json_is_named(self):
        opening, receipt, *_ = self.text.splitlines()

        def changed(old, new):
            self.assertEqual(receipt.count(old), 1, old)
            return receipt.replace(old, new)

        cases = (
            (receipt.replace(b",", b", ", 1), "not_canonical", "byte"),
            (b"{" + receipt.split(b",", 1)[1].replace(b"}", b"," + receipt[1:].split(b",", 1)[0] + b"}"),
             "not_canonical", "byte"),
            (changed(b'"offset":0', b'"offset":-0'), "not_canonical", "byte"),
            (changed(b'"type":"receipt"', b'"type":"r\\u0065ceipt"'), "not_canonical", "byte"),
            (changed(b'"offset":0', b'"offset":0,"offset":0'), "doubled_key", "'offset' twice"),
            (changed(b'"offset":0', b'"offset":9007199254740993'), "wide_number", "2^53"),
            (changed(b'"offset":0', b'"offset":1' + b"0" * 5000), "wide_number", "2^53"),
            (changed(b'"offset":0', b'"offset":4294967296'), "bad_json", "offset of the receipt: 4294967296"),
            (changed(b'"offset":0', b'"offset":0.5'), "bad_json", "no integer"),
            (changed(b'"offset":0', b'"offset":1e2'), "bad_json", "no integer"),
            (changed(b'"offset":0', b'"offset":NaN'), "bad_json", "NaN"),
            (changed(b'"offset":0', b'"offset":true'), "bad_json", "offset of the receipt: True"),
            (changed(b'"offset":0,', b""), "bad_json", "lacks offset"),
            (changed(b'"offset":0', b'"offset":0,"other":0'), "bad_json", "has no member 'other'"),
            (changed(b'"index":"0"', b'"index":0'), "bad_json", "index of the receipt: 0"),
            (changed(b'"index":"0"', b'"index":"00"'), "bad_json", "index of the receipt"),
            (changed(b'"index":"0"', b'"index":"18446744073709551616"'), "bad_json", "below 2^64"),
            (changed(b'"type":"receipt"', b'"type":"record"'), "bad_json", "type 'record'"),
            (changed(b'"type":"receipt"', b'"type":"\\ud800"'), "bad_json", "not JSON"),
            (changed(b'"type":"receipt"', b'"type":"\xff"'), "bad_json", "not JSON"),
            (b"[" * 100_000, "bad_json", "not JSON"), (b"", "bad_json", "not JSON"), (b"[]", "bad_json", "no object"),
        )
        for text, name, why in cases:
            report = verify(io.BytesIO(opening + b"\n" + text + b"\n"))
            self.assertEqual([problem.name for problem in report.problems], [name], text[:80])
            self.assertIn("line 2: ", str(report.problems[0]), text[:80])
            self.assertIn(why, str(report.problems[0]), text[:80])
            imported = python("import", self.write("file", opening + b"\n" + text + b"\n"))
            self.assertEqual(imported.returncode, 1)
            self.assertIn(f": {name}: line 2: ".encode(), imported.stderr)
        for place in range(1, len(receipt) + 1):
            self.assertEqual(found(opening + b"\n" + receipt[:place]), ["cut_record"], place)

    def test_each_problem_of_the_page_was_found(self):
        page = (SOURCE / "docs/receipts-elsewhere.md").read_text(encoding="utf-8")
        for name in ("not_canonical", "doubled_key", "wide_number", "bad_json", "wrong_path"):
            self.assertIn(f"\n| `{name}` |", page)


class IntegersTest(unittest.TestCase):
    def test_draws_need_no_rule_for_floats(self):
        """Kept tokens, the seed and the stated integers give token and logprob: no parameter is read."""
        drawn = 0
        for vector in VECTORS:
            if vector["problems"] or not vector["seeds"] or vector["name"] in ("adaptive_p", "watermark"):
                continue
            seeds = [(int(seed), bytes.fromhex(salt)) for seed, salt in map(str.split, vector["seeds"])]
            opened = {maker.receipts.seed_commitment(*given): given[0] for given in seeds}
            chains = {}
            for kind, body in records.records(io.BytesIO(bytes.fromhex(vector["records"]))):
                if kind == records.OPENING:
                    opening = records.opening_of(body)
                    chain = maker.receipts.Chain(b"", opening=opening, seed=opened.get(opening.commitment))
                    chains[maker.sha(body)[:16]] = chain
                if kind != records.RECEIPT:
                    continue
                receipt = records.receipt_of(body)
                chain = chains[receipt.chain]
                unchecked = not chain.opening.integers or chain.seed is None or not receipt.listed
                if unchecked or receipt.method > records.FIRST:
                    continue
                options = maker.receipts.compiled_of(*chain.opening.integers[receipt.phase])
                kept = maker.receipts.kept_distribution(options, receipt)
                token = receipt.token if options.greedy else maker.receipts.drawn_among(
                    kept.ids, kept.distances, maker.receipts.noise_of(chain, receipt))
                self.assertEqual((token, kept.logprob_bits(kept.bits_and_rank(token)[0])),
                                 (receipt.token, receipt.logprob), vector["name"])
                drawn += 1
        self.assertGreater(drawn, 50)


class InclusionTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.chains = [maker.Chain(seed=1, nonce=1).draw(5), maker.Chain(seed=2, nonce=2).draw(8)]
        self.files = [self.write(f"{number}.bin", chain.file()) for number, chain in enumerate(self.chains)]
        self.bodies = [record[5:] for chain in self.chains for record in chain.records[1:]]
        self.root = run("receipts", "root", *self.files).stdout

    def prove(self, chain, index):
        made = run("receipts", "prove", *self.files, f"--chain={chain.id.hex()}", f"--index={index}")
        self.assertEqual((made.returncode, made.stderr), (0, b""))
        return made.stdout

    def test_published_roots_and_every_path(self):
        leaves = [bytes.fromhex(leaf) for leaf in LEAVES]
        for count, root in enumerate(ROOTS, 1):
            self.assertEqual(tree_root(leaves[:count]).hex(), root)
        for count in range(1, 40):
            leaves = [bytes([number]) for number in range(count)]
            for place in range(count):
                path = tree_path(place, leaves)
                args = [tree.leaf_hash(leaves[place]), place, count, path]
                self.assertEqual(tree.root_of(*args), tree_root(leaves))
                for wrong in (path[:-1], path + [bytes(32)]) if path else ([bytes(32)],):
                    with self.assertRaisesRegex(records.BadRecord, "wrong_path: a path of"):
                        tree.root_of(args[0], place, count, wrong)
        with self.assertRaisesRegex(records.BadRecord, "leaf 3 of 3"):
            tree.root_of(bytes(32), 3, 3, [])

    def test_every_receipt_is_shown_alone(self):
        self.assertEqual(self.root, line({"type": "root", "leaves": "13", "root": tree_root(self.bodies).hex()}))
        seeds = [maker.seed_line(chain) for chain in self.chains]
        leaf = 0
        for chain, seed in zip(self.chains, seeds):
            for index in range(chain.count):
                inclusion = self.prove(chain, index)
                report, words = verify_inclusion(inclusion, self.root, [seed])
                self.assertEqual((report.receipts, report.drawn, report.signed, report.problems), (1, 1, 0, []))
                self.assertIn(f"receipt {index} of chain {chain.id.hex()}", words)
                self.assertIn(f"is leaf {leaf} of the 13", words)
                self.assertEqual(json.loads(inclusion)["path"], [hash.hex() for hash in tree_path(leaf, self.bodies)])
                leaf += 1
        self.assertIn("1 without the seed", verify_inclusion(self.prove(self.chains[0], 0), self.root)[0].text())

    def test_an_inclusion_of_another_tree_is_named(self):
        inclusion = self.prove(self.chains[0], 2)
        for files in ([self.files[0]], self.files[::-1]):
            other = run("receipts", "root", *files).stdout
            report, words = verify_inclusion(inclusion, other)
            self.assertEqual(([problem.name for problem in report.problems], words), (["wrong_path"], ""))
        for change in ({"leaf": "3"}, {"leaf": "13"}, {"leaves": "12"}, {"path": []},
                       {"path": json.loads(inclusion)["path"][::-1]}):
            report, words = verify_inclusion(line({**json.loads(inclusion), **change}), self.root)
            self.assertEqual(([problem.name for problem in report.problems], words), (["wrong_path"], ""), change)
        other_opening = json.loads(self.prove(self.chains[1], 0))["opening"]
        report, _ = verify_inclusion(line({**json.loads(inclusion), "opening": other_opening}), self.root)
        self.assertEqual([problem.name for problem in report.problems], ["unknown_chain"])

    def test_every_changed_byte_of_an_inclusion_is_found(self):
        inclusion = self.prove(self.chains[1], 6)
        for number, text in enumerate((inclusion, self.root)):
            for place in range(len(text)):
                changed = bytearray(text)
                changed[place] ^= 1 << place % 8
                given = [inclusion, self.root]
                given[number] = bytes(changed)
                self.assertTrue(verify_inclusion(*given)[0].problems, (number, place))

    def test_command(self):
        root = self.write("root.json", self.root)
        inclusion = self.write("inclusion.json", self.prove(self.chains[0], 4))
        seeds = self.write("seeds", maker.seed_line(self.chains[0]).encode())
        checked = python("inclusion", inclusion, f"--root={root}", f"--seeds={seeds}")
        self.assertEqual((checked.returncode, checked.stderr), (0, b""), checked.stdout)
        self.assertIn(b"inclusion: receipt 4 of chain", checked.stdout)
        self.assertIn(b"signature and chain: 0 hold; not checked: 1", checked.stdout)
        other = self.write("other.json", run("receipts", "root", self.files[0]).stdout)
        checked = python("inclusion", inclusion, f"--root={other}")
        self.assertEqual(checked.returncode, 4)
        self.assertIn(b"inclusion: nothing is shown", checked.stdout)
        self.assertIn(b"PROBLEM wrong_path: of a tree of 13 leaves", checked.stdout)

    def test_wrong_use_is_named(self):
        cut = self.write("cut.bin", self.chains[0].file()[:-1])
        empty = self.write("empty.bin", b"")
        for words, why in ((("root", cut), b"cut.bin: cut_record: the last"), (("root", empty), b"no receipt"),
                           (("export", cut), b"cut_record"), (("root", "none.bin"), b"none.bin cannot be read"),
                           (("prove", self.files[0]), b"--chain and --index"), ((), b"receipts takes export"),
                           (("root",), b"receipts takes export"), (("export", cut, cut), b"receipts takes export"),
                           (("prove", self.files[0], "--chain=00", "--index=1"), b"have no receipt --index=1"),
                           (("root", self.write("long.bin", b"\2\xff\xff\xff\xff")), b"bad_record: a record of 4294"),
                           (("root", self.write("odd.bin", maker.record(2, b"x"))), b"bad_record: a receipt with")):
            made = run("receipts", *words)
            self.assertEqual((made.returncode, made.stdout if words[:1] != ("export",) else b""), (1, b""), words)
            self.assertIn(why, made.stderr, words)


if __name__ == "__main__":
    unittest.main()
