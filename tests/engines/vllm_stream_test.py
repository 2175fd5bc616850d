"""The vLLM plugin's way that waits for nothing, under vLLM's own states, batches and kernels of generation 2.

The device is a fake: its driver is the tests' own, whose memory is the host's and whose kernels the emulator runs.
Triton's kernels run on the CPU. The host asks for every answer three steps late.
"""

import collections
import ctypes
import os
import types
import unittest
from unittest import mock

from vllm_runner_2_test import SLOTS, Runner  # before vLLM: sets its environment

import numpy
import torch
from sortition import CudaRows, Error, vllm_common, vllm_engine, vllm_runner_2, vllm_stream
from sortition.local import CudaStream
from vllm import SamplingParams

from on_device import host_view
from rows import OnCuda

LATE = 3
# Later loads find the driver by its name.
DRIVER = ctypes.CDLL(os.path.join(os.environ["TEST_FAKE_CUDA"], "libcuda.so.1"))


def setUpModule():
    try:
        CudaStream(0, rows=1, vocabulary_size=8)
    except Error as error:
        if error.code == "FAILED_PRECONDITION":
            raise unittest.SkipTest(str(error)) from None
        raise


class FakeDevice:
    """vllm_stream.Device for tensors of the CPU, which it takes to memory of the tests' driver."""

    rows_memory = None

    @staticmethod
    def index(device):
        del device
        return 0

    @staticmethod
    def stream(device):
        del device
        return 0

    @classmethod
    def rows(cls, logits):
        cls.rows_memory = cls.rows_memory or CudaRows(0, 1 << 20)
        there = host_view(cls.rows_memory)[:4 * logits.numel()].view(numpy.float32).reshape(logits.shape)
        there[...] = logits.numpy()
        return OnCuda(there)

    @staticmethod
    def tensor(memory):
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        capsule = memory.__dlpack__()
        at = pointer(capsule, b"dltensor")
        data, shape = (ctypes.c_uint64.from_address(at + offset).value for offset in (0, 24))
        count = ctypes.c_int64.from_address(shape).value
        return torch.tensor(list((ctypes.c_int32 * count).from_address(data)), dtype=torch.int32)


OPTIONS = {
    "plain": {"temperature": 0.8, "seed": 1},
    "greedy": {"temperature": 0.0, "logprobs": 3},
    "penalties": {"temperature": 1.1, "seed": 2, "repetition_penalty": 1.7, "frequency_penalty": 0.9,
                  "presence_penalty": 0.6, "logprobs": 2},
    "filters": {"temperature": 0.9, "seed": -3, "top_k": 12, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.3,
                "extra_args": {"typical_p": 0.9, "xtc.probability": 0.3}},
    "bans": {"temperature": 1.0, "seed": 4, "logit_bias": {3: 9.0, 5: -4.0}, "presence_penalty": 1.5,
             "_bad_words_token_ids": [[3], [7]], "extra_args": {"banned_token_ids": [7, 9]}},
}
# Options that need the host to see each token.
NEED_HOST = {
    "words": {"temperature": 0.7, "seed": 5, "_bad_words_token_ids": [[3, 4]], "presence_penalty": 0.5},
    "allowed": {"temperature": 0.7, "seed": 6, "allowed_token_ids": list(range(0, 200, 3))},
    "shortest": {"temperature": 0.7, "seed": 7, "min_tokens": 5, "stop_token_ids": list(range(120))},
    "every": {"temperature": 0.7, "seed": 8, "logprobs": -1},
    "named": {"temperature": 0.7, "seed": 9, "logprob_token_ids": [9, 2, 150]},
    "repetitions": {"temperature": 0.7, "seed": 10, "extra_args": {"dry.multiplier": 4, "dry.allowed_length": 1}},
}
ORDERS = (["plain", "greedy", "penalties", "bans", "filters"], ["filters", "penalties"],
          ["penalties", "plain", "bans", "greedy"])


class Streamed(unittest.TestCase):
    def setUp(self):
        for patch in (mock.patch.dict(os.environ, {vllm_common.SETTING: "in_process"}),
                      mock.patch.object(vllm_stream, "Device", FakeDevice)):
            patch.start()
            self.addCleanup(patch.stop)
        self.ours = vllm_runner_2.sampler_class()

    def waiting(self, **options):
        """A runner whose steps wait."""
        with mock.patch.object(FakeDevice, "index", lambda device: None):
            runner = Runner(self.ours, **options)
        self.assertIsNone(runner.sampler.stream)
        return runner

    def streamed(self, **options):
        runner = Runner(self.ours, **options)
        self.assertIsNotNone(runner.sampler.stream)
        return runner

    def compare(self, late, streamed, waited):
        """Compares a step's late answers with the answers of the same step that waited."""
        answers = [None if answer is None else vllm_common.tokens_of(answer) for answer in late.answers()]
        tokens, counts = waited.sampled_token_ids.tolist(), waited.num_sampled.tolist()
        self.assertEqual(answers, [row if count else None for row, count in zip(tokens, counts)])
        self.assertEqual(streamed.num_sampled.tolist(), counts)
        self.assertEqual(streamed.num_rejected.tolist(), waited.num_rejected.tolist())
        self.assertEqual((streamed.logprobs_tensors is None, streamed.sampled_token_ids.dtype),
                         (waited.logprobs_tensors is None, waited.sampled_token_ids.dtype))
        if streamed.logprobs_tensors is not None:
            made, expected = (output.logprobs_tensors.to_cpu_nonblocking().tolists() for output in (streamed, waited))
            for ours, theirs in zip(made[:3], expected[:3]):
                numpy.testing.assert_array_equal(ours, theirs)

    def run_both(self, streamed, waiting, steps, late=LATE):
        """`steps`: names and chunked names of each."""
        queued = collections.deque()
        for names, chunked in steps:
            waited, output = waiting.step(names, chunked), streamed.step(names, chunked)
            queued.append((streamed.sampler.late, output, waited))
            if len(queued) > late:
                self.compare(*queued.popleft())
        while queued:
            self.compare(*queued.popleft())

    def test_texts_and_logprobs_are_those_of_steps_that_wait(self):
        runners = [self.streamed(), self.waiting()]
        for runner in runners:
            for name, options in OPTIONS.items():
                runner.add(name, [3, 7, 9, 3], SamplingParams(**options))
        sampler = runners[0].sampler
        with mock.patch.object(sampler.slots, "of", side_effect=AssertionError("reads the device's texts")), \
                mock.patch.object(sampler.drawer, "draw", side_effect=AssertionError("waits for the rows")):
            self.run_both(*runners, [(ORDERS[step % 3], ["bans"] if step == 0 else []) for step in range(15)])
        for name in OPTIONS:
            self.assertEqual(runners[0].text(name), runners[1].text(name), name)
            self.assertGreater(len(runners[0].text(name)), 8)

    def test_rows_that_need_the_host_wait_alone(self):
        for name, options in NEED_HOST.items():
            with self.subTest(name):
                runners = [self.streamed(), self.waiting()]
                for runner in runners:
                    runner.add("penalties", [3, 7, 9], SamplingParams(**OPTIONS["penalties"]))
                    runner.add(name, [3, 7, 9], SamplingParams(**options))
                    runner.add("plain", [3, 7, 9], SamplingParams(**OPTIONS["plain"]))
                self.run_both(*runners, [(["penalties", name, "plain"], []), (["plain"], []),
                                         ([name, "penalties"], []), ([name], [])] * 2)
                for each in ("penalties", "plain", name):
                    self.assertEqual(runners[0].text(each), runners[1].text(each), each)

    def test_texts_outlive_preemption_and_slots(self):
        alone, runner = self.waiting(), self.streamed()
        options, others = OPTIONS["penalties"], {"temperature": 2.0, "frequency_penalty": 0.3, "seed": 8}
        alone.add("a", [3, 7], SamplingParams(**options))
        alone.add("third", [9, 9], SamplingParams(**others))
        for at in range(8):
            alone.step(["a", "third"] if at < 6 else ["a"])
        runner.add("other", [5], SamplingParams(temperature=0.7))
        runner.add("a", [3, 7], SamplingParams(**options))
        for _ in range(3):
            runner.step(["other", "a"])
        so_far = runner.text("a")
        slot = runner.states.remove_request("a")
        runner.add("third", [9, 9], SamplingParams(**others))  # takes its slot
        self.assertEqual(runner.states.req_id_to_index["third"], slot)
        runner.step(["third", "other"])
        runner.add("a", [3, 7], SamplingParams(**options), output=so_far)
        for _ in range(5):
            runner.step(["a", "third"])
        for name in ("a", "third"):
            self.assertEqual(runner.text(name), alone.text(name), name)

    def test_answers_that_nobody_asks_for_hold_nothing_up(self):
        alone, runner = self.waiting(), self.streamed()
        for each in (alone, runner):
            each.add("penalties", [3, 7], SamplingParams(**OPTIONS["penalties"]))
            for _ in range(12):
                each.step(["penalties"])
        self.assertEqual(runner.text("penalties"), alone.text("penalties"))

    def test_a_bad_row_fails_alone(self):
        alone, runner = self.waiting(), self.streamed()
        for each in (alone, runner):
            each.add("good", [3], SamplingParams(temperature=0.8, seed=2, presence_penalty=0.4))
        runner.add("bad", [3], SamplingParams(temperature=0.8, seed=2))
        steps = []
        for at in range(4):
            output = runner.step(["good", "bad"], poisoned=["bad"] if at == 1 else [])
            self.assertGreaterEqual(int(output.sampled_token_ids.min()), 0, "no id that a model cannot take")
            steps.append(runner.sampler.late)
            alone.step(["good"])
        self.assertEqual(runner.text("good"), alone.text("good"))
        self.assertEqual([list(late.failed()) for late in steps], [[]] + [["bad"]] * 3)
        self.assertIn("LOGIT_NAN", str(steps[1].failed()["bad"]))

    def test_errors_are_handed_over_with_the_output(self):
        late = types.SimpleNamespace(failed=mock.Mock(return_value={"b": ValueError("a reason")}))
        plain = types.SimpleNamespace(req_ids=["a", "b"])
        output = types.SimpleNamespace(get_output=lambda: plain)
        runner = types.SimpleNamespace(sampler=types.SimpleNamespace(late=late))
        handing_over = vllm_engine._handing_over(lambda self: output)
        self.assertIs(handing_over(runner), output)
        late.failed.assert_not_called()
        self.assertIsNone(runner.sampler.late)
        self.assertIs(output.get_output(), plain)
        self.assertEqual(plain.sortition_failed, {"b": "a reason"})

    def test_a_text_without_room_needs_the_host(self):
        options = {"temperature": 0.9, "seed": 3, "presence_penalty": 0.5}
        with mock.patch.object(vllm_stream, "_EDIT_BYTES", SLOTS * 20 * 16):
            runners = [self.streamed(), self.waiting()]
        for runner in runners:
            runner.add("a", [3, 7], SamplingParams(**options))  # 30 tokens are to come, for 20 places
            runner.add("plain", [3, 7], SamplingParams(**OPTIONS["plain"]))
        self.run_both(*runners, [(["a", "plain"], [])] * 24)
        slots = runners[0].states.req_id_to_index
        self.assertEqual([runners[0].sampler.stream.is_queued(slots[name]) for name in ("a", "plain")], [False, True])
        self.assertEqual(runners[0].text("a"), runners[1].text("a"))

    def test_reasons_to_wait_are_said(self):
        for reason, setting, options in (
                ("a server samples", "127.0.0.1:1,in_process", {}),
                ("drafts", "in_process", {"speculative_config": types.SimpleNamespace(num_speculative_tokens=2)}),
                ("enable_batch_sharded_sampling", "in_process", {"parallel_config": types.SimpleNamespace(
                    tensor_parallel_size=2, enable_batch_sharded_sampling=True)}),
                ("sampling masks", "in_process", {"return_sampling_mask": True})):
            with self.subTest(reason), mock.patch.dict(os.environ, {vllm_common.SETTING: setting}), \
                    self.assertLogs("vllm.sortition", "WARNING") as logged:
                self.assertIsNone(Runner(self.ours, **options).sampler.stream)
            self.assertIn(reason, logged.output[-1])
        with mock.patch.object(FakeDevice, "index", lambda device: 7), \
                self.assertLogs("vllm.sortition", "WARNING") as logged:
            self.assertIsNone(Runner(self.ours).sampler.stream)
        self.assertIn("NOT_FOUND", logged.output[0])


class Rows(unittest.TestCase):
    def test_rows_that_begin_elsewhere_are_moved(self):
        for dtype in (torch.float32, torch.bfloat16):
            whole = torch.arange(7 * 64).view(7, 64).to(dtype)
            self.assertEqual(vllm_stream.Device.rows(whole[:, :50]).data_ptr(), whole.data_ptr())
            for logits in (whole[:, :50].contiguous(), whole[:, 1:51]):
                moved = vllm_stream.Device.rows(logits)
                self.assertEqual(((moved.stride(0) * moved.element_size()) % 16, moved.data_ptr() % 16), (0, 0))
                self.assertTrue(torch.equal(moved, logits))
        self.assertIsNone(vllm_stream.Device.index(torch.device("cpu")))
        self.assertEqual(vllm_stream.Device.index(torch.device("cuda:3")), 3)


if __name__ == "__main__":
    unittest.main()
