"""Cost of a token from Python and under engines, beside the C++ call and the engines' own samplers.

    bench_engines.py [--json FILE] [--rounds N]

A vocabulary of 128256, one thread each; repetition penalty 1.1, top-k 40, top-p 0.95, min-p 0.05, temperature 0.8, in
the order of the engine that is compared. Contenders take turns, each time with another row; results are medians, in
microseconds a row.

py_inprocess: sortition.local, one row; the baseline is the same step in C++. py_shm: the service over shared memory,
with one row that lies there; the baseline is the C++ client's step. vs_llamacpp_*: the adapter in process, and the
service over shared memory with 8 rows a step; the baseline is llama.cpp's chain with its copy of the logits. vs_hf_*/N:
N rows of a torch tensor, in process and over shared memory with the copy into it; the baseline is Transformers'
processors and torch's draw.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy
import sortition.local
import torch
from transformers.generation import logits_process as hf

from rows import serve

VOCABULARY = 128256
ROWS = 64
SAMPLING = {"repetition_penalty": 1.1, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "temperature": 0.8}
LLAMA_ORDER = {**SAMPLING, "chain": {"preset": "PRESET_LLAMA_CPP"}}
HF_ORDER = {**SAMPLING, "chain": {"preset": "PRESET_HF"}}

torch.set_num_threads(1)


class Native:
    """The contenders in C++, which time themselves."""

    def __init__(self, matrix, folder, listen):
        path = os.path.join(folder, "logits")
        matrix.tofile(path)
        self._process = subprocess.Popen(
            (os.environ["ENGINES_CONTENDERS"], path, str(VOCABULARY), str(ROWS), listen), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, bufsize=1)

    def contender(self, name, rows=1):
        def run(index):
            print(name, index % (ROWS - rows + 1), file=self._process.stdin)
            return float(self._process.stdout.readline())

        return run

    def close(self):
        self._process.communicate()


def timed(call, prepare=lambda index: None):
    def run(index):
        prepared = prepare(index)
        start = time.perf_counter()
        call(prepared)
        return (time.perf_counter() - start) * 1e6

    return run


def medians(contenders, rounds):
    """Times of each contender. They take turns on rows that the contender before has not just read."""
    times = {name: [] for name in contenders}
    for index in range(rounds + 3):
        for offset, (name, run) in enumerate(contenders.items()):
            took = run((index + 7 * offset) % ROWS)
            if index >= 3:
                times[name].append(took)
    return {name: statistics.median(values) for name, values in times.items()}


def tokens_of(outcomes):
    for outcome in outcomes:
        if isinstance(outcome, sortition.Error):
            raise outcome


def from_python(matrix, native, listen, rounds):
    sampler = sortition.local.Sampler()
    local = sampler.open(vocabulary_size=VOCABULARY, seed=7, **LLAMA_ORDER)
    client = sortition.Client(listen, transport="grpc", rows="full")
    remote = client.open(vocabulary_size=VOCABULARY, seed=7, **LLAMA_ORDER)
    shared = client.allocate_rows(1, VOCABULARY)

    def put(index):
        shared[...] = matrix[index]

    result = medians({"inprocess": timed(lambda row: sampler.draw(local, row), lambda index: matrix[index]),
                      "inprocess_cpp": native.contender("local"),
                      "shm": timed(lambda _: tokens_of(client.step([remote], shared)), put),
                      "shm_cpp": native.contender("remote")}, rounds)
    yield "py_inprocess", result["inprocess"], result["inprocess_cpp"]
    yield "py_shm", result["shm"], result["shm_cpp"]


def beside_llama(native, rounds):
    result = medians({"llama": native.contender("llama"), "adapter": native.contender("adapter"),
                      "shm": native.contender("remote8", rows=8)}, rounds)
    yield "vs_llamacpp_inprocess", result["adapter"], result["llama"]
    yield "vs_llamacpp_shm", result["shm"] / 8, result["llama"]


def beside_transformers(matrix, listen, rounds, rows):
    chain = hf.LogitsProcessorList([
        hf.RepetitionPenaltyLogitsProcessor(1.1), hf.TemperatureLogitsWarper(0.8), hf.TopKLogitsWarper(40),
        hf.TopPLogitsWarper(0.95), hf.MinPLogitsWarper(0.05)])
    history = torch.randint(VOCABULARY, (rows, 64))
    logits = torch.from_numpy(matrix)
    sampler = sortition.local.Sampler()
    client = sortition.Client(listen, transport="grpc", rows="full")
    local, remote = ([opener.open(vocabulary_size=VOCABULARY, prompt=history[row], seed=row, **HF_ORDER)
                      for row in range(rows)] for opener in (sampler, client))

    def pick(index):
        first = index % (ROWS - rows + 1)
        return logits[first:first + rows]

    def draw(batch):
        torch.multinomial(torch.softmax(chain(history, batch), -1), 1).tolist()

    result = medians({"hf": timed(draw, lambda index: pick(index).clone()),
                      "inprocess": timed(lambda batch: tokens_of(sampler.step(local, batch)), pick),
                      "shm": timed(lambda batch: tokens_of(client.step(remote, batch)), pick)}, rounds)
    yield f"vs_hf_inprocess/{rows}", result["inprocess"] / rows, result["hf"] / rows
    yield f"vs_hf_shm/{rows}", result["shm"] / rows, result["hf"] / rows


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "unknown")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=300)
    arguments = parser.parse_args()
    matrix = (numpy.random.default_rng(4).standard_normal((ROWS, VOCABULARY)) * 3).astype(numpy.float32)
    results = []
    with tempfile.TemporaryDirectory() as folder, serve(
            f"--memory_listen=unix:{folder}/memory.sock", "--cpu_threads=1",
            listen=f"unix:{folder}/stream.sock") as server:
        listen = server.serving["listen"]
        native = Native(matrix, folder, listen)
        for figures in (from_python(matrix, native, listen, arguments.rounds), beside_llama(native, arguments.rounds),
                        beside_transformers(matrix, listen, arguments.rounds // 4, 1),
                        beside_transformers(matrix, listen, max(5, arguments.rounds // 60), 32)):
            for name, value, baseline in figures:
                results.append({"name": name, "value": value, "unit": "us", "baseline": baseline,
                                "ratio": value / baseline})
                print(f"{name:24} {value:10.2f} us  baseline {baseline:10.2f}  ratio {value / baseline:8.4f}"
                      f"  ({baseline / value:.1f} times as fast)")
                sys.stdout.flush()
        native.close()
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"suite": "engines", "machine": machine(), "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
