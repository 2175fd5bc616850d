"""The vLLM plugin: its own logic, and vLLM's interfaces for runner generation 1 where vLLM is installed."""

import importlib.util
import os
import pathlib
import types
import unittest
from unittest import mock

import numpy
import torch
import sortition.local
from sortition import vllm as plugin
from sortition import vllm_common as common
from sortition import vllm_runner_2 as runner_2

VOCABULARY = 200
HAS_VLLM = importlib.util.find_spec("vllm") is not None


def fake_params(**options):
    """The fields of vLLM's SamplingParams that the plugin reads."""
    defaults = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0,
                "frequency_penalty": 0.0, "presence_penalty": 0.0, "seed": 1, "logprobs": None, "min_tokens": 0,
                "logit_bias": None, "allowed_token_ids": None, "all_stop_token_ids": set(),
                "bad_words_token_ids": None}
    return types.SimpleNamespace(**{**defaults, **options})


def fake_update(removed=(), added=(), moved=()):
    return types.SimpleNamespace(removed=removed, added=added, moved=moved)


def logits(*seeds):
    return torch.stack([torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3 for seed in seeds])


class Logic(unittest.TestCase):
    def setUp(self):
        self.sampler = sortition.local.Sampler()
        self.drawer = common.Drawer(self.sampler)
        self.rows = common.Rows()

    def draw(self, batch):
        return self.drawer.draw([self.rows.requests[row] for row in range(len(batch))], batch)

    def expected(self, prompt, seeds, **options):
        sequence = self.sampler.open(vocabulary_size=VOCABULARY, prompt=prompt, seed=1, **options)
        return [self.sampler.draw(sequence, logits(seed)[0]).token for seed in seeds]

    def test_rows_follow_requests(self):
        outputs = [[], [], []]
        penalty = {"repetition_penalty": 1.5}
        added = [(index, fake_params(**penalty), [index, 7], outputs[index]) for index in range(3)]
        self.rows.update(fake_update(added=added))
        order = [0, 1, 2]
        for step in range(6):
            if step == 2:
                self.rows.update(fake_update(moved=[(0, 2, "SWAP")]))
                order = [2, 1, 0]
            if step == 4:
                self.rows.update(fake_update(removed=[0], moved=[(2, 0, "UNIDIRECTIONAL")]))
                order = [0, 1]
            draws = self.draw(logits(*(100 * request + step for request in order)))
            for request, draw in zip(order, draws):
                outputs[request].append(draw.token)
        for request, steps in ((0, 6), (1, 6), (2, 4)):
            self.assertEqual(outputs[request],
                             self.expected([request, 7], [100 * request + step for step in range(steps)], **penalty))

    def test_history_is_vllms(self):
        output = []
        self.rows.update(fake_update(added=[(0, fake_params(frequency_penalty=1.5), [3], output)]))
        for step in range(3):
            output.append(self.draw(logits(step))[0].token)
        output[-1] = 50  # another token was accepted
        output.append(51)  # and a further one
        drawn = self.draw(logits(9))[0].token
        sequence = self.sampler.open(vocabulary_size=VOCABULARY, prompt=[3], seed=1, frequency_penalty=1.5)
        sequence.append(output)
        self.assertEqual(drawn, self.sampler.draw(sequence, logits(9)[0]).token)

    def test_parameters(self):
        self.assertEqual(common.parameters_of(fake_params(temperature=0.0, top_k=5))["temperature"], 0.0)
        self.assertNotIn("top_k", common.parameters_of(fake_params(temperature=0.0, top_k=5)))
        result = common.parameters_of(fake_params(top_k=-1, logit_bias={3: 1.5}, allowed_token_ids=[9, 2, 9],
                                                  bad_words_token_ids=[[4], [5, 6]]))
        self.assertEqual((result["top_k"], result["logit_bias"], result["allowed_token_ids"],
                          result["banned_token_ids"], result["bad_words"]),
                         (0, [{"token": 3, "bias": 1.5}], [2, 9], [4], [{"tokens": [5, 6]}]))
        with self.assertRaisesRegex(ValueError, "thinking_token_budget"):
            common.parameters_of(fake_params(thinking_token_budget=5))
        with self.assertRaisesRegex(ValueError, "raw_logits"):
            common.Drawer(self.sampler, "raw_logits")

    def test_min_tokens(self):
        best = int(logits(1)[0].argmax())
        params = fake_params(temperature=0.0, min_tokens=1, all_stop_token_ids={best})
        output = []
        self.rows.update(fake_update(added=[(0, params, [1], output)]))
        output.append(self.draw(logits(1))[0].token)
        self.assertNotEqual(output[0], best)
        self.assertEqual(self.draw(logits(1))[0].token, best)

    def test_logprobs(self):
        self.rows.update(fake_update(added=[(0, fake_params(logprobs=3), [1], []), (1, fake_params(), [1], [])]))
        batch = logits(5, 6)
        draws = self.draw(batch)
        ids, values, ranks = self.drawer.logprobs(draws, 3)
        whole = torch.log_softmax(batch, -1)
        self.assertEqual(ids[0, 1:].tolist(), whole[0].topk(3).indices.tolist())
        self.assertEqual(int(ids[0, 0]), draws[0].token)
        torch.testing.assert_close(values[0], whole[0, ids[0].long()], atol=1e-5, rtol=0)
        self.assertEqual(int(ranks[0]), 1 + int((whole[0] > whole[0, draws[0].token]).sum()))

    def test_step_uses_the_device_logits_moved_to(self):
        self.rows.update(fake_update(added=[(0, fake_params(), [1], [])]))
        elsewhere = logits(6)
        with mock.patch.object(self.drawer.logits, "move", return_value=elsewhere) as move:
            drawn = self.draw(logits(5))
        self.assertEqual(move.call_count, 1)
        self.assertEqual(drawn[0].token, self.expected([1], [6])[0])
        self.draw(logits(5))
        self.assertEqual((self.drawer.logits.path, self.drawer.logits.note), ("host", ""))

    def test_errors_come_out(self):
        self.rows.update(fake_update(added=[(0, fake_params(), [1], [])]))
        bad = logits(1)
        bad[0, 3] = float("nan")
        with self.assertRaisesRegex(sortition.Error, "LOGIT_NAN"):
            self.draw(bad)

    def test_ranks_draw_alike(self):
        drawn = []
        for _ in range(2):
            numpy.random.seed(3)
            rows = common.Rows(alike=True)
            rows.update(fake_update(added=[(row, fake_params(seed=None), [1], []) for row in range(3)]))
            drawn.append([draw.token for draw in self.drawer.draw(list(rows.requests.values()), logits(1, 1, 1))])
        self.assertEqual(*drawn)
        self.assertGreater(len(set(drawn[0])), 1)

    def test_replaces_the_samplers_of_both_runners(self):
        runners = {name: types.ModuleType(name) for name in ("vllm.v1.worker.gpu_model_runner",
                                                             "vllm.v1.worker.gpu.model_runner")}
        first, second = runners.values()
        second.Sampler = second.GPUWatermarkSampler = type("TheirSampler", (), {})
        ours = type("OurSampler", (), {"__module__": runner_2.__name__})
        modules = {**runners, plugin.__name__: plugin, runner_2.__name__: runner_2}
        with mock.patch.dict(os.environ, {common.SETTING: "in_process"}), \
                mock.patch.dict(vars(plugin), {"SortitionSampler": object}), \
                mock.patch.object(runner_2, "sampler_class", return_value=ours), \
                mock.patch("importlib.import_module", side_effect=modules.__getitem__):
            plugin.register()
            plugin.register()
        self.assertIs(first.Sampler, object)
        self.assertIs(second.Sampler, ours)
        with self.assertRaisesRegex(NotImplementedError, "watermark_config"):
            second.GPUWatermarkSampler()

    def test_does_nothing_unless_asked(self):
        with mock.patch.dict(os.environ):
            os.environ.pop(common.SETTING, None)
            with mock.patch("importlib.import_module", side_effect=AssertionError("vLLM was touched")):
                plugin.register()


@unittest.skipUnless(HAS_VLLM, "vLLM is not installed")
class Interfaces(unittest.TestCase):
    """vLLM's own sampler, metadata and updates, on the CPU."""

    def setUp(self):
        patch = mock.patch.dict(os.environ, {common.SETTING: "in_process"})
        patch.start()
        self.addCleanup(patch.stop)

    def metadata(self, tracker, params):
        from vllm.v1.sample.logits_processor import LogitsProcessors
        from vllm.v1.sample.metadata import SamplingMetadata

        count = len(params)
        ones = torch.ones(count)
        logprobs = [param.logprobs for param in params if param.logprobs is not None]
        greedy = all(param.temperature == 0 for param in params)
        return SamplingMetadata(
            temperature=None if greedy else torch.tensor([param.temperature for param in params]), all_greedy=greedy,
            all_random=not greedy, top_p=None, top_k=None, generators={},
            max_num_logprobs=max(logprobs) if logprobs else None, no_penalties=True, prompt_token_ids=None,
            frequency_penalties=0 * ones, presence_penalties=0 * ones, repetition_penalties=ones,
            output_token_ids=[[] for _ in params], allowed_token_ids_mask=None, bad_words_token_ids={},
            logitsprocs=LogitsProcessors([tracker] if tracker else []))

    def test_greedy_and_logprobs_are_vllms(self):
        from vllm import SamplingParams
        from vllm.v1.sample.logits_processor import BatchUpdate
        from vllm.v1.sample.sampler import Sampler

        params = [SamplingParams(temperature=0.0, logprobs=4) for _ in range(3)]
        tracker = plugin.RequestTracker(None, "cpu", False)
        tracker.update_state(BatchUpdate(batch_size=3, removed=[], moved=[],
                                         added=[(row, params[row], [1, 2], []) for row in range(3)]))
        batch = logits(1, 2, 3)
        theirs = Sampler()(batch.clone(), self.metadata(None, params))
        ours = plugin.SortitionSampler()(batch.clone(), self.metadata(tracker, params))
        self.assertEqual(ours.sampled_token_ids.tolist(), theirs.sampled_token_ids.tolist())
        self.assertEqual(ours.sampled_token_ids.dtype, theirs.sampled_token_ids.dtype)
        self.assertEqual(ours.logprobs_tensors.logprob_token_ids.tolist(),
                         theirs.logprobs_tensors.logprob_token_ids.tolist())
        torch.testing.assert_close(ours.logprobs_tensors.logprobs, theirs.logprobs_tensors.logprobs, atol=1e-5, rtol=0)
        self.assertEqual(ours.logprobs_tensors.selected_token_ranks.tolist(),
                         theirs.logprobs_tensors.selected_token_ranks.tolist())

    def test_a_dummy_run_is_vllms(self):
        from vllm import SamplingParams

        params = [SamplingParams(temperature=0.0)]
        ours = plugin.SortitionSampler()(logits(1), self.metadata(plugin.RequestTracker(None, "cpu", False), params))
        self.assertEqual(ours.sampled_token_ids.tolist(), [[int(logits(1)[0].argmax())]])

    def test_runner_takes_its_sampler_by_the_replaced_name(self):
        for module in ("vllm/v1/worker/gpu_model_runner.py", "vllm/v1/worker/gpu/model_runner.py"):
            root = pathlib.Path(importlib.util.find_spec("vllm").origin).parents[1]
            text = (root / module).read_text(encoding="utf-8")
            self.assertRegex(text, r"from vllm\.v1\.\S+ import Sampler\n")
            self.assertIn("self.sampler = Sampler(", text)


if __name__ == "__main__":
    unittest.main()
