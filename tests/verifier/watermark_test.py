"""The watermark's detector in Python: the same evidence as the C++ one, marks found, its service over a socket."""

import http.client
import importlib.util
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import unittest

import numpy as np

SOURCE = pathlib.Path(os.environ["TEST_SOURCE_DIR"])
SORTITIONCTL = os.environ["TEST_SORTITIONCTL"]

sys.path[:0] = [str(SOURCE / "client/verify"), str(SOURCE / "tests/support")]

from browser import CHROMIUM, READ_OUTPUTS, Browser  # noqa: E402
from sortition_verify import Row, answer, compile_options, float_bits  # noqa: E402
from sortition_verify import watermark_service as service  # noqa: E402
from sortition_verify.history import watermark_noise  # noqa: E402
from sortition_verify.watermark import Key, detect, joint_p_value, parse_keys, read_keys, upper_tail  # noqa: E402

MARK = Key("2026-11", 0xFEEDFACECAFEBEEF, 4)
OTHER = Key("2026-12", 77, 4)
VOCABULARY = 64
# Seeds are fixed. For random ones each expectation would fail with less than this probability.
FAILURE = 1e-6


def marked_text(length, key=MARK, seed=3):
    """A text with the mark, of tokens with about four bits of entropy each."""
    tokens, compiled = [1, 2, 3], compile_options({})
    logits = np.random.default_rng(seed)
    parameters = {"watermark": {"key": key.key, "context_width": key.context_width}}
    while len(tokens) < length:
        (low, high), position, stream = watermark_noise(parameters, tokens)
        row = Row(bits=float_bits(logits.random(VOCABULARY).astype(np.float32) * 3), compiled=compiled,
                  seed=high << 32 | low, position=position, stream=stream)
        tokens.append(answer(row).token)
    return tokens


def plain_text(length, seed):
    made = random.Random(seed)
    return [made.randrange(VOCABULARY) for _ in range(length)]


class DetectTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.marked = marked_text(300)

    def test_evidence_equals_the_cpp_detectors(self):
        for text, width in ((self.marked, 4), (plain_text(500, 1), 1), (plain_text(40, 2) * 9, 3)):
            with tempfile.TemporaryDirectory() as folder:
                key, tokens = pathlib.Path(folder, "key"), pathlib.Path(folder, "tokens")
                key.write_text(str(MARK.key), encoding="utf-8")
                tokens.write_text(" ".join(map(str, text)), encoding="utf-8")
                said = subprocess.run([SORTITIONCTL, "detect", str(tokens), f"--key_file={key}", "--json",
                                       f"--context_width={width}"],
                                      capture_output=True, text=True, check=True).stdout
            wanted = json.loads(said)
            found = detect(text, [Key("a", MARK.key, width)])[0]
            self.assertEqual(found.tokens, wanted["tokens"])
            self.assertAlmostEqual(found.score, wanted["score"], delta=1e-4 * wanted["score"])
            self.assertAlmostEqual(found.p_value, wanted["p_value"], delta=1e-4 * wanted["p_value"])

    def test_mark_is_found_and_no_other(self):
        mine, others = detect(self.marked, [MARK, OTHER])
        self.assertLess(mine.p_value, FAILURE)
        self.assertGreater(others.p_value, FAILURE)
        self.assertLess(detect(self.marked[100:], [MARK])[0].p_value, FAILURE)
        self.assertGreater(detect(plain_text(300, 5), [MARK])[0].p_value, FAILURE)

    def test_repeated_contexts_count_once(self):
        once, often = detect(plain_text(60, 3), [MARK])[0], detect(plain_text(60, 3) * 20, [MARK])[0]
        self.assertEqual(once.tokens, 56)
        self.assertEqual(often.tokens, 60)
        # A token after a context that has come before does not count: its draw may be unmarked.
        other, key = [1, 2, 3, 1, 2, 4, 1, 2, 5], Key("a", MARK.key, 2)
        self.assertEqual(detect(other, [key])[0].tokens, 5)
        self.assertEqual(detect(other, [key])[0].score, detect(other[:8], [key])[0].score)

    def test_p_value_allows_for_the_number_of_keys(self):
        found = detect(plain_text(300, 7), [Key(str(i), i) for i in range(20)])
        self.assertEqual(joint_p_value(found), min(1.0, 20 * min(one.p_value for one in found)))

    def test_short_texts_say_nothing(self):
        for text in ([], [1], [1, 2, 3, 4]):
            found = detect(text, [MARK])[0]
            self.assertEqual((found.tokens, found.score, found.p_value), (0, 0.0, 1.0))

    def test_upper_tail(self):
        self.assertAlmostEqual(upper_tail(1, 2.0), np.exp(-2.0))
        self.assertAlmostEqual(upper_tail(3, 2.0), np.exp(-2.0) * (1 + 2 + 2))
        self.assertGreater(upper_tail(200_000, 200_000.0), 0.4)

    def test_wrong_tokens_and_keys_are_refused(self):
        for tokens in ([-1], [1 << 20]):
            with self.assertRaisesRegex(ValueError, "ids in 0"):
                detect(tokens, [MARK])
        for text, wrong in (("a", "line 1"), ("a 1 0", "context width in 1..64"), ("a 18446744073709551616", "2.64"),
                            ("a 1\na 2", "line 2: the id a stands twice"), ("", "0 keys"), ("a -1", "line 1")):
            with self.assertRaisesRegex(ValueError, wrong):
                parse_keys(text)
        self.assertEqual(parse_keys("# none\na 1\n\nb 2 7\n"), [Key("a", 1, 4), Key("b", 2, 7)])


class ServiceTest(unittest.TestCase):
    def setUp(self):
        # A fake, which has a token for each letter.
        self.server = service.DetectorServer(("127.0.0.1", 0),
                                             service.Detector([MARK, OTHER], lambda text: [ord(c) for c in text]))
        thread = threading.Thread(target=self.server.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)

    def ask(self, body, method="POST", path="/detect", headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_address[1], timeout=30)
        self.addCleanup(connection.close)
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, response.read().decode()

    def test_tokens_and_text_are_answered(self):
        marked = marked_text(250)
        status, said = self.ask(json.dumps({"tokens": marked}))
        self.assertEqual(status, 200)
        said = json.loads(said)
        self.assertLess(said["p_value"], FAILURE)
        self.assertEqual([key["id"] for key in said["keys"]], [MARK.id, OTHER.id])
        status, said = self.ask(json.dumps({"text": "nothing is hidden here"}))
        self.assertEqual((status, json.loads(said)["tokens"]), (200, 18))
        self.assertNotIn(str(MARK.key), said)

    def test_bad_requests_are_named(self):
        for body, wrong in (("", "Expecting value"), ("[" * 100_000, ""), ("[]", "an object"), ("{}", "either"),
                            ('{"tokens": 1}', "tokens: a list"), ('{"tokens": [true]}', "tokens: a list"),
                            ('{"tokens": [99999999]}', "ids in 0"), ('{"tokens": [1e3]}', "tokens: a list"),
                            ('{"tokens": [' + "9" * 40 + "]}", "tokens: "), ('{"text": 1}', "text: a string"),
                            ('{"tokens": [1], "choice_index": 0}', "an object"), ('{"token": [1]}', "an object")):
            status, said = self.ask(body)
            self.assertEqual(status, 400, body[:50])
            self.assertIn(wrong, json.loads(said)["error"])
        self.assertEqual(self.ask("", path="/")[0], 404)
        self.assertEqual(self.ask(None, method="GET", path="/keys")[0], 404)
        self.assertEqual(self.ask("", headers={"Content-Length": str(service.MOST_BYTES + 1)})[0], 413)
        self.assertEqual(self.ask("", headers={"Content-Length": "-1"})[0], 411)

    @unittest.skipUnless(CHROMIUM, "there is no Chromium")
    def test_page_shows_the_verdict(self):
        ids = json.dumps(" ".join(map(str, marked_text(250))))
        with Browser() as browser:
            page = browser.open(f"http://127.0.0.1:{self.server.server_address[1]}/")
            asked = "at('given').value = %s; at('ask').click();"
            said = browser.evaluate(page, READ_OUTPUTS % (asked % ids))["verdict"]
            self.assertRegex(said, r"^p-value \d\.\d+e-\d+, from 2\d\d tokens$")
            self.assertEqual(browser.evaluate(page, "at('keys').rows.length"), 3)
            page = browser.open(f"http://127.0.0.1:{self.server.server_address[1]}/")
            said = browser.evaluate(page, READ_OUTPUTS % (asked % '"a text without a mark"'))["verdict"]
            self.assertRegex(said, r"^p-value 0\.\d+, from 17 tokens: fewer than 200 say little$")


@unittest.skipUnless(importlib.util.find_spec("tokenizers"), "there is no Python package tokenizers")
class TokenizerTest(unittest.TestCase):
    def test_a_text_has_the_tokens_of_its_file(self):
        from tokenizers import Tokenizer, models, pre_tokenizers
        made = Tokenizer(models.WordLevel({"one": 3, "two": 5, "?": 0}, unk_token="?"))
        made.pre_tokenizer = pre_tokenizers.Whitespace()
        with tempfile.TemporaryDirectory() as folder:
            made.save(f"{folder}/tokenizer.json")
            tokenize = service.load_tokenizer(f"{folder}/tokenizer.json")
        self.assertEqual(tokenize("two one three"), [5, 3, 0])
        self.assertEqual(service.Detector([MARK], tokenize).answer({"text": "one two"})["tokens"], 0)


class CommandTest(unittest.TestCase):
    def run_command(self, *words, given=""):
        return subprocess.run([sys.executable, "-m", "sortition_verify", "watermark", *words], input=given,
                              env={**os.environ, "PYTHONPATH": str(SOURCE / "client/verify")}, capture_output=True,
                              text=True)

    def test_file_and_bad_options(self):
        with tempfile.TemporaryDirectory() as folder:
            keys = pathlib.Path(folder, "keys")
            keys.write_text(f"{MARK.id} {MARK.key}\n", encoding="utf-8")
            self.assertEqual(read_keys(str(keys)), [MARK])
            done = self.run_command(f"--keys={keys}", "-", given=" ".join(map(str, marked_text(250))))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertLess(json.loads(done.stdout)["p_value"], FAILURE)
            self.assertEqual(self.run_command(f"--keys={keys}", "-", given="one").returncode, 1)
            self.assertEqual(self.run_command(f"--keys={keys}").returncode, 2)
            keys.write_text("secret 12345x\n", encoding="utf-8")
            done = self.run_command(f"--keys={keys}", "-")
            self.assertEqual(done.returncode, 2)
            self.assertIn("line 1", done.stderr)
            self.assertNotIn("12345x", done.stderr)


if __name__ == "__main__":
    unittest.main()
