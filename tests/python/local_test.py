"""sortition.local gives the bits of the service under all options; and a notebook's display of a step."""

import threading
import unittest

import numpy
import sortition
import sortition.local
from sortition.v1.sampling_pb2 import DrawResult

from both import BothTest
from rows import OPTIONS, VOCABULARY, row, scale


class LocalTest(BothTest):
    def refusal_of_both(self, options):
        """The refusal of the options, or None if they are accepted."""
        said = []
        for sampler in (self.client, self.sampler):
            try:
                sampler.open(vocabulary_size=VOCABULARY, **options)
                said.append(None)
            except sortition.Error as error:
                said.append(error.args)
        self.assertEqual(*said)
        return said[0]

    def assert_same_step(self, remote, local, logits, **options):
        answers = []
        for sampler, sequence in ((self.client, remote), (self.sampler, local)):
            answer = DrawResult.FromString(sampler.draw(sequence, logits, **options).to_bytes())
            answer.ClearField("checkpoint")  # in process the state stays with the sequence
            answers.append(answer)
        self.assertEqual(*answers)
        self.assertEqual((remote.position, remote.tokens), (local.position, local.tokens))

    def test_same_bits_as_the_service(self):
        generator = numpy.random.default_rng(6)
        for number in range(scale(4 * len(OPTIONS))):
            options = dict(OPTIONS[number % len(OPTIONS)])
            options.update(seed=int(generator.integers(1 << 63)), choice_index=number,
                           prompt=generator.integers(0, 30, size=number), live_vocabulary_size=VOCABULARY - number % 7)
            options["prompt"] = options["prompt"].tolist()
            refusal = self.refusal_of_both(options)
            if refusal is not None:  # names an option that is not built
                self.assertEqual(refusal[2], "NOT_IMPLEMENTED", refusal)
                continue
            remote, local = self.both(**options)
            for step in range(12):
                dtype = (numpy.float32, numpy.float16)[step % 2]
                mask = None
                if step % 3 == 0:
                    mask = generator.random(VOCABULARY) < 0.5
                    mask[:30:3] = True
                self.assert_same_step(remote, local, row(100 * number + step).astype(dtype), allowed=mask,
                                      draw_salt=step)

    def test_phrases_are_taken_back_and_bans_hold(self):
        for sequence, sampler in zip(self.both(seed=3, temperature=0.0, prompt=[1, 2],
                                               repetition_stop={"repeats": 2, "min_length": 0},
                                               banned_phrases=[{"tokens": [7, 9]}]), (self.client, self.sampler)):
            logits = row(1)
            logits[7], logits[9] = 90, 80
            self.assertFalse(sampler.draw(sequence, logits).repeats)
            drawn = sampler.draw(sequence, logits)
            self.assertTrue(drawn.repeats)
            self.assertIsNone(drawn.rewind)
            logits[9] = 100
            self.assertEqual(sampler.draw(sequence, logits).rewind, (3, [7, 9]))
            self.assertEqual((sequence.position, sequence.tokens), (3, [1, 2, 7]))
            logits[9] = 80
            self.assertNotIn(sampler.draw(sequence, logits, banned=[9]).token, (7, 9))
            sequence.truncate(2)
            drafts = sortition.Drafts([7, 9, 7])
            rows = numpy.stack([logits] * 4)
            rows[1, 9] = 120
            answer = sampler.step([sequence], [rows], drafts=[drafts], banned=[[[], [], [5], [7]]])[0]
            self.assertEqual((answer.tokens, answer.rewind), ([7, 9], (2, [7, 9])))
            self.assertEqual(sequence.tokens, [1, 2])
        with self.assertRaisesRegex(ValueError, r"banned\[0\]: 2 lists of tokens; the row takes 4"):
            self.sampler.step([self.both()[1]], [numpy.stack([row(1)] * 4)], drafts=[sortition.Drafts([1, 2, 3])],
                              banned=[[[], []]])

    def test_bans_of_rewinds_reach_a_process_that_continues(self):
        options = {"vocabulary_size": VOCABULARY, "seed": 3, "temperature": 0.0, "banned_phrases": [{"tokens": [7]}]}
        logits = row(1)
        logits[7] = 90
        first = self.client.open(prompt=[1, 2], **options)
        self.assertEqual(first.rewound, (0, []))
        self.assertEqual(self.client.draw(first, logits).rewind, (2, [7]))
        self.assertEqual(first.rewound, (1, [(2, 7)]))
        token = self.client.draw(first, logits).token
        with sortition.Client(self.server.serving["listen"]) as other:
            for rewound, drawn in ((first.rewound, token), ((0, ()), 7)):
                continued = other.open(prompt=[1, 2], rewound=rewound, **options)
                self.assertEqual(other.draw(continued, logits).token, drawn)

    def test_rewrites_and_forks(self):
        options = {"seed": 5, "repetition_penalty": 1.3, "prompt": list(range(40)), "frequency_penalty": 0.2}
        remote, local = self.both(**options)
        for number in range(6):
            self.assert_same_step(remote, local, row(number))
        for sequence in (remote, local):
            sequence.replace_last(17)
            sequence.append([3, 4])
        self.assert_same_step(remote, local, row(10))
        for sequence in (remote, local):
            sequence.truncate(20)  # into the prompt
        self.assert_same_step(remote, local, row(11))
        children = (self.client.fork(remote, position=15, seed=6, presence_penalty=1.0),
                    self.sampler.fork(local, position=15, seed=6, presence_penalty=1.0))
        for number in range(4):
            self.assert_same_step(*children, row(20 + number))
            self.assert_same_step(remote, local, row(30 + number))

    def test_rewrites_are_judged_alike(self):
        for sequence in self.both(seed=1, repetition_penalty=1.1):
            for rewrite in (lambda: sequence.replace_last(1), lambda: sequence.append([VOCABULARY]),
                         lambda: sequence.truncate(1)):
                with self.assertRaises(sortition.Error) as raised:
                    rewrite()
                self.assertEqual(raised.exception.code, "OUT_OF_RANGE")

    def test_same_refusals(self):
        for options in ({"top_p": 1.5}, {"temperature": -1.0}, {"logit_bias": [{"token": VOCABULARY, "bias": 1.0}]},
                        {"live_vocabulary_size": VOCABULARY + 1}, {"choice_index": 1 << 16}):
            errors = []
            for sampler in (self.client, self.sampler):
                with self.assertRaises(sortition.Error) as raised:
                    sampler.open(vocabulary_size=VOCABULARY, **options)
                errors.append(raised.exception.args)
            self.assertEqual(*errors)
            self.assertTrue(raised.exception.field, raised.exception)

    def test_a_bad_row_fails_alone(self):
        good = [row(1), row(2)]
        bad = row(3)
        bad[700] = numpy.nan
        results = []
        for sampler in (self.client, self.sampler):
            sequences = [sampler.open(vocabulary_size=VOCABULARY, seed=1) for _ in range(3)]
            drawn = sampler.step(sequences, [good[0], bad, good[1]])
            self.assertIsInstance(drawn[1], sortition.Error)
            self.assertEqual(drawn[1].reason, "LOGIT_NAN")
            self.assertIn("700", drawn[1].message)
            self.assertEqual([sequence.position for sequence in sequences], [1, 0, 1])
            results.append([drawn[0].token, drawn[2].token])
        self.assertEqual(*results)

    def test_tokens_of_a_batch_are_those_of_a_step(self):
        requests = [*OPTIONS, {"temperature": 0.0}]
        logits = numpy.stack([row(number) for number in range(len(requests))])
        logits[2, 5] = float("nan")
        masks = [None] * len(requests)
        masks[1] = numpy.arange(VOCABULARY) < 3
        for sampler in (self.client, self.sampler):
            batches = [[sampler.open(vocabulary_size=VOCABULARY, seed=9, **own) for own in requests] for _ in range(2)]
            draws = sampler.step(batches[0], logits, allowed=masks)
            drawn = sampler.draw_tokens(batches[1], logits, allowed=masks)
            self.assertEqual(drawn.tokens.dtype, numpy.int32)
            self.assertEqual(drawn.tokens.tolist(), [getattr(draw, "token", -1) for draw in draws])
            failed = {place: draw for place, draw in enumerate(draws) if isinstance(draw, sortition.Error)}
            self.assertEqual({place: error.args for place, error in drawn.errors.items()},
                             {place: error.args for place, error in failed.items()})
            self.assertEqual(list(drawn.errors), [2])

    def test_unknown_parameters(self):
        for sampler in (self.client, self.sampler):
            with self.assertRaisesRegex(TypeError, "temprature"):
                sampler.open(vocabulary_size=VOCABULARY, temprature=1)
            with self.assertRaisesRegex(TypeError, "temperature"):
                sampler.open(vocabulary_size=VOCABULARY, temperature="hot")

    def test_threads_sample_at_once(self):
        logits = [row(number) for number in range(8)]

        def run(results):
            sequence = self.sampler.open(vocabulary_size=VOCABULARY, seed=3, repetition_penalty=1.1)
            results.append([self.sampler.draw(sequence, logits[i % 8]).token for i in range(50)])

        results = []
        threads = [threading.Thread(target=run, args=(results,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(results), 8)
        self.assertEqual(results, [results[0]] * 8)

    def test_view_of_a_step(self):
        options = {"seed": 11, "temperature": 0.9, "top_k": 5, "processed_logprobs": {"top": 8}}
        for sampler in (self.client, self.sampler):
            sequence = sampler.open(vocabulary_size=VOCABULARY, **options)
            view = sortition.StepView(sampler.draw(sequence, row(9)), lambda token: f"<{token}>")
            self.assertEqual(len(view.candidates), 5)
            self.assertAlmostEqual(sum(candidate.probability for candidate in view.candidates), 1, places=5)
            self.assertEqual([candidate.token for candidate in view.candidates if candidate.chosen], [view.draw.token])
            self.assertIn(f"&lt;{view.draw.token}&gt;", view._repr_html_())
            self.assertIn("*", repr(view))
            with self.assertRaisesRegex(ValueError, "processed_logprobs"):
                sortition.StepView(sampler.draw(sampler.open(vocabulary_size=VOCABULARY), row(9)))


if __name__ == "__main__":
    unittest.main()
