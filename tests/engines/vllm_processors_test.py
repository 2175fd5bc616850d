"""Other logits processors beside the vLLM plugin: they run first in both generations, with vLLM's own interfaces.

One is a watermark: it raises the half of the vocabulary that the token before names.
"""

import os
import types
import unittest
from unittest import mock

import vllm_runner_2_test as second  # sets what has to be set before vLLM is imported
import torch
import sortition
import sortition.local
from sortition import vllm as plugin
from sortition import vllm_common as common
from green import Cut, Green1, Green2, is_green
from sortition import vllm_engine, vllm_options, vllm_runner_2
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker.gpu.sample.sampler import Sampler as Sampler2

VOCABULARY = second.VOCABULARY


def green2(states):
    return Green2(None, states)


class Processors(unittest.TestCase):
    def setUp(self):
        patch = mock.patch.dict(os.environ, {common.SETTING: "in_process"})
        patch.start()
        self.addCleanup(patch.stop)

    # --- generation 1

    def step(self, sampler, params, batch, processors=()):
        tracker = plugin.RequestTracker(None, "cpu", False)
        every = [tracker, *(made() for made in processors)]
        for processor in every:
            processor.update_state(BatchUpdate(batch_size=len(params), removed=[], moved=[], added=[
                (row, one, [1, 2 + row], []) for row, one in enumerate(params)]))
        ones, greedy = torch.ones(len(params)), all(one.temperature == 0 for one in params)
        wanted = [one.logprobs for one in params if one.logprobs is not None]
        named = {row: one.logprob_token_ids for row, one in enumerate(params) if one.logprob_token_ids}
        metadata = SamplingMetadata(
            temperature=None if greedy else torch.tensor([one.temperature for one in params]), all_greedy=greedy,
            all_random=not greedy, top_p=None, top_k=None, generators={}, no_penalties=True, prompt_token_ids=None,
            max_num_logprobs=max(wanted) if wanted else None, logprob_token_ids=named or None,
            frequency_penalties=0 * ones, presence_penalties=0 * ones, repetition_penalties=ones,
            output_token_ids=[[] for _ in params], allowed_token_ids_mask=None, bad_words_token_ids={},
            logitsprocs=LogitsProcessors(every if isinstance(sampler, plugin.SortitionSampler) else every[1:]))
        given = batch.clone()
        made = sampler(given, metadata)
        self.assertTrue(torch.equal(given, batch), "the logits belong to the runner")
        return made

    def test_greedy_rows_and_logprobs_are_vllms(self):
        batch = torch.stack([second.logits_of(name, 0) for name in "abc"]).bfloat16()
        for mode in ("raw_logprobs", "processed_logprobs"):
            for wanted in ({"logprobs": 4}, {"logprobs": VOCABULARY}, {"logprobs": 3, "logprob_token_ids": [3, 9, 7]}):
                if mode == "processed_logprobs" and wanted != {"logprobs": 4}:
                    continue
                params = [SamplingParams(temperature=0.0, extra_args={"green": -30.0}, **wanted) for _ in range(2)]
                params.append(SamplingParams(temperature=0.0, **wanted))
                theirs, ours = (self.step(made(mode), params, batch, [Green1]) for made in (
                    Sampler, plugin.SortitionSampler))
                self.assertEqual(ours.sampled_token_ids.tolist(), theirs.sampled_token_ids.tolist())
                self.assertNotEqual(ours.sampled_token_ids[:, 0].tolist(), batch.float().argmax(-1).tolist())
                if mode == "processed_logprobs":  # a greedy row's processed distribution is its token here
                    continue
                for found, expected in zip(ours.logprobs_tensors, theirs.logprobs_tensors):
                    if found is not None:
                        torch.testing.assert_close(found, expected, check_dtype=False)

    def test_draws_are_the_laws_of_the_changed_logits(self):
        batch = torch.stack([second.logits_of(name, 0) for name in "abc"])
        params = [SamplingParams(temperature=1.5, seed=row, extra_args={"green": 2.0}) for row in range(3)]
        made = self.step(plugin.SortitionSampler(), params, batch, [Cut, Green1])
        raised = batch + 2.0 * is_green(torch.tensor([2, 3, 4]), VOCABULARY)
        changed = raised.index_fill(1, torch.tensor([9]), -float("inf"))
        law = sortition.local.Sampler()
        expected = [law.draw(law.open(vocabulary_size=VOCABULARY, prompt=[1, 2 + row], seed=row, temperature=1.5),
                             changed[row]).token for row in range(3)]
        self.assertEqual(made.sampled_token_ids[:, 0].tolist(), expected)

    # --- generation 2

    def test_greedy_texts_and_logprobs_are_vllms_in_generation_2(self):
        runners = [second.Runner(made, processors=[green2]) for made in (Sampler2, vllm_runner_2.sampler_class())]
        for runner in runners:
            for name, more in (("a", {"extra_args": {"green": 6.0}, "logprobs": 3}), ("b", {"logprobs": 2}),
                               ("c", {"extra_args": {"green": 3.0}, "frequency_penalty": 0.7})):
                runner.add(name, [3, 7], SamplingParams(temperature=0.0, **more))
        for step in range(8):
            names = ["a", "b", "c"] if step % 2 else ["c", "a"]
            theirs, ours = (runner.step(names) for runner in runners)
            rows = [names.index(name) for name in names if name != "c"]
            for found, expected in zip(ours.logprobs_tensors[:3], theirs.logprobs_tensors[:3]):
                torch.testing.assert_close(found[rows], expected[rows], check_dtype=False)
        for name in "abc":
            self.assertEqual(runners[1].text(name), runners[0].text(name))
        self.assertNotEqual(runners[1].text("a")[0], int(second.logits_of("a", 2).argmax()))

    def test_processors_without_a_request_cost_nothing(self):
        runner = second.Runner(vllm_runner_2.sampler_class(), processors=[green2])
        processor = runner.sampler.others.processors[0]
        runner.add("a", [3], SamplingParams(seed=1))
        runner.step(["a"])
        self.assertEqual(processor.calls, 0)
        runner.add("b", [3], SamplingParams(seed=1, extra_args={"green": 1.0}))
        runner.step(["a", "b"])
        self.assertEqual(processor.calls, 1)
        slot = runner.states.req_id_to_index["b"]
        runner.states.remove_request("b")
        runner.add("c", [3], SamplingParams(seed=1))
        self.assertEqual(runner.states.req_id_to_index["c"], slot)
        runner.step(["a", "c"])
        self.assertEqual(processor.calls, 1, "a slot's next request is another one")

    def test_a_watermark_marks_seeded_texts(self):
        runner = second.Runner(vllm_runner_2.sampler_class(), processors=[green2])
        for name, more in (("marked", {"extra_args": {"green": 3.0}}), ("plain", {})):
            runner.add(name, [3], SamplingParams(temperature=1.0, seed=5, top_p=0.95, **more))
        for _ in range(30):
            runner.step(["marked", "plain"])
        shares = {}
        for name in ("marked", "plain"):
            text = [3, *runner.text(name)]
            green = is_green(torch.tensor(text[:-1]), VOCABULARY)
            shares[name] = sum(bool(row[token]) for row, token in zip(green, text[1:])) / 30
        self.assertGreater(shares["marked"], 0.7)
        self.assertLess(shares["plain"], 0.65)

    # --- admission

    def test_names_that_are_no_option_are_left_to_others(self):
        params = SamplingParams(temperature=1.0, extra_args={"green": 3.0, "typical_p": 0.9})
        with self.assertRaisesRegex(sortition.Error, "extra_args.green: there is no such option"):
            common.check(params)
        with mock.patch.object(common, "others_configured", True):
            common.check(params)
            self.assertEqual(common.parameters_of(params, "raw")["typical_p"], 0.9)
            params.extra_args["typical_p"] = 9.0
            with self.assertRaisesRegex(sortition.Error, "typical_p"):
                common.check(params)

    def test_installed_processors_are_found(self):
        point = types.SimpleNamespace
        for values, expected in ((["sortition.vllm:RequestTracker"], False),
                                 (["sortition.vllm:RequestTracker", "marks:Green"], True)):
            vllm_options.other_processors_installed.cache_clear()
            with mock.patch("importlib.metadata.entry_points", lambda values=values: types.SimpleNamespace(
                    select=lambda group: [point(value=value) for value in values])):
                self.assertEqual(vllm_options.other_processors_installed(), expected)
        vllm_options.other_processors_installed.cache_clear()

    def test_masks_need_no_top_k(self):
        """vLLM's own check of a request's parameters, with the part that the plugin wraps."""
        seen = []

        def validate(self, params, tasks):
            seen.append((params.top_k, common.others_configured))

        for masks, processors, top_k, shown in ((True, None, -1, 1), (True, ["a:B"], 0, 1), (False, None, -1, -1),
                                                (True, None, 5, 5)):
            config = types.SimpleNamespace(return_sampling_mask=masks, logits_processors=processors)
            params = types.SimpleNamespace(top_k=top_k)
            vllm_engine._admitting(validate)(types.SimpleNamespace(model_config=config), params, ())
            self.assertEqual((params.top_k, seen.pop()), (top_k, (shown, bool(processors))))
        common.others_configured = False


if __name__ == "__main__":
    unittest.main()
