"""The vLLM plugin's way for batches of which only the tokens are asked: one array, and few looks at a request."""

import unittest

import sortition.local
from sortition import vllm_common as common

from vllm_test import fake_params, fake_update, logits


class Tokens(unittest.TestCase):
    def setUp(self):
        self.drawer = common.Drawer(sortition.local.Sampler())

    def test_tokens_of_a_batch_follow_vllms_histories(self):
        """A batch's tokens are its draws', also after vLLM has dropped or replaced some, or does not know them yet."""
        options = ({"temperature": 0.0}, {"temperature": 0.9}, {"frequency_penalty": 1.5},
                   {"temperature": 0.0, "min_tokens": 3, "all_stop_token_ids": set(range(150))})
        ways, outputs, last = (common.Rows(), common.Rows()), ([], []), [0] * len(options)
        for rows, texts in zip(ways, outputs):
            texts += [[] for _ in options]
            rows.update(fake_update(added=[(row, fake_params(**own), [3, row], texts[row])
                                           for row, own in enumerate(options)]))
        for step in range(9):
            batch = logits(*range(10 * step, 10 * step + len(options)))
            requests = [[rows.requests[row] for row in range(len(options))] for rows in ways]
            expected = [draw.token for draw in self.drawer.draw(requests[0], batch)]
            tokens, errors = self.drawer.draw_tokens(requests[1], batch)
            self.assertEqual((tokens.tolist(), errors), (expected, {}), step)
            self.assertEqual(*(own[2].sequence.tokens for own in requests))
            for texts in outputs:
                for text, token, before in zip(texts, expected, last):
                    if step == 3:
                        text[-1] = before  # known now
                    if step == 6:
                        del text[-2:]
                    text.append({2: -1, 5: 7}.get(step, token))  # not known yet, replaced
            last = expected
        self.assertTrue(all(request.is_ready() for request in requests[1]))

    def test_a_bad_row_fails_alone(self):
        rows = common.Rows()
        rows.update(fake_update(added=[(row, fake_params(temperature=0.0), [3, row], []) for row in range(3)]))
        requests = [rows.requests[row] for row in range(3)]
        for step in range(2):  # in the second one the other requests are ready
            batch = logits(1, 2, 3)
            batch[1, 4] = float("nan")
            tokens, errors = self.drawer.draw_tokens(requests, batch)
            self.assertEqual(tokens.tolist(), [int(batch[0].argmax()), 0, int(batch[2].argmax())])
            self.assertEqual([*errors], [1])
            self.assertIn("NaN", str(errors[1]))
            for request, token in zip(requests, tokens.tolist()):
                request.output.append(token)
            if step == 0:  # the row that fails later does so on the short way
                rows.update(fake_update(removed=[1], added=[(1, fake_params(temperature=0.0), [3, 1], [])]))
                requests[1] = rows.requests[1]
                self.drawer.draw_tokens([requests[1]], logits(5))
                requests[1].output.append(requests[1].last_drawn)
                self.assertTrue(all(request.is_ready() for request in requests))


if __name__ == "__main__":
    unittest.main()
