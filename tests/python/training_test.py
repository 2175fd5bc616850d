"""Kept sets of a batch as arrays, and the loop of docs/rl.md in a short form."""

import os
import pathlib
import sys
import unittest

import numpy
import sortition
import sortition.local

SOURCE = pathlib.Path(os.environ["TEST_SOURCE_DIR"])
sys.path.insert(0, str(SOURCE / "client/examples"))

import policy_gradient  # noqa: E402

VOCABULARY = 50
KEPT = {"tokens": True}


def logits_of(rows, seed=1):
    return (numpy.random.default_rng(seed).standard_normal((rows, VOCABULARY)) * 2).astype(numpy.float32)


class KeptSetsTest(unittest.TestCase):
    def setUp(self):
        self.sampler = sortition.local.Sampler()

    def open(self, seed, **options):
        return self.sampler.open(vocabulary_size=VOCABULARY, seed=seed, top_p=0.9, kept_set=KEPT, **options)

    def test_draws(self):
        results = self.sampler.step([self.open(seed) for seed in range(20)], logits_of(20))
        kept = sortition.kept_sets(results)
        self.assertEqual((kept.ids.dtype, kept.offsets.dtype, len(kept)), (numpy.int32, numpy.int64, 20))
        self.assertEqual([part.tolist() for part in kept], [result.kept_tokens for result in results])
        self.assertEqual(kept.counts.tolist(), [len(result.kept_tokens) for result in results])
        self.assertEqual(kept[-1].tolist(), results[-1].kept_tokens)
        self.assertTrue(numpy.shares_memory(kept[3], kept.ids))

    def test_drafts_scores_and_errors(self):
        rows = logits_of(6)
        rows[5] = numpy.nan
        results = self.sampler.step([self.open(1), self.open(2), self.open(3)], [rows[:3], rows[3:5], rows[5]],
                                    drafts=[sortition.Drafts([1, 2]), None, None], scored=[None, [7, 8], None])
        kept = sortition.kept_sets(results)
        self.assertEqual([part.tolist() for part in kept], [*results[0].kept_tokens, *results[1].kept_tokens, []])

    def test_sequences_that_do_not_ask_are_named(self):
        plain = self.sampler.open(vocabulary_size=VOCABULARY, seed=1)
        results = self.sampler.step([self.open(1), plain], logits_of(2))
        with self.assertRaisesRegex(ValueError, "row 1 has no kept tokens"):
            sortition.kept_sets(results)
        self.assertEqual(len(sortition.kept_sets([])), 0)

    def test_join(self):
        parts = [sortition.kept_sets(self.sampler.step([self.open(seed) for seed in range(3)], logits_of(3, seed)))
                 for seed in range(4)]
        joined = sortition.KeptSets.join(parts)
        self.assertEqual([one.tolist() for one in joined], [one.tolist() for part in parts for one in part])

    def test_torch_shares_the_memory(self):
        try:
            import torch
        except ImportError:
            self.skipTest("there is no torch")
        kept = sortition.kept_sets(self.sampler.step([self.open(1)], logits_of(1)))
        ids, offsets = kept.torch()
        self.assertEqual((ids.dtype, offsets.dtype), (torch.int32, torch.int64))
        ids[0] = 49
        self.assertEqual(kept.ids[0], 49)


class PolicyGradientTest(unittest.TestCase):
    def test_kept_sets_remove_the_mismatch(self):
        means = {}
        for name, (truncated, use_sets) in policy_gradient.RUNS.items():
            course = policy_gradient.train(4, 0.8 if truncated else 1.0, use_sets)
            means[name] = numpy.mean([entry["mismatch_kl"] for entry in course])
        self.assertLess(means["top_p_1"], 3e-5)
        self.assertLess(means["with_sets"], 3e-5)
        self.assertGreater(means["without_sets"], 3e-3)

    def test_rewards_rise(self):
        course = policy_gradient.train(12, 0.8, True)
        self.assertGreater(course[-1]["reward"], 1.3 * course[0]["reward"])


if __name__ == "__main__":
    unittest.main()
