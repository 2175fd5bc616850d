"""Speculation under vLLM's runner generation 2: texts, log probabilities and masks are those without drafts."""

import os
import random
import types
import unittest
from unittest import mock

import vllm_runner_2_test as plain  # sets vLLM up, so it comes first

import numpy
import torch
from sortition import vllm_common as common
from sortition import vllm_runner_2
from vllm import SamplingParams
from vllm.v1.worker.gpu.input_batch import InputBatch, post_update
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

STEPS = 3  # drafts of a step
THINK, ANSWER = [5, 6], [8, 9]
REASONING = types.SimpleNamespace(reasoning_start_token_ids=THINK, reasoning_end_token_ids=ANSWER,
                                  natural_reasoning_end_token_ids=ANSWER)
OPTIONS = {
    "greedy": {"temperature": 0.0, "repetition_penalty": 1.7, "frequency_penalty": 0.9},
    "full": {"temperature": 1.1, "top_k": 30, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.3, "seed": 4},
    "scored": {"temperature": 0.9, "presence_penalty": 0.7, "seed": 5, "logprobs": 3},
    "words": {"temperature": 0.9, "seed": 6, "min_tokens": 12, "stop_token_ids": [3, 4],
              "_bad_words_token_ids": [[1, 2], [7]]},
    "bias": {"temperature": 1.0, "seed": 7, "logit_bias": {11: 4.0}, "allowed_token_ids": list(range(5, 90))},
    "all": {"temperature": 1.0, "seed": 8, "logprobs": -1},
    "thinks": {"temperature": 1.0, "seed": 9, "thinking_token_budget": 4},
}


def speculation(**options):
    return types.SimpleNamespace(**{
        "num_speculative_tokens": STEPS, "rejection_sample_method": "standard", "enable_adaptive_verification": False,
        "fly_window_size": None, "fly_entropy_threshold": None, "fly_entropy_top_k": None, **options})


class Drafting(plain.Runner):
    """vLLM's runner around its samplers, when a drafter has proposed tokens."""

    def __init__(self, sampler_class, rejection_class, **options):
        super().__init__(sampler_class, speculative_config=speculation(), **options)
        self.rejection = rejection_class(self.sampler, speculation(), plain.CPU)

    def verify(self, drafts, invalid=(), poisoned=(), chunked=(), draft_logits=None):
        """`drafts` are tokens by request's name. Drafts in `invalid`, as (name, index), break a grammar.

        `draft_logits`: of a drafter that samples, by slot.
        """
        names = list(drafts)
        batch = self.batch(names, chunked)
        lengths = [int(length) for length in batch.seq_lens]
        counts = [1 + len(own) for own in drafts.values()]
        rows, places, tokens = [], [], []
        for name, length, own in zip(names, lengths, drafts.values()):
            slot = self.states.req_id_to_index[name]
            text = self.states.all_token_ids.gpu[slot, :length].tolist()
            tokens += [text[-1], *own]
            places += range(1 + len(own))
            for place in range(1 + len(own)):
                row = plain.logits_of(name, sum([*text, *own[:place]]) * 1000 + length + place)
                rows.append(row + (float("nan") if name in poisoned else 0.0))
        batch.num_draft_tokens = sum(counts) - len(counts)
        batch.expanded_idx_mapping = batch.idx_mapping.repeat_interleave(torch.tensor(counts))
        batch.expanded_local_pos = torch.tensor(places, dtype=torch.int32)
        batch.cu_num_logits_np = numpy.cumsum([0, *counts]).astype(numpy.int32)
        batch.cu_num_logits = torch.from_numpy(batch.cu_num_logits_np)
        batch.seq_lens = torch.tensor([length + len(own) for length, own in zip(lengths, drafts.values())],
                                      dtype=torch.int32)
        batch.seq_lens_cpu_upper_bound = batch.seq_lens.clone()
        batch.input_ids = torch.tensor(tokens, dtype=torch.int32)
        batch.positions = torch.tensor([length - 1 + place for length, count in zip(lengths, counts)
                                        for place in range(count)])
        batch.logits_indices = torch.arange(len(tokens))
        starts = dict(zip(names, batch.cu_num_logits_np.tolist()))
        bad = torch.zeros(len(tokens), dtype=torch.bool)
        bad[[starts[name] + 1 + index for name, index in invalid]] = True
        sampler = self.rejection if batch.num_draft_tokens else self.sampler
        output = sampler(torch.stack(rows), batch, *((draft_logits, bad) if batch.num_draft_tokens else ()))
        post_update(batch.idx_mapping, self.states.num_computed_tokens.gpu, self.states.last_sampled_tokens,
                    self.sampler.penalties_state.output_bin_counts, output.sampled_token_ids, output.num_sampled,
                    output.num_rejected, None, self.states.all_token_ids.gpu, self.states.total_len.gpu)
        return output


class Drafts(unittest.TestCase):
    def setUp(self):
        patch = mock.patch.dict(os.environ, {common.SETTING: "in_process"})
        patch.start()
        self.addCleanup(patch.stop)

    def runner(self, options, **more):
        made = Drafting(vllm_runner_2.sampler_class(), vllm_runner_2.rejection_sampler_class(),
                        reasoning_config=REASONING, **more)
        for name, own in options.items():
            made.add(name, [3, 7, *(THINK if name == "thinks" else [9])], SamplingParams(**own))
        return made

    def write(self, names, tokens, drafts_of, **more):
        """Returns the runner after `tokens` tokens of each request, and its outputs by step with their requests."""
        options = {name: OPTIONS[name] for name in names}
        made, outputs = self.runner(options, **more), []
        while True:
            short = [name for name in names if len(made.text(name)) < tokens]
            if not short:
                return made, outputs
            outputs.append((short, made.verify({name: drafts_of(name, made.text(name)) for name in short})))

    def guesses(self, expected):
        """Returns a drafter that is right for some tokens, and then wrong."""
        chance = random.Random(3)

        def drafts_of(name, text):
            own = expected.text(name)[len(text):len(text) + chance.randrange(STEPS + 1)]
            return own[:-1] + [(own[-1] + chance.choice((0, 1))) % plain.VOCABULARY] if own else []

        return drafts_of

    def test_texts_are_those_without_drafts(self):
        names = [name for name in OPTIONS if name != "all"][:plain.SLOTS]
        for group in (names, ["all", "thinks"]):
            expected, _ = self.write(group, 14, lambda *_: [])
            found, outputs = self.write(group, 14, self.guesses(expected))
            for name in group:
                self.assertEqual(found.text(name)[:14], expected.text(name)[:14], name)
            accepted = sum(int(output.num_sampled.sum()) - len(of) for of, output in outputs)
            self.assertGreater(accepted, 10)
            self.assertGreater(sum(int(output.num_rejected.sum()) for _, output in outputs), 2)

    def test_greedy_verification_is_vllms(self):
        drafts = [[4, 5, 6], [1]]
        outputs = []
        for kinds in ((Sampler, RejectionSampler),
                      (vllm_runner_2.sampler_class(), vllm_runner_2.rejection_sampler_class())):
            runner = Drafting(*kinds)
            for name in ("a", "b"):
                runner.add(name, [3, 7], SamplingParams(temperature=0.0, logprobs=2))
            runner.verify({"a": [], "b": []})
            best = [int(plain.logits_of("a", sum([3, 7, *runner.text("a")]) * 1000 + 3).argmax())]
            outputs.append(runner.verify({"a": best + drafts[0][1:], "b": drafts[1]}))
        theirs, ours = outputs
        for field in ("num_sampled", "num_rejected"):
            self.assertEqual(getattr(ours, field).tolist(), getattr(theirs, field).tolist(), field)
            self.assertEqual(getattr(ours, field).dtype, getattr(theirs, field).dtype, field)
        self.assertEqual(ours.sampled_token_ids.shape, theirs.sampled_token_ids.shape)
        self.assertEqual(ours.sampled_token_ids.dtype, theirs.sampled_token_ids.dtype)
        for row, count in enumerate(theirs.num_sampled.tolist()):
            self.assertEqual(ours.sampled_token_ids[row, :count].tolist(),
                             theirs.sampled_token_ids[row, :count].tolist())
        self.assertEqual(ours.logprobs_tensors.cu_num_generated_tokens, theirs.logprobs_tensors.cu_num_generated_tokens)
        start = ours.logprobs_tensors.cu_num_generated_tokens
        for row, count in enumerate(theirs.num_sampled.tolist()):
            for place in range(start[row], start[row] + count):
                torch.testing.assert_close(ours.logprobs_tensors.logprobs[place],
                                           theirs.logprobs_tensors.logprobs[place], atol=1e-5, rtol=0)

    def test_logprobs_are_those_without_drafts(self):
        for name in ("scored", "all"):
            expected, outputs = self.write([name], 10, lambda *_: [])
            rows = [tuple(part[0].tolist() for part in output.logprobs_tensors[:3]) for _, output in outputs]
            _, drafted = self.write([name], 10, self.guesses(expected))
            found = [tuple(part[place].tolist() for part in output.logprobs_tensors[:3])
                     for _, output in drafted for place in range(int(output.num_sampled[0]))]
            self.assertEqual(found[:10], rows[:10])

    def test_masks_are_those_without_drafts(self):
        expected, outputs = self.write(["full"], 10, lambda *_: [], return_sampling_mask=True)
        rows = [output.sampling_mask_tensors.tolists(output.num_sampled.numpy()).token_ids.tolist()
                for _, output in outputs]
        _, drafted = self.write(["full"], 10, self.guesses(expected), return_sampling_mask=True)
        found = []
        for _, output in drafted:
            count = int(output.num_sampled[0])
            lists = output.sampling_mask_tensors.tolists(output.num_sampled.numpy()).slice_request(0, count)
            offsets = [0, len(lists.token_ids)] if lists.offsets is None else lists.offsets.tolist()
            found += [lists.token_ids[start:end].tolist() for start, end in zip(offsets, offsets[1:])]
        self.assertEqual(found[:10], rows[:10])

    def test_masks_of_batches_have_their_requests_rows(self):
        """One request has more prompt to come, and one fails: neither takes a mask of its neighbours."""
        runner = self.runner({"full": OPTIONS["full"], "a": {"seed": 1}, "b": {"seed": 2, "top_k": 5}},
                             return_sampling_mask=True)
        runner.verify({"full": [], "b": []})
        output = runner.verify({"full": [1, 2], "a": [], "b": [3]}, chunked=["a"], poisoned=["full"])
        self.assertEqual(output.num_sampled.tolist()[:2], [1, 0])
        counts = output.num_sampled.numpy()
        lists = output.sampling_mask_tensors.tolists(counts)
        self.assertEqual(len(lists.slice_request(0, 1).token_ids), 0)
        self.assertEqual(len(lists.slice_request(2, 1).token_ids), 5)

    def test_sampled_drafts_are_verified_with_their_probabilities(self):
        """The drafter knows the first 150 tokens alone. Greedy requests are verified without its probabilities."""
        drafts, width = {"full": [1, 2], "greedy": [3]}, 150
        drafter = torch.randn((plain.SLOTS, STEPS, width), generator=torch.Generator().manual_seed(2)) * 2
        for method, mode in (("standard", "rejection"), ("block", "block")):
            runner = self.runner({name: OPTIONS[name] for name in drafts})
            runner.rejection = vllm_runner_2.rejection_sampler_class()(
                runner.sampler, speculation(rejection_sample_method=method), plain.CPU)
            runner.verify({name: [] for name in drafts})
            first, sampler = {name: runner.text(name) for name in drafts}, runner.sampler.drawer._sampler
            with mock.patch.object(sampler, "step", wraps=sampler.step) as step:
                runner.verify(drafts, draft_logits=drafter)
            tasks = step.call_args.kwargs["drafts"]
            self.assertEqual([task.mode for task in tasks], [mode, "coupled"])
            slot = runner.states.req_id_to_index["full"]
            expected = torch.softmax(drafter[slot, :2] / OPTIONS["full"]["temperature"], -1)
            torch.testing.assert_close(tasks[0].probabilities[:, :width], expected)
            self.assertEqual(float(tasks[0].probabilities[:, width:].sum()), 0.0)
            self.assertTrue(all(len(runner.text(name)) > len(first[name]) for name in drafts))

    def test_a_grammar_ends_drafts(self):
        expected, _ = self.write(["full"], 6, lambda *_: [])
        runner = self.runner({"full": OPTIONS["full"]})
        runner.verify({"full": []})
        output = runner.verify({"full": expected.text("full")[1:4]}, invalid=[("full", 1)])
        self.assertEqual((int(output.num_sampled[0]), int(output.num_rejected[0])), (2, 2))
        self.assertEqual(runner.text("full"), expected.text("full")[:3])

    def test_placeholders_are_no_drafts(self):
        """A first step has only placeholders where drafts are."""
        expected, _ = self.write(["full"], 2, lambda *_: [])
        runner = self.runner({"full": OPTIONS["full"]})
        output = runner.verify({"full": [expected.text("full")[0], 1]})
        self.assertEqual(int(output.num_sampled[0]), 1)

    def test_a_bad_row_fails_alone(self):
        alone, runner = (self.runner({name: OPTIONS[name] for name in ("full", "scored")}) for _ in range(2))
        alone.verify({"full": [1]})
        runner.verify({"full": [1], "scored": [1, 2]}, poisoned=["scored"])
        self.assertEqual(runner.text("full"), alone.text("full"))
        self.assertEqual(list(runner.sampler.failed), ["scored"])

    def test_warming_up_is_vllms(self):
        runner = self.runner({})
        batch = InputBatch.make_dummy(2, 2, runner.buffers)
        logits = torch.stack([plain.logits_of("x", row) for row in range(2)])
        self.assertEqual(runner.rejection(logits, batch).sampled_token_ids.shape, (2, STEPS + 1))

    def test_other_verification_is_refused_at_start(self):
        for options, name in (({"num_speculative_tokens": 65}, "num_speculative_tokens"),
                              ({"rejection_sample_method": "synthetic"}, "synthetic"),
                              ({"rejection_sample_method": "fly"}, "fly"),
                              ({"enable_adaptive_verification": True}, "enable_adaptive_verification")):
            with self.assertRaisesRegex(NotImplementedError, name):
                vllm_runner_2.sampler_class()(vllm_config=plain.config(speculative_config=speculation(**options)))


if __name__ == "__main__":
    unittest.main()
