"""vLLM runs small models beside a watermark's logits processor, alone and with the plugin, in both generations.

One engine has the watermark, a JSON grammar and minimum lengths at a time.
"""

import functools
import json
import unittest

from vllm_served_test import NGRAM, REPEATS, SCHEMA, run_llm, small_model, task

MARK = {"extra_args": {"green": 4.0}}
GREEDY = [(REPEATS, {"temperature": 0.0, **MARK, "logprobs": 3}),
          ([5, 6], {"temperature": 0.0, **MARK, "min_tokens": 12}),
          ([9, 9], {"temperature": 0.0, **MARK, "json": SCHEMA, "max_tokens": 60, "min_tokens": 60}),
          ([9, 9], {"temperature": 0.0})]
SEEDED = [(REPEATS, {"temperature": 0.8, "seed": 7, **MARK}),
          ([9, 9], {"temperature": 1.0, "seed": 3, "json": SCHEMA, "max_tokens": 60, **MARK}),
          (REPEATS, {"temperature": 0.8, "seed": 7}),
          ([5], {"seed": 1, "extra_args": {"typical_p": 2.0}})]


@functools.lru_cache(maxsize=None)
def batches(setting, generation, lookup=False):
    done = run_llm(task(setting, [GREEDY, SEEDED, *([one] for one in SEEDED)] if setting else [GREEDY], generation,
                        logits_processors=[f"green:Green{generation}"], speculative_config=NGRAM if lookup else None))
    if "failed" in done:
        raise AssertionError(done["failed"])
    return done["batches"] if not lookup else (done["batches"], done["metrics"])


class Watermark(unittest.TestCase):
    def test_greedy_texts_are_vllms(self):
        for generation in (1, 2):
            with self.subTest(generation):
                (own,), (ours, *_) = (batches(setting, generation) for setting in ("", "in_process"))
                self.assertEqual([answer["tokens"] for answer in ours], [answer["tokens"] for answer in own])
                self.assertIn("a", json.loads(ours[2]["text"]))
                self.assertEqual(ours[2]["tokens"][-1], small_model.END)
                for found, expected in zip(ours[0]["logprobs"], own[0]["logprobs"]):
                    self.assertEqual(found.keys(), expected.keys())
                    for token in expected:
                        self.assertAlmostEqual(found[token][0], expected[token][0], places=3)

    def test_seeded_texts_are_marked_in_any_batch(self):
        for generation in (1, 2):
            with self.subTest(generation):
                _, seeded, *alone = batches("in_process", generation)
                self.assertEqual([answer.get("tokens") for answer in seeded],
                                 [answer.get("tokens") for (answer,) in alone])
                self.assertNotEqual(seeded[0]["tokens"], seeded[2]["tokens"])
                self.assertIn("a", json.loads(seeded[1]["text"]))
                self.assertIn("typical_p", seeded[3]["refused"])

    def test_speculation_keeps_marked_texts(self):
        """vLLM's generation 1 takes no processors beside drafts."""
        drafted, metrics = batches("in_process", 2, lookup=True)
        for found, expected in zip(drafted, batches("in_process", 2)):
            self.assertEqual([answer.get("tokens") for answer in found], [answer.get("tokens") for answer in expected])
        for found, expected in zip(drafted[0][0]["logprobs"], batches("in_process", 2)[0][0]["logprobs"]):
            self.assertEqual(found.keys(), expected.keys())
            for token in expected:
                self.assertAlmostEqual(found[token][0], expected[token][0], places=3)
        self.assertGreater(metrics["vllm:spec_decode_num_accepted_tokens"], 5)

    def test_generations_write_the_same_texts(self):
        self.assertEqual(*([[answer.get("tokens") for answer in batch] for batch in batches("in_process", generation)]
                           for generation in (1, 2)))


if __name__ == "__main__":
    unittest.main(verbosity=2)
