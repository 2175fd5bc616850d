"""The SGLang plugin with SGLang 0.5.23's inputs to its sampler: SGLang's own requests' parameters, batches and sampler.

No model runs: SGLang's wheel has no kernels for a CPU. Its runner is played here, from a request to its text.
"""

import math
import os
import types
import unittest
from unittest import mock

# Before SGLang is imported.
os.environ.update(CUDA_VISIBLE_DEVICES="", TORCHDYNAMO_DISABLE="1")

import torch
import sglang.srt.layers.sampler as theirs
import sglang.srt.managers.schedule_batch as schedule_batch
import sglang.srt.sampling.sampling_batch_info as batch_info
import sortition.local
from sglang.srt.layers.logits_processor import SamplingMaskStatus
from sglang.srt.managers.scheduler_components.batch_result_processor import (
    SchedulerBatchResultProcessor as BatchResults)
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.sampling.custom_logit_processor import DisallowedTokensLogitsProcessor
from sglang.srt.sampling.sampling_params import SamplingParams
from sortition import interfaces
from sortition import sglang as plugin

VOCABULARY = 200
GREEDY = {"temperature": 0.0}


def context(backend="pytorch", **features):
    settings = types.SimpleNamespace(
        deterministic=types.SimpleNamespace(rl_on_policy_target=None, enable_deterministic_inference=False),
        kernel=types.SimpleNamespace(sampling_backend=backend),
        features=types.SimpleNamespace(**{"sampling_mask_max_tokens": 12, "enable_custom_logit_processor": True,
                                          "enable_watermark": False, **features}))
    parallel = types.SimpleNamespace(tp_group=types.SimpleNamespace(device_group=None), tp_rank=0)
    return {"get_exec": lambda: settings, "get_parallel": lambda: parallel, "is_dp_attention_enabled": lambda: False,
            "get_server_args": lambda: types.SimpleNamespace(speculative_algorithm=None)}


class Request:
    """Has those fields of SGLang's requests that its sampler, its batches and the plugin read."""

    def __init__(self, name, prompt, mask=False, logprobs=None, **options):
        """`logprobs`: sampling_logprobs_mode, with `mask`."""
        self.rid, self.origin_input_ids, self.output_ids = name, list(prompt), []
        self.sampling_params = SamplingParams(**options)
        self.tokenizer = types.SimpleNamespace(additional_stop_token_ids=None, eos_token_id=0)
        self.sampling_params.normalize(self.tokenizer)
        self.sampling_params.verify(VOCABULARY)
        self.custom_logit_processor, self.return_sampling_mask, self.sampling_logprobs_mode = None, mask, logprobs
        self.to_finish = self.finished_len = None
        self.eos_token_ids = {0}

    def finished(self):
        return False


def logits_of(request):
    """Logits of a model after the request's text."""
    text = [*request.origin_input_ids, *request.output_ids]
    seed = sum(map(ord, request.rid)) * 1000 + len(text)
    return torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3


class Batch:
    """Has those fields of SGLang's batch that its sampling metadata is made from."""

    def __init__(self, requests):
        self.reqs, self.device = requests, "cpu"


class Runner:
    """SGLang's scheduler and runner around its sampler."""

    def __init__(self, sampler):
        self.sampler, self.requests, self.info = sampler, [], None

    def runs_with_backend(method):
        """Tells SGLang which sampler draws, as its arguments do."""
        def run(self, *arguments, **options):
            own = type(self.sampler) is theirs.Sampler
            told = context("pytorch" if own else plugin.BACKEND)["get_exec"]
            with mock.patch.object(batch_info, "get_exec", told):
                return method(self, *arguments, **options)

        return run

    @runs_with_backend
    def add(self, *requests):
        batch = Batch(list(requests))
        made = batch_info.SamplingBatchInfo.from_schedule_batch(batch, VOCABULARY)
        if self.info is None:
            self.info, self.batch = made, batch
        else:
            self.info.merge_batch(made)
        self.requests += requests
        self.batch.reqs = self.requests

    @runs_with_backend
    def keep(self, *indices):
        self.info.filter_batch(list(indices), torch.tensor(indices))
        self.requests = self.batch.reqs = [self.requests[index] for index in indices]

    @runs_with_backend
    def step(self, overlap=False, poisoned=(), logprobs=0):
        logits = torch.stack([logits_of(request) for request in self.requests])
        for row, request in enumerate(self.requests):
            if request.rid in poisoned:
                logits[row] = float("nan")
        info = self.info.copy_for_forward() if overlap else self.info
        info.apply_logits_bias(logits)
        output = types.SimpleNamespace(next_token_logits=logits)
        positions = torch.tensor([len(request.origin_input_ids) + len(request.output_ids) - 1
                                  for request in self.requests])
        tokens = self.sampler(output, info, bool(logprobs), [logprobs] * len(self.requests),
                              [None] * len(self.requests), positions)
        for request, token in zip(self.requests, tokens.tolist()):
            request.output_ids.append(token)
        self.info.penalizer_orchestrator.cumulate_output_tokens(tokens.long())
        return output


class Sglang(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with mock.patch.dict(os.environ, {plugin.SETTING: "in_process"}):
            plugin.register()
        HookRegistry.apply_hooks()

    def setUp(self):
        patches = [mock.patch.dict(os.environ, {plugin.SETTING: "in_process"})]
        for module in (theirs, batch_info):
            patches += [mock.patch.object(module, name, value) for name, value in context().items()
                        if hasattr(module, name)]
        for patch in patches:
            patch.start()
            self.addCleanup(patch.stop)
        self.sampler = theirs.create_sampler(plugin.BACKEND)

    def write(self, requests, steps, sampler=None, **options):
        runner = Runner(sampler or self.sampler)
        runner.add(*requests)
        for _ in range(steps):
            runner.step(**options)
        return [request.output_ids for request in requests]

    def test_sglang_makes_the_sampler_by_its_name(self):
        self.assertIsInstance(self.sampler, theirs.Sampler)
        self.assertEqual(type(self.sampler).__name__, "SortitionSampler")
        from sglang.srt.server_args import SAMPLING_BACKEND_CHOICES

        self.assertIn("sortition", SAMPLING_BACKEND_CHOICES)

    def test_greedy_texts_are_sglangs(self):
        options = {"plain": {}, "repetition": {"repetition_penalty": 1.7}, "frequency": {"frequency_penalty": 0.9},
                   "presence": {"presence_penalty": 1.5}, "bias": {"logit_bias": {"7": 9.0, "9": -4.0}},
                   "least": {"min_new_tokens": 5, "frequency_penalty": 0.5}}
        for overlap in (False, True):
            texts = [self.write([Request(name, [3, 7], **GREEDY, **more) for name, more in options.items()], 9, sampler,
                                overlap=overlap) for sampler in (theirs.Sampler(), self.sampler)]
            self.assertEqual(texts[1], texts[0])

    def test_draws_are_of_sglangs_kept_sets(self):
        options = {"temperature": 0.9, "top_p": 0.8, "top_k": 9, "min_p": 0.02}
        request = Request("a", [3, 7], **options)
        for seed in range(20):
            row = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3
            probabilities = torch.softmax(row[None] / 0.9, -1)
            _, kept, order, _ = theirs.top_k_top_p_min_p_sampling_from_probs_torch(
                probabilities.clone(), torch.tensor([9]), torch.tensor([0.8]), torch.tensor([0.02]), True, None, None,
                return_filtered_probs=True)
            sampler = sortition.local.Sampler()
            drawn = sampler.draw(sampler.open(vocabulary_size=VOCABULARY, seed=seed, kept_set={"tokens": True},
                                              **plugin.parameters_of(request.sampling_params)), row.numpy())
            self.assertEqual(list(drawn.kept_tokens), sorted(order[0][kept[0] > 0].tolist()))

    def test_masks_are_the_kept_sets(self):
        """One of the two requests asks for the log probabilities of all kept tokens, and one is greedy."""
        options = {"temperature": 0.9, "top_p": 0.9, "top_k": 9, "min_p": 0.02}
        made = []
        for sampler in (theirs.Sampler(), self.sampler):
            runner = Runner(sampler)
            runner.add(Request("a", [3], mask=True, logprobs="support", **options), Request("b", [3], **options),
                       Request("c", [3], mask=True, logit_bias={"4": 3.0}, **options),
                       Request("d", [3], mask=True, **GREEDY))
            output = runner.step()
            BatchResults.materialize_sampling_mask_output(runner.requests, output)
            made.append((output, [request.output_ids[0] for request in runner.requests]))
        (expected, _), (found, tokens) = made
        self.assertEqual(found.next_token_sampling_mask_status, expected.next_token_sampling_mask_status)
        for row in (0, 2, 3):
            kept = [set(output.next_token_sampling_mask_idx[row].tolist()) for output in (expected, found)]
            self.assertEqual(kept[1], kept[0])
            self.assertIn(tokens[row], kept[1])
        by_id = [dict(zip(output.next_token_sampling_mask_idx[0].tolist(),
                          output.next_token_sampling_logprobs[0].tolist())) for output in (expected, found)]
        for token, logprob in by_id[0].items():
            self.assertAlmostEqual(by_id[1][token], logprob, places=5)
        self.assertAlmostEqual(sum(map(math.exp, by_id[1].values())), 1, places=5)
        self.assertEqual(found.next_token_sampling_logprobs[3].tolist(), [0.0])

    def test_a_mask_beyond_the_servers_limit_ends_the_request(self):
        runner = Runner(self.sampler)
        runner.add(Request("a", [3], mask=True, temperature=3.0, top_k=13))
        output = runner.step()
        BatchResults.materialize_sampling_mask_output(runner.requests, output)
        self.assertEqual(output.next_token_sampling_mask_status, [SamplingMaskStatus.OVERFLOW])

    def test_custom_processors_run_first(self):
        def requests():
            made = [Request(name, [3, 7], **GREEDY, frequency_penalty=0.5, custom_params=params)
                    for name, params in (("a", {"token_ids": banned}), ("b", None))]
            made[0].custom_logit_processor = DisallowedTokensLogitsProcessor.to_str()
            return made

        banned = []
        free = self.write(requests(), 6)
        banned = free[0][:2]
        texts = [self.write(requests(), 6, sampler) for sampler in (theirs.Sampler(), self.sampler)]
        self.assertEqual(texts[1], texts[0])
        self.assertNotEqual(texts[1][0], free[0])
        self.assertEqual(texts[1][1], free[1])

    def test_a_text_does_not_depend_on_its_batch(self):
        options = {"temperature": 1.2, "repetition_penalty": 1.3, "sampling_seed": 5}
        ((*alone,),) = self.write([Request("a", [3, 7], **options)], 8)
        request = Request("a", [3, 7], **options)
        runner = Runner(self.sampler)
        runner.add(Request("b", [1], **GREEDY), request)
        runner.step()
        runner.step(overlap=True)
        runner.keep(1)
        runner.add(Request("c", [1, 2, 3], temperature=2.0))
        for _ in range(6):
            runner.step(overlap=True)
        self.assertEqual(request.output_ids, alone)

    def test_a_retracted_request_continues_its_text(self):
        for more in ({}, {"repetition_penalty": 1.5, "frequency_penalty": 1.0}):
            request = Request("a", [3, 7], temperature=1.2, sampling_seed=5, **more)
            (alone,) = self.write([request], 8)
            expected = list(alone)
            del request.output_ids[3:]
            self.assertEqual(self.write([request], 5)[0], expected)

    def test_penalties_are_the_laws(self):
        """A text is the one that a sequence with these penalties draws from logits without them."""
        options = {"repetition_penalty": 1.6, "frequency_penalty": 0.7, "presence_penalty": 0.4}
        request = Request("a", [3, 7], temperature=1.1, sampling_seed=9, logit_bias={"5": 2.0}, **options)
        sequence = sortition.local.Sampler().open(
            vocabulary_size=VOCABULARY, prompt=[3, 7], seed=9, temperature=1.1,
            logit_bias=[{"token": 5, "bias": 2.0}], penalty_scope={"repetition_counts_prompt": False}, **options)
        expected = []
        while len(expected) < 12:
            request.output_ids = list(expected)
            expected.append(sortition.local.Sampler().draw(sequence, logits_of(request).numpy()).token)
        for overlap in (False, True):
            request.output_ids = []
            self.assertEqual(self.write([request], 12, overlap=overlap)[0], expected)

    def test_sglang_adds_penalties_only_for_its_own_sampler(self):
        for sampler, changes in ((theirs.Sampler(), True), (self.sampler, False)):
            request = Request("a", [3], **GREEDY, repetition_penalty=1.5, frequency_penalty=1.0, presence_penalty=0.5)
            runner = Runner(sampler)
            runner.add(request)
            for _ in range(2):
                output = runner.step()
            del request.output_ids[-1]
            self.assertEqual(torch.equal(output.next_token_logits[0], logits_of(request)), not changes)
            self.assertEqual(runner.info.penalizer_orchestrator.is_required, changes)

    def test_seeds(self):
        def text(name, **options):
            return self.write([Request(name, [3, 7], temperature=2.0, **options)], 6)[0]

        self.assertEqual(text("a", sampling_seed=-7), text("a", sampling_seed=-7))
        self.assertNotEqual(text("a", sampling_seed=-7), text("a", sampling_seed=8))
        self.assertEqual(text("a"), text("a"))  # ranks of a group know a request by its id
        parameters = Request("a", [1]).sampling_params
        self.assertNotEqual(*(plugin.seed_of(types.SimpleNamespace(rid=rid, sampling_params=parameters), False)
                              for rid in ("a", "b")))
        self.assertEqual(plugin.seed_of(Request("a", [1]), True), 42)

    def test_logprobs_are_sglangs(self):
        runners = [Runner(theirs.Sampler()), Runner(self.sampler)]
        outputs = []
        for runner in runners:
            runner.add(Request("a", [3], **GREEDY), Request("b", [3], temperature=0.7, top_k=1, repetition_penalty=1.5),
                       Request("c", [3], **GREEDY, logit_bias={"4": 3.0}), Request("d", [3], **GREEDY,
                                                                                   frequency_penalty=1.0))
            runner.step()
            outputs.append(runner.step(logprobs=3))
        for field in ("next_token_logprobs", "next_token_top_logprobs_val", "next_token_top_logprobs_idx"):
            expected, found = (getattr(output, field) for output in outputs)
            for one, other in zip(expected, found):
                torch.testing.assert_close(torch.as_tensor(other), torch.as_tensor(one), atol=1e-5, rtol=0)

    def test_a_bad_row_ends_one_request(self):
        ((*alone,),) = self.write([Request("good", [3], sampling_seed=1)], 3)
        good, bad = Request("good", [3], sampling_seed=1), Request("bad", [3, 4], sampling_seed=1)
        runner = Runner(self.sampler)
        runner.add(good, bad)
        runner.step()
        with self.assertLogs("sglang.sortition", "ERROR") as logged:
            runner.step(poisoned=["bad"])
        self.assertIn("request bad ends: LOGIT_NAN", logged.output[0])
        runner.step(poisoned=["bad"])
        self.assertEqual(good.output_ids, alone)
        self.assertIsInstance(bad.to_finish, schedule_batch.FINISH_ABORT)
        self.assertIn("LOGIT_NAN", bad.to_finish.message)
        self.assertEqual(bad.finished_len, 1)
        self.assertIsNone(good.to_finish)

    def test_a_service_that_is_lost_and_comes_back_keeps_texts(self):
        from rows import serve

        options = {"temperature": 1.1, "sampling_seed": 2, "frequency_penalty": 1.0, "repetition_penalty": 1.3}
        ((*expected,),) = self.write([Request("a", [3, 7], **options)], 6)
        with serve() as server:
            with mock.patch.dict(os.environ, {plugin.SETTING: f"{server.serving['listen']},in_process"}):
                sampler = theirs.create_sampler(plugin.BACKEND)
            request = Request("a", [3, 7], **options)
            runner = Runner(sampler)
            runner.add(request)
            for step in range(6):
                if step == 3:
                    server.kill()
                    server.wait()
                runner.step()
        self.assertEqual(request.output_ids, expected)

    def test_what_is_not_honoured_is_refused_at_admission(self):
        for options, name in (({"temperature": 1e6}, "temperature"), ({"beam_width": 2}, "beam_width"),
                              ({"repetition_penalty": 0.001}, "repetition_penalty"),
                              ({"logit_bias": {"3": 1e30}}, "logit_bias"),
                              ({"watermark": {"key": "k"}}, "watermark")):
            with self.assertRaisesRegex(ValueError, name):
                SamplingParams(**options).verify(VOCABULARY)
        self.assertTrue(hasattr(SamplingParams.verify, "__wrapped__"))

    def test_what_draws_elsewhere_is_refused_at_start(self):
        for name, value in (("speculative_algorithm", "EAGLE"), ("dllm_algorithm", "LowConfidence"),
                            ("rl_on_policy_target", "fsdp"), ("enable_watermark", True)):
            arguments = types.SimpleNamespace(**{name: value})
            with mock.patch.object(theirs, "get_server_args", lambda arguments=arguments: arguments), \
                    self.assertRaisesRegex(NotImplementedError, name):
                theirs.create_sampler(plugin.BACKEND)

    def test_an_untold_batch_is_refused(self):
        runner = Runner(self.sampler)
        runner.add(Request("a", [3]))
        delattr(runner.info, "sortition_requests")
        with self.assertRaisesRegex(RuntimeError, "was not told of"):
            runner.step()

    def test_other_versions_are_refused(self):
        import sglang.version

        with mock.patch.object(sglang.version, "__version__", "0.6.0"), \
                mock.patch.object(interfaces, "hash_of", lambda *_: "another"), \
                self.assertRaisesRegex(RuntimeError, "SGLang 0.5.23. Version 0.6.0 differs in .*: sglang.srt.*more"):
            plugin.register()

    def test_does_nothing_unless_asked(self):
        with mock.patch.dict(os.environ):
            os.environ.pop(plugin.SETTING, None)
            with mock.patch("importlib.import_module", side_effect=AssertionError("SGLang was touched")):
                plugin.register()


if __name__ == "__main__":
    unittest.main()
