"""The vLLM plugin with runner generation 2's inputs to its sampler: vLLM's own states, batches, sampler and kernels.

The kernels are Triton's; here its interpreter runs them, on the CPU.
"""

import importlib
import os
import types
import unittest
from unittest import mock

# Before vLLM is imported.
os.environ.update(TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")

import numpy
import torch
import vllm.utils.torch_utils
import vllm.v1.worker.gpu.buffer_utils
from sortition import vllm as plugin
from sortition import vllm_common as common
from sortition import vllm_runner_2
from vllm import SamplingParams
from vllm.platforms import current_platform
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessors
from vllm.v1.sample.ops import topk_topp_sampler
from vllm.v1.worker.gpu.input_batch import InputBatch, InputBuffers, post_update
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor, loader
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.states import RequestState

# Simulates a platform whose memory the device cannot access.
vllm.utils.torch_utils.PIN_MEMORY = False
vllm.v1.worker.gpu.buffer_utils.is_uva_available = lambda: False
type(current_platform).device_type = "cpu"
# Triton's interpreter cannot run this kernel; vLLM has a PyTorch version of it.
topk_topp_sampler.HAS_TRITON = False

VOCABULARY, SLOTS, LONGEST = 200, 5, 64
CPU = torch.device("cpu")


def config(**options):
    return types.SimpleNamespace(**{"reasoning_config": None, "speculative_config": None, "model_config": None,
                                    "parallel_config": types.SimpleNamespace(tensor_parallel_size=1), **options})


def logits_of(name, position):
    """Logits of a model at a position of a request."""
    seed = sum(map(ord, name)) * 1000 + position
    return torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3


class Runner:
    """vLLM's runner around its sampler, from requests to their texts."""

    def __init__(self, sampler_class, logprobs_mode="raw_logprobs", return_sampling_mask=False, processors=(),
                 **options):
        self.states = RequestState(SLOTS, LONGEST, LONGEST * SLOTS, 0, VOCABULARY, CPU)
        self.buffers = InputBuffers(SLOTS, LONGEST * SLOTS, CPU)
        self.sampler = sampler_class(vllm_config=config(**options), max_num_reqs=SLOTS, vocab_size=VOCABULARY,
                                     device=CPU, req_states=self.states, logprobs_mode=logprobs_mode,
                                     return_sampling_mask=return_sampling_mask,
                                     custom_logits_processors=[made(self.states) for made in processors])

    def add(self, name, prompt, params, output=()):
        params.update_from_generation_config({}, eos_token_id=None)
        self.states.add_request(name, len(prompt), [*prompt, *output], 0, 30)
        self.sampler.add_request(self.states.req_id_to_index[name], params)
        self.states.apply_staged_writes()
        self.sampler.apply_staged_writes()

    def batch(self, names, chunked=()):
        slots = [self.states.req_id_to_index[name] for name in names]
        batch = InputBatch.make_dummy(len(names), len(names), self.buffers)
        batch.req_ids = list(names)
        batch.idx_mapping_np = numpy.array(slots, dtype=numpy.intp)
        batch.idx_mapping = batch.expanded_idx_mapping = torch.tensor(slots)
        lengths = self.states.total_len.gpu[batch.idx_mapping].clone()
        for row, name in enumerate(names):
            lengths[row] -= int(name in chunked)
        batch.seq_lens = lengths
        batch.seq_lens_cpu_upper_bound = lengths.clone()
        batch.positions = lengths.long() - 1
        batch.input_ids = self.states.all_token_ids.gpu[batch.idx_mapping, batch.positions]
        return batch

    def step(self, names, chunked=(), poisoned=()):
        batch = self.batch(names, chunked)
        rows = [logits_of(name, int(length)) + (float("nan") if name in poisoned else 0.0)
                for name, length in zip(names, batch.seq_lens)]
        output = self.sampler(torch.stack(rows), batch)
        post_update(batch.idx_mapping, self.states.num_computed_tokens.gpu, self.states.last_sampled_tokens,
                    self.sampler.penalties_state.output_bin_counts, output.sampled_token_ids, output.num_sampled,
                    output.num_rejected, None, self.states.all_token_ids.gpu, self.states.total_len.gpu)
        return output

    def text(self, name):
        slot = self.states.req_id_to_index[name]
        prompt = int(self.states.prompt_len.np[slot])
        return self.states.all_token_ids.gpu[slot, prompt:int(self.states.total_len.gpu[slot])].tolist()


class Runner2(unittest.TestCase):
    def setUp(self):
        patch = mock.patch.dict(os.environ, {common.SETTING: "in_process"})
        patch.start()
        self.addCleanup(patch.stop)
        self.ours = vllm_runner_2.sampler_class()

    def test_the_plugin_changes_both_runners(self):
        runner_1 = importlib.import_module("vllm.v1.worker.gpu_model_runner")
        runner_2 = importlib.import_module("vllm.v1.worker.gpu.model_runner")
        with mock.patch.object(runner_1, "Sampler"), mock.patch.object(runner_2, "Sampler", Sampler), \
                mock.patch.object(runner_2, "GPUWatermarkSampler", runner_2.GPUWatermarkSampler):
            plugin.register()
            plugin.register()
            self.assertIs(runner_1.Sampler, plugin.SortitionSampler)
            self.assertEqual(runner_2.Sampler.__mro__[1:], Sampler.__mro__)
            self.assertEqual(runner_2.Sampler.__module__, vllm_runner_2.__name__)
            with self.assertRaisesRegex(NotImplementedError, "watermark_config"):
                runner_2.GPUWatermarkSampler(None)

    def test_greedy_texts_and_logprobs_are_vllms(self):
        options = {
            "plain": {},
            "penalties": {"repetition_penalty": 1.7, "frequency_penalty": 0.9, "presence_penalty": 0.6},
            "bias": {"logit_bias": {3: 9.0, 5: -4.0}, "logprobs": 4},
            "bad": {"_bad_words_token_ids": [[int(logits_of("bad", 3).argmax())], [7, 8]], "logprobs": 2},
        }
        runners = [Runner(Sampler), Runner(self.ours)]
        for runner in runners:
            for name, more in options.items():
                runner.add(name, [3, 7, 9], SamplingParams(temperature=0.0, **more))
        orders = (["plain", "bias", "penalties", "bad"], ["bad", "penalties"], ["penalties", "plain", "bias"])
        for step in range(9):
            names = orders[step % 3]
            chunked = ["bias"] if step == 0 else []
            theirs, ours = (runner.step(names, chunked) for runner in runners)
            self.assertEqual(ours.num_sampled.tolist(), theirs.num_sampled.tolist())
            self.assertEqual(ours.num_rejected.tolist(), theirs.num_rejected.tolist())
            for field in ("sampled_token_ids", "num_sampled", "num_rejected"):
                self.assertEqual(getattr(ours, field).dtype, getattr(theirs, field).dtype, field)
            rows = [row for row, name in enumerate(names) if name not in chunked and "logprobs" in options[name]]
            for ours_part, theirs_part in zip(ours.logprobs_tensors[:3] if rows else (), theirs.logprobs_tensors or ()):
                self.assertEqual((ours_part.shape, ours_part.dtype), (theirs_part.shape, theirs_part.dtype))
                for row in rows:
                    count = options[names[row]]["logprobs"] + 1
                    expected, found = (part[row].reshape(-1)[:count] for part in (theirs_part, ours_part))
                    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
        for name in options:
            self.assertEqual(runners[1].text(name), runners[0].text(name), name)

    def test_draws_are_of_vllms_kept_sets(self):
        options = {"temperature": 0.8, "top_k": 12, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.4, "seed": 5}
        theirs, ours = Runner(Sampler), Runner(self.ours)
        for runner in (theirs, ours):
            runner.add("a", [3, 7, 9], SamplingParams(**options))
        drawn = set()
        for _ in range(12):
            batch = theirs.batch(["a"])
            length = int(batch.seq_lens[0])
            processed = theirs.sampler.apply_sampling_params(
                logits_of("a", length)[None], batch.expanded_idx_mapping, batch.idx_mapping, batch.idx_mapping_np,
                batch.positions, batch.input_ids, batch.expanded_local_pos, batch.seq_lens_cpu_upper_bound.numpy())
            ours.step(["a"])
            token = ours.text("a")[-1]
            self.assertGreater(float(processed[0, token]), -float("inf"))
            drawn.add(token)
            # Theirs continues with our text.
            post_update(batch.idx_mapping, theirs.states.num_computed_tokens.gpu, theirs.states.last_sampled_tokens,
                        theirs.sampler.penalties_state.output_bin_counts, torch.tensor([[token]]),
                        torch.ones(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32), None,
                        theirs.states.all_token_ids.gpu, theirs.states.total_len.gpu)
        self.assertGreater(len(drawn), 4)

    def test_a_text_does_not_depend_on_batches_preemption_or_slots(self):
        options = {"temperature": 1.2, "frequency_penalty": 0.8, "seed": 11}
        alone = Runner(self.ours)
        alone.add("a", [3, 7], SamplingParams(**options))
        for _ in range(8):
            alone.step(["a"])

        runner = Runner(self.ours)
        runner.add("other", [5], SamplingParams(temperature=0.7))
        runner.add("a", [3, 7], SamplingParams(**options))
        for _ in range(3):
            runner.step(["other", "a"])
        so_far = runner.text("a")
        slot = runner.states.remove_request("a")
        runner.add("third", [9, 9], SamplingParams(temperature=2.0))  # takes its slot
        self.assertEqual(runner.states.req_id_to_index["third"], slot)
        runner.step(["third", "other"])
        runner.add("a", [3, 7], SamplingParams(**options), output=so_far)
        for _ in range(5):
            runner.step(["a", "third"])
        self.assertEqual(runner.text("a"), alone.text("a"))
        runner.states.remove_request("other")
        runner.step(["third"])
        self.assertEqual(len(runner.sampler.slots.requests), 2)  # requests that ended are forgotten

    def test_texts_are_those_of_generation_1(self):
        """The same logits, by the sampler of generation 1 with vLLM's metadata of that."""
        options = {"temperature": 1.1, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.3, "seed": 5}
        runner = Runner(self.ours)
        runner.add("a", [3, 7], SamplingParams(**options))
        for _ in range(12):
            runner.step(["a"])
        tracker, text = plugin.RequestTracker(None, "cpu", False), []
        tracker.update_state(BatchUpdate(batch_size=1, removed=[], moved=[],
                                         added=[(0, SamplingParams(**options), [3, 7], text)]))
        metadata = types.SimpleNamespace(logitsprocs=LogitsProcessors([tracker]), max_num_logprobs=None, generators={})
        sampler = plugin.SortitionSampler()
        for _ in range(12):
            made = sampler(logits_of("a", 2 + len(text))[None], metadata)
            text.append(int(made.sampled_token_ids))
        self.assertEqual(text, runner.text("a"))

    def test_the_runners_text_is_followed(self):
        """A token that was never drawn, and that greedy would draw next, is put into the text."""
        runner = Runner(self.ours)
        runner.add("a", [3], SamplingParams(temperature=0.0, repetition_penalty=50.0))
        runner.step(["a"])
        best = int(logits_of("a", 2).argmax())
        self.assertNotEqual(runner.text("a"), [best])
        runner.states.all_token_ids.gpu[runner.states.req_id_to_index["a"], 1] = best
        runner.step(["a"])
        self.assertEqual(runner.text("a")[0], best)
        self.assertNotEqual(runner.text("a")[1], best)

    def test_ranks_draw_alike(self):
        texts = []
        for _ in range(2):
            numpy.random.seed(4)  # vLLM does this in each process
            runner = Runner(self.ours, parallel_config=types.SimpleNamespace(tensor_parallel_size=2))
            runner.add("a", [1], SamplingParams(temperature=2.0))
            for _ in range(6):
                runner.step(["a"])
            texts.append(runner.text("a"))
        self.assertEqual(*texts)

    def test_warming_up_is_vllms(self):
        runner = Runner(self.ours)
        batch = InputBatch.make_dummy(3, 3, runner.buffers)
        logits = torch.stack([logits_of("x", row) for row in range(3)])
        self.assertEqual(runner.sampler(logits, batch).sampled_token_ids.shape, (3, 1))
        for slot in range(3):
            runner.sampler.add_request(slot, SamplingParams.for_sampler_warmup())
        runner.sampler.apply_staged_writes()
        self.assertEqual(runner.sampler(logits, batch).sampled_token_ids.shape, (3, 1))

    def test_refusals(self):
        with self.assertRaisesRegex(NotImplementedError, "enable_trace_replay"):
            self.ours(vllm_config=config(), enable_trace_replay=True)
        with self.assertRaisesRegex(ValueError, "processed_logits"):
            Runner(self.ours, logprobs_mode="processed_logits")

    def test_a_bad_row_fails_alone(self):
        alone, runner = Runner(self.ours), Runner(self.ours)
        for name in ("good", "bad"):
            runner.add(name, [3], SamplingParams(temperature=0.8, seed=2))
        alone.add("good", [3], SamplingParams(temperature=0.8, seed=2))
        runner.step(["good", "bad"], poisoned=["bad"])
        alone.step(["good"])
        self.assertEqual(runner.text("good"), alone.text("good"))
        self.assertIn("LOGIT_NAN", str(runner.sampler.failed["bad"]))
        self.assertEqual(list(runner.sampler.failed), ["bad"])

    def test_masks_are_the_kept_tokens(self):
        options = {"temperature": 0.8, "top_k": 12, "top_p": 0.9, "seed": 5}
        theirs = Runner(Sampler, "processed_logprobs", return_sampling_mask=True)
        ours = Runner(self.ours, "processed_logprobs", return_sampling_mask=True)
        for runner in (theirs, ours):
            for name in ("a", "b"):
                runner.add(name, [3, 7], SamplingParams(**options))
        expected, found = (runner.step(["a", "b"]).sampling_mask_tensors.tolists() for runner in (theirs, ours))
        self.assertEqual(found.token_ids.tolist(), expected.token_ids.tolist())
        self.assertEqual(found.offsets.tolist(), expected.offsets.tolist())

    def test_named_logprobs_are_vllms(self):
        parts = []
        for kind in (Sampler, self.ours):
            runner = Runner(kind)
            runner.add("a", [3], SamplingParams(temperature=0.0, logprob_token_ids=[9, 2, 150]))
            runner.add("b", [3], SamplingParams(temperature=0.0, logprobs=2))
            parts.append(runner.step(["a", "b"]).logprobs_tensors)
        theirs, ours = parts
        self.assertEqual(ours.logprob_token_ids.tolist(), theirs.logprob_token_ids.tolist())
        torch.testing.assert_close(ours.logprobs, theirs.logprobs, atol=1e-5, rtol=0)

    def test_vllm_always_takes_the_installed_tracker(self):
        for settings in ("", "in_process"):
            with mock.patch.dict(os.environ, {common.SETTING: settings}):
                made = loader.build_custom_logits_processors(config(), Runner(Sampler).states, False)
                self.assertEqual([type(processor).__name__ for processor in made], ["RequestTracker"])
                self.assertFalse(made[0].add_request(0, SamplingParams()))
                rows = torch.zeros(1, VOCABULARY)
                self.assertIs(made[0].apply(rows, None), rows)
        from vllm.v1.sample.logits_processor import _load_logitsprocs_plugins

        self.assertEqual([kind.__name__ for kind in _load_logitsprocs_plugins()], ["RequestTracker"])


if __name__ == "__main__":
    unittest.main()
