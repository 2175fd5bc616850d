"""Samplers of vLLM's runner on the CPU, in a separate process, for bench_engines.py.

    vllm_sampler.py LOGITS VOCABULARY ROWS

LOGITS is a file of ROWS rows of f32. For each line "SAMPLER/REQUEST/BATCH INDEX" of standard input the sampler draws a
token from each of BATCH rows from INDEX on, and the microseconds that it took are printed. SAMPLER is "own" (vLLM's) or
"plugin" (Sortition in process). Requests are those of bench_engines.py's REQUESTS.
"""

import os
import sys
import time

os.environ["SORTITION_VLLM"] = "in_process"

import numpy
import torch
from sortition import vllm as plugin
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

REQUESTS = {"plain": (1.0, None, None), "top_p": (0.8, 0.95, None), "logprobs": (0.8, 0.95, 5)}


class Case:
    """A batch of requests under one of the samplers."""

    def __init__(self, sampler, request, rows):
        temperature, top_p, logprobs = REQUESTS[request]
        self._outputs = [[] for _ in range(rows)]
        processors = []
        if sampler == "plugin":
            params = SamplingParams(temperature=temperature, top_p=top_p or 1.0, logprobs=logprobs)
            tracker = plugin.RequestTracker(None, "cpu")
            tracker.update_state(BatchUpdate(batch_size=rows, removed=[], moved=[], added=[
                (row, params, [row], output) for row, output in enumerate(self._outputs)]))
            processors.append(tracker)
        empty = torch.empty(0)
        self._metadata = SamplingMetadata(
            temperature=torch.full((rows,), temperature), all_greedy=False, all_random=True,
            top_p=None if top_p is None else torch.full((rows,), top_p), top_k=None, generators={},
            max_num_logprobs=logprobs, no_penalties=True, prompt_token_ids=None, frequency_penalties=empty,
            presence_penalties=empty, repetition_penalties=empty, output_token_ids=self._outputs,
            allowed_token_ids_mask=None, bad_words_token_ids={}, logitsprocs=LogitsProcessors(processors))
        self._sampler = plugin.SortitionSampler() if sampler == "plugin" else Sampler()

    def draw(self, logits):
        """Returns the microseconds that the runner's call took, with its tokens as a list."""
        start = time.perf_counter()
        drawn = self._sampler(logits, self._metadata).sampled_token_ids.tolist()
        took = (time.perf_counter() - start) * 1e6
        for output, tokens in zip(self._outputs, drawn, strict=True):
            output += tokens
        return took


def main():
    path, vocabulary, rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    matrix = torch.from_numpy(numpy.fromfile(path, dtype="f4").reshape(rows, vocabulary))
    torch.set_num_threads(1)
    cases = {}
    for line in sys.stdin:
        name, index = line.split()
        if name not in cases:
            sampler, request, batch = name.split("/")
            cases[name] = int(batch), Case(sampler, request, int(batch))
        batch, case = cases[name]
        print(case.draw(matrix[int(index):int(index) + batch].clone()), flush=True)  # vLLM's sampler writes to it


if __name__ == "__main__":
    main()
