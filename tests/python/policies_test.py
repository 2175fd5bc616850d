"""The operator's policies in Python: their effects, and a text that another process continues under them."""

import json
import pathlib
import tempfile
import unittest

import sortition
import sortition.local

from rows import VOCABULARY, row, serve


class PoliciesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.keys, self.file = self.folder / "keys", self.folder / "policies"
        self.keys.write_text("first 11\n", encoding="utf-8")

    def write(self, **rules):
        policy = {"tenant": "*", "watermark": {"keys": str(self.keys)}, **rules}
        self.file.write_text(json.dumps({"policies": [policy]}), encoding="utf-8")

    def client(self):
        server = serve(f"--policies={self.file}")
        self.addCleanup(server.__exit__)
        client = sortition.Client(server.serving["listen"])
        self.addCleanup(client.close)
        return client

    def draw(self, client, sequence, steps):
        return [client.draw(sequence, row(step)).token for step in steps]

    def test_policy_states_what_it_has_changed(self):
        self.write(defaults={"topK": 9}, limits=[{"field": "dry", "banned": True, "violation": "VIOLATION_APPLY"}])
        sequence = self.client().open(vocabulary_size=VOCABULARY, prompt=[1, 2], dry={"multiplier": 1.0})
        self.assertEqual(sequence.policy.applied.top_k, 9)
        self.assertEqual(list(sequence.policy.removed), ["dry"])
        self.assertEqual(sequence.policy.watermark_key_id, "first")
        self.assertTrue(sequence.stateful)

    def test_another_process_continues_a_marked_text(self):
        self.write(defaults={"topK": 9})
        client = self.client()
        options = {"vocabulary_size": VOCABULARY, "prompt": [1, 2], "seed": 5}
        right = self.draw(client, client.open(**options), range(8))
        begun = client.open(**options)
        first = self.draw(client, begun, range(4))
        self.keys.write_text("second 12\nfirst 11\n", encoding="utf-8")
        self.write(defaults={"topK": 4})
        later = self.client()
        with later.open(**options, policy=begun.policy) as sequence:
            sequence.append(first)
            self.assertEqual(first + self.draw(later, sequence, range(4, 8)), right)
        self.assertEqual(later.open(**options).policy.watermark_key_id, "second")

    def test_a_new_text_names_its_key(self):
        self.keys.write_text("second 12\nfirst 11\n", encoding="utf-8")
        self.write()
        client, options = self.client(), {"vocabulary_size": VOCABULARY, "prompt": [1, 2]}
        named = client.open(**options, watermark_key_id="first")
        self.assertEqual(named.policy.watermark_key_id, "first")
        self.assertEqual(client.fork(named, watermark_key_id="second").policy.watermark_key_id, "second")
        with self.assertRaisesRegex(sortition.Error, "watermark_key_id"):
            client.open(**options, watermark_key_id="third")
        with self.assertRaisesRegex(sortition.Error, "watermark_key_id"):
            sortition.local.Sampler().open(**options, watermark_key_id="first")

    def test_without_a_policy_there_is_no_effect(self):
        with serve() as server, sortition.Client(server.serving["listen"]) as client:
            self.assertEqual(client.open(vocabulary_size=VOCABULARY).policy.ByteSize(), 0)


if __name__ == "__main__":
    unittest.main()
