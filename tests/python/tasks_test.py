"""Drafts and scores: the same bits in process, through clients and over asyncio, and clear errors."""

import asyncio
import unittest

import numpy
import sortition
import sortition.local
from sortition.v1.sampling_pb2 import ScoreResult, VerifyResult

from both import BothTest
from rows import OPTIONS, VOCABULARY, row, scale, serve


class TasksTest(BothTest):
    def assert_same_task(self, pair, logits, kind, **options):
        """Returns the result of a step of one row. Its message is of this kind unless it is an Error."""
        answers = []
        for sampler, sequence in zip((self.client, self.sampler), pair):
            result = sampler.step([sequence], [logits], **options)[0]
            if isinstance(result, sortition.Error):
                answers.append(result.args)
                continue
            message = kind.FromString(result.to_bytes())
            message.ClearField("checkpoint")  # in process the state stays with the sequence
            answers.append(message)
        self.assertEqual(*answers)
        self.assertEqual(*[(sequence.position, sequence.tokens) for sequence in pair])
        return result

    def test_places_in_the_race_and_ids_by_position(self):
        pair = self.both(seed=3, top_k=9, raw_logprobs={}, kept_set={"tokens": True})
        logits = numpy.stack([row(i) for i in range(3)])
        scored = sortition.Scored([4, 5, 6], requested=[[1, 2], [], [3]], race=True)
        result = self.assert_same_task(pair, logits, ScoreResult, scored=[scored])
        self.assertEqual([len(position.requested_logprobs) for position in result.raw], [2, 0, 1])
        # The first token of the race is the one that is drawn.
        kept = result.kept_tokens[0]
        scored = [sortition.Scored([token], race=True) for token in kept]
        places = [self.client.step([pair[0]], [logits[:1]], scored=[one])[0].race[0] for one in scored]
        self.assertEqual(sorted(rank for rank, _ in places), list(range(1, 10)))
        first = kept[[rank for rank, _ in places].index(1)]
        self.assertEqual(self.client.draw(pair[0], logits[0]).token, first)
        self.assertEqual(min(margin for _, margin in places), 0)

    def test_drafts_and_scores_have_the_bits_of_the_service(self):
        generator = numpy.random.default_rng(7)
        accepted, refused = 0, 0
        for number, options in enumerate(OPTIONS + ({"temperature": 0.9, "adaptive_p": {"target": 0.4}},)):
            pair = self.both(seed=number, prompt=[1, 2, 3, 1], **options)
            for step in range(scale(8)):
                logits = numpy.stack([row(1000 * number + 10 * step + i) for i in range(4)])
                tokens = numpy.where(generator.random(3) < 0.7, logits[:3].argmax(1), generator.integers(0, 990, 3))
                mode = ("coupled", "rejection")[step % 2]
                if options.get("temperature") == 0 and step % 3 == 0:
                    mode = "greedy"
                dense, sparse, parents = None, (), None
                if mode == "rejection" and step % 4 == 1:
                    dense = numpy.full((3, VOCABULARY), 0.5 / VOCABULARY, (numpy.float32, numpy.float16)[step % 8 // 4])
                    dense[numpy.arange(3), tokens] += 0.5
                elif mode == "rejection" and step % 4 == 3:
                    sparse = [{int(token): 0.75, 995: 0.25} for token in tokens]
                    if options.get("temperature") != 0 and not {"mirostat", "adaptive_p"} & set(options):
                        mode = "block"
                elif step % 4 == 2:
                    parents = [-1, 0, -1] if tokens[2] != tokens[0] else [-1, 0, 1]
                sampling = None
                if mode == "rejection" and step % 8 == 5:  # two places of the tree have drafts
                    parents = [-1, 0, -1] if tokens[2] != tokens[0] else [-1, 0, 0]
                    sampling = ("with_replacement", "without_replacement")[int(tokens[2] != tokens[0])]
                    dense = dense[:2]
                    dense[:, tokens] += 0.125
                    dense /= dense.sum(1, keepdims=True)
                mask = generator.random((4, VOCABULARY)) < 0.9 if step % 3 == 0 else None
                result = self.assert_same_task(
                    pair, logits.astype((numpy.float32, numpy.float16)[step % 2]), VerifyResult,
                    drafts=[sortition.Drafts(tokens, mode, parents, dense, sparse, return_probabilities=step % 3 == 1,
                                             sampling=sampling)],
                    allowed=None if mask is None else [mask], draw_salts=[step])
                if isinstance(result, sortition.Verify):
                    accepted += result.accepted
                    self.assertEqual(len(result.tokens), result.accepted + 1)
                    if step % 3 == 1:
                        self.assertEqual(result.probabilities.shape, (len(result.tokens), VOCABULARY))
                        numpy.testing.assert_allclose(result.probabilities.sum(1), 1, atol=1e-5)
                refused += isinstance(result, sortition.Error)
                result = self.assert_same_task(pair, logits, ScoreResult, scored=[tokens.tolist() + [5]],
                                                allowed=None if mask is None else [mask[0]])
                refused += isinstance(result, sortition.Error)
        self.assertGreater(accepted, 0)
        self.assertEqual(refused, 0)

    def test_scores_and_their_parts(self):
        options = {"raw_logprobs": {"top": 2}, "processed_logprobs": {}, "entropy": True, "top_k": 7,
                   "kept_set": {"count": True, "tokens": True}}
        logits = numpy.stack([row(number) for number in range(3)])
        for sampler, sequence in zip((self.client, self.sampler), self.both(seed=1, **options)):
            score = sampler.score(sequence, logits, logits.argmax(1))
            self.assertEqual(score, sampler.score(sequence, logits, logits.argmax(1)))
            self.assertEqual([part.rank for part in score.raw], [1, 1, 1])
            self.assertEqual([len(part.top_tokens) for part in score.raw], [2, 2, 2])
            self.assertEqual(score.kept_count, [7, 7, 7])
            self.assertEqual([len(kept) for kept in score.kept_tokens], [7, 7, 7])
            self.assertEqual(len(score.entropy), 3)
            self.assertEqual(sequence.position, 0)

    def test_tempered_logprobs_and_kept_mass(self):
        options = {"temperature": 0.7, "top_p": 0.8, "min_p": 0.01, "logit_bias": [{"token": 9, "bias": 2.0}],
                   "banned_token_ids": [4], "tempered_logprobs": {"top": 2}, "kept_log_mass": True,
                   "processed_logprobs": {}, "kept_set": {"tokens": True}}
        logits = row(5).astype(numpy.float64)
        tempered = logits.copy()
        tempered[9] += 2
        tempered[4] = -numpy.inf
        tempered = tempered / 0.7 - numpy.logaddexp.reduce(tempered / 0.7)
        order = numpy.argsort(-tempered, kind="stable")
        for sampler, sequence in zip((self.client, self.sampler), self.both(seed=1, **options)):
            draw = sampler.step([sequence], row(5)[None])[0]
            self.assertAlmostEqual(draw.tempered.logprob, tempered[draw.token], places=5)
            self.assertEqual(draw.tempered.top_tokens, order[:2].tolist())
            mass = numpy.exp(tempered[draw.kept_tokens]).sum()
            self.assertAlmostEqual(draw.kept_log_mass, numpy.log(mass), places=5)
            self.assertAlmostEqual(draw.tempered.logprob - draw.processed.logprob, draw.kept_log_mass, places=5)
            # The least likely token is filtered out, and has a tempered logprob all the same.
            last = int(order[-2])
            score = sampler.score(sequence, row(5)[None], [last])
            self.assertEqual(score.processed[0].rank, 0)
            self.assertAlmostEqual(score.tempered[0].logprob, tempered[last], places=4)
            self.assertEqual(len(score.kept_log_mass), 1)

    def test_drafts_are_judged_alike(self):
        logits = numpy.stack([row(number) for number in range(3)])
        even = numpy.full((2, VOCABULARY), 1 / VOCABULARY, numpy.float32)
        for drafts in (sortition.Drafts([1, VOCABULARY]), sortition.Drafts([1, 2], "greedy"),
                       sortition.Drafts([1, 1], parents=[-1, -1]), sortition.Drafts([1, 2], parents=[0, -1]),
                       sortition.Drafts([1, 2], probabilities=even),
                       sortition.Drafts([1, 2], "rejection", probabilities=even * 2),
                       sortition.Drafts([1, 2], "rejection", sparse_probabilities=[{1: 1.0}])):
            errors = []
            for sampler, sequence in zip((self.client, self.sampler), self.both(seed=1, temperature=0.7)):
                with self.assertRaises(sortition.Error) as raised:
                    sampler.verify(sequence, logits, drafts)
                errors.append(raised.exception.args)
            self.assertEqual(*errors)
            self.assertTrue(raised.exception.field, raised.exception)

    def test_draws_drafts_and_scores_share_a_step(self):
        logits = numpy.stack([row(number) for number in range(6)])
        results = []
        fallback = sortition.Client(fallback="in_process", in_process_threads=1)
        self.addCleanup(fallback.close)
        for sampler in (self.client, self.sampler, fallback):
            sequences = [sampler.open(vocabulary_size=VOCABULARY, seed=i, raw_logprobs={}) for i in range(3)]
            tasks = {"drafts": [None, sortition.Drafts(logits[1:3].argmax(1)), None], "scored": [None, None, [1, 2]]}
            draw, verify, score = sampler.step(sequences, logits, **tasks)
            self.assertEqual([type(result) for result in (draw, verify, score)],
                             [sortition.Draw, sortition.Verify, sortition.Score])
            self.assertEqual([sequence.position for sequence in sequences], [1, len(verify.tokens), 0])
            results.append([result.to_bytes() for result in (draw, verify, score)])
            broken = logits.copy()
            broken[5, 3] = numpy.nan
            self.assertEqual(sampler.step(sequences, broken, **tasks)[2].field, "step.rows[2]")
        self.assertEqual(results, [results[0]] * 3)

    def test_one_row_may_be_a_matrix_of_one(self):
        logits, mask = row(1)[None], numpy.ones((1, VOCABULARY), bool)
        mask[0, int(logits.argmax())] = False
        for options in ({"drafts": [None, sortition.Drafts([])]}, {"scored": [None, [5]]}):
            for masks in ([None, mask], [mask[0], mask[0]], [mask, mask]):
                answers = []
                for sampler, pair in zip((self.client, self.sampler), zip(*(self.both(seed=i) for i in range(2)))):
                    for rows in ([row(1), logits], [logits, logits], [row(1), row(1)]):
                        rows_done = sampler.step(list(pair), rows, allowed=masks, **options)
                        for sequence in pair:
                            sequence.truncate(0)
                        answers.append([getattr(result, "args", result) for result in rows_done])
                for answer in answers[1:]:
                    self.assertEqual(answer, answers[0])

    def test_asyncio(self):
        logits = numpy.stack([row(number) for number in range(3)])
        drafts = sortition.Drafts(logits[:2].argmax(1), "rejection", probabilities=numpy.eye(VOCABULARY, dtype="f4")[
            logits[:2].argmax(1)])

        async def run():
            async with await sortition.AsyncClient.connect(self.server.serving["listen"]) as client:
                sequence = await client.open(vocabulary_size=VOCABULARY, seed=3, raw_logprobs={})
                return (await client.score(sequence, logits, [4, 5, 6]), await client.verify(sequence, logits, drafts))

        local = self.sampler.open(vocabulary_size=VOCABULARY, seed=3, raw_logprobs={})
        self.assertEqual(asyncio.run(run()),
                         (self.sampler.score(local, logits, [4, 5, 6]), self.sampler.verify(local, logits, drafts)))

    def test_wrong_keywords_are_refused(self):
        logits, drafts = numpy.stack([row(1), row(2)]), sortition.Drafts([1])
        sequence, _ = self.both(seed=1)
        tasks = sortition.AsyncClient(self.client)
        options = {"drafts": [drafts], "scored": [[1, 2]], "draw_salts": [5], "draw_salt": 7, "banned": [3],
                   "priority": 1, "traceparent": "", "ready": None, "results": None, "temperature": 0.5}
        for name, given, known in (("draw", [logits[0]], {"draw_salt", "banned"}),
                                   ("verify", [logits, drafts], {"draw_salt"}), ("score", [logits, [1, 2]], set())):
            for option in sorted(set(options) - known):
                for client in (self.client, tasks):
                    with self.subTest(f"{type(client).__name__}.{name}({option})"):
                        with self.assertRaisesRegex(TypeError, option):
                            answer = getattr(client, name)(sequence, *given, **{option: options[option]})
                            if client is tasks:
                                asyncio.run(answer)
        for option in ("results", "draw_salt"):
            with self.subTest(f"AsyncClient.step({option})"), self.assertRaisesRegex(TypeError, option):
                asyncio.run(tasks.step([sequence], logits[:1], **{option: None}))
        self.assertEqual(sequence.position, 0)

    def test_invalid_arguments_are_refused_first(self):
        logits = numpy.stack([row(number) for number in range(6)])
        good = sortition.Drafts([1, 2])
        even = numpy.full((2, VOCABULARY), 1 / VOCABULARY, numpy.float32)
        mask = numpy.ones((3, VOCABULARY), bool)

        def drafts(**options):
            return {"drafts": [sortition.Drafts([1, 2], "rejection", **options)]}

        cases = (
            (logits[:2], {"drafts": [good]}, ValueError, r"shape \(2, 1000\) for 1 sequences, which take 3 rows"),
            (logits[::2], {"drafts": [good]}, ValueError, "8000 bytes apart"),
            (logits[0], {"drafts": [good]}, ValueError, "shape"),
            ([logits[0]], {"scored": [[1, 2]]}, ValueError, "there are 2 rows"),
            ([logits[::2]], {"drafts": [good]}, ValueError, "8000 bytes apart"),
            (logits[:3], {"drafts": [good, None]}, ValueError, "drafts: 2 entries for 1 sequences"),
            (logits[:3], {"scored": [[]]}, ValueError, "at least one"),
            (logits[:3], {"scored": [[-1]]}, TypeError, r"scored\[0\]: a list of token ids"),
            (logits[:3], {"drafts": [good], "scored": [[1]]}, ValueError, "drafts, too"),
            (logits[:3], {"drafts": [sortition.Drafts([1, 2], "hopeful")]}, ValueError, "coupled"),
            (logits[:3], {"drafts": [sortition.Drafts([1, 2], parents=[-1])]}, ValueError, "parents"),
            (logits[:3], {"drafts": [sortition.Drafts(["a", 2])]}, TypeError, r"drafts\[0\].tokens"),
            (logits[:3], drafts(probabilities=even[:1]), ValueError, "there are 2 rows"),
            (logits[:3], drafts(probabilities=even[:, :-1].copy()), ValueError, "rows of 999 probabilities"),
            (logits[:3], drafts(probabilities=even.astype(numpy.float64)), TypeError, "dtype float64"),
            (logits[:3], drafts(sparse_probabilities=[{"x": 1.0}, {}]), TypeError, "sparse_probabilities"),
            (logits[:3], {"drafts": [good], "allowed": [mask[0]]}, ValueError, "there are 3 rows"),
            (logits[:3], {"drafts": [good], "allowed": [mask[:, :-1]]}, ValueError, "999 booleans"),
        )
        for number, (rows, options, kind, text) in enumerate(cases):
            for sampler, sequence in zip((self.client, self.sampler), self.both(seed=1)):
                with self.subTest(f"{number} {text}"):
                    with self.assertRaisesRegex(kind, text):
                        sampler.step([sequence], rows, **options)
                    self.assertEqual(sequence.position, 0)


if __name__ == "__main__":
    unittest.main()
