"""vLLM's own sampler on the CPU, in a separate process, for bench_engines.py.

    vllm_sampler.py LOGITS VOCABULARY ROWS

LOGITS is a file of ROWS rows of f32. For each line "REQUEST/BATCH INDEX" of standard input the sampler draws a token
from each of BATCH rows from INDEX on, and the microseconds that it took are printed. Requests are those of
bench_engines.py's REQUESTS.
"""

import sys
import time

import numpy
import torch
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

REQUESTS = {"plain": (1.0, None, None), "top_p": (0.8, 0.95, None), "logprobs": (0.8, 0.95, 5)}


def metadata(request, rows):
    temperature, top_p, logprobs = REQUESTS[request]
    empty = torch.empty(0)
    return SamplingMetadata(
        temperature=torch.full((rows,), temperature), all_greedy=False, all_random=True,
        top_p=None if top_p is None else torch.full((rows,), top_p), top_k=None, generators={},
        max_num_logprobs=logprobs, no_penalties=True, prompt_token_ids=None, frequency_penalties=empty,
        presence_penalties=empty, repetition_penalties=empty, output_token_ids=[[] for _ in range(rows)],
        allowed_token_ids_mask=None, bad_words_token_ids={}, logitsprocs=LogitsProcessors())


def main():
    path, vocabulary, rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    matrix = torch.from_numpy(numpy.fromfile(path, dtype="f4").reshape(rows, vocabulary))
    torch.set_num_threads(1)
    sampler, cases = Sampler(), {}
    for line in sys.stdin:
        name, index = line.split()
        request, batch = name.split("/")
        if name not in cases:
            cases[name] = metadata(request, int(batch))
        logits = matrix[int(index):int(index) + int(batch)].clone()  # the sampler writes to it
        start = time.perf_counter()
        drawn = sampler(logits, cases[name]).sampled_token_ids.tolist()
        took = (time.perf_counter() - start) * 1e6
        assert len(drawn) == int(batch)
        print(took, flush=True)


if __name__ == "__main__":
    main()
