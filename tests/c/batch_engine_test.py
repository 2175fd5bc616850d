"""client/examples/batch_engine.c: texts depend on neither the batch nor the way to the sampler; drafts are verified."""

import os
import re
import unittest

from both import output_of, server

REQUESTS, LENGTH = 24, 40


def texts_of(mode, slots, noise, *target):
    """Returns each request's text, and its numbers of accepted and proposed drafts."""
    lines = output_of(os.environ["TEST_C_ENGINE"], mode, str(slots), str(noise), *target).splitlines()
    found = {int(request): (text.split(), int(accepted), int(drafted)) for request, accepted, drafted, text in
             (re.fullmatch(r"request (\d+): (\d+) of (\d+):((?: \d+)+)", line).groups() for line in lines)}
    assert sorted(found) == list(range(REQUESTS)) and {len(text) for text, _, _ in found.values()} == {LENGTH}
    return found


class BatchEngineTest(unittest.TestCase):
    def test_batch_and_service_change_no_text(self):
        with server() as (tcp, _, _):
            for mode in ("none", "coupled", "rejection", "block"):
                with self.subTest(mode):
                    expected = texts_of(mode, 16, 3)
                    self.assertGreater(len({tuple(text) for text, _, _ in expected.values()}), REQUESTS - 2)
                    for slots in (1, 5):
                        self.assertEqual(texts_of(mode, slots, 3), expected)
                    self.assertEqual(texts_of(mode, 16, 3, tcp), expected)

    def test_coupled_drafts_change_no_text(self):
        plain, drafted = texts_of("none", 16, 3), texts_of("coupled", 16, 3)
        self.assertEqual([plain[i][0] for i in range(REQUESTS)], [drafted[i][0] for i in range(REQUESTS)])
        self.assertGreater(sum(accepted for _, accepted, _ in drafted.values()), REQUESTS)

    def test_drafters_probabilities_are_each_drafts_own(self):
        """Where the drafter's distribution is the request's, every draft is accepted. Others lose some."""
        for mode in ("rejection", "block"):
            for request, (_, accepted, drafted) in texts_of(mode, 16, 0).items():
                self.assertGreater(drafted, 20)
                if request % 4 == 0:  # temperature alone
                    self.assertEqual(accepted, drafted, f"{mode}, request {request}")
            noisy = texts_of(mode, 16, 3).values()
            share = sum(accepted for _, accepted, _ in noisy) / sum(drafted for _, _, drafted in noisy)
            self.assertTrue(0.2 < share < 0.8, share)


if __name__ == "__main__":
    unittest.main()
