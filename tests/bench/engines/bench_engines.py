"""Cost of a token from Python and under engines, beside the C++ call and the engines' own samplers.

    bench_engines.py [--json FILE] [--rounds N] [--only REGEX]

Rows: a vocabulary of 128256, one thread each; repetition penalty 1.1, top-k 40, top-p 0.95, min-p 0.05, temperature
0.8, in the order of the engine that is compared. Contenders take turns, each time with another row; results are
medians, in microseconds a row. Texts (vllm_16_*, hf_32_*, llama_server_32): tokens a second of whole engines, see
texts.py; their table is printed.

py_inprocess: sortition.local, one row; the baseline is the same step in C++. py_shm: the service over shared memory
and a ring, as clients choose by themselves, with one row that lies there; the baseline is the C++ client's step.
vs_llamacpp_*: the adapter in process, and the service as in py_shm with 8 rows a step; the baseline is llama.cpp's
chain with its copy of the logits. vs_hf_*/N: N rows of a torch tensor, in process and as in py_shm with the copy into
shared memory; the baseline is Transformers' processors and torch's draw. api_REQUEST_SHAPE/N_PEER: the usual requests,
N rows in process; the baseline is the peer's own sampler. vllm_1_top_p: vLLM's runner calls its sampler for one
row with a vocabulary of 32000, the plugin's and its own. vllm_masks_512: from 512 drawn rows to vLLM's sampling masks,
by vLLM's own Python, with top-k 40 and without top-k. drafts_*: see drafts.py.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import numpy
import sortition.local
import torch
from transformers.generation import logits_process as hf

import drafts
import texts
from pictures import engines_table
from rows import serve

VOCABULARY = 128256
ROWS = 64
SAMPLING = {"repetition_penalty": 1.1, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "temperature": 0.8}
LLAMA_ORDER = {**SAMPLING, "chain": {"preset": "PRESET_LLAMA_CPP"}}
HF_ORDER = {**SAMPLING, "chain": {"preset": "PRESET_HF"}}
# The usual requests of an interface like OpenAI's. vllm_sampler.py and contenders.cc have the same.
REQUESTS = {"plain": {"temperature": 1.0}, "top_p": {"temperature": 0.8, "top_p": 0.95},
            "logprobs": {"temperature": 0.8, "top_p": 0.95, "raw_logprobs": {"top": 5}}}

# The least that Sortition must be as a multiple of its baseline's speed, or the most microseconds that it may take.
FASTER = {"vs_llamacpp_inprocess": 10, "vs_llamacpp_shm": 3, "vs_hf_inprocess/1": 50, "vs_hf_inprocess/32": 50,
          "vs_hf_shm/1": 20, "vs_hf_shm/32": 20, "vllm_1_top_p": 12, "llama_server_32": 2.4,
          "llama_server_32_service": 1.3, "vllm_16_greedy_f32": 1.0, "vllm_16_greedy_f32_service": 1.0}
# Those of whole texts, with one thread and with two.
for _case, _here, _service in (("vllm_16_full", 30, 25), ("vllm_16_greedy", 1.3, 1.0), ("vllm_16_top_p", 20, 15),
                               ("hf_32_full", 35, 22)):
    for _end in ("", "_2_threads") + (("_f32",) if _case == "hf_32_full" else ()):
        FASTER |= {_case + _end: _here, f"{_case}{_end}_service": _service}
FASTER |= {f"drafts_{shape}_{noise}": 2.5 for shape in ("sharp", "peaked") for noise in drafts.NOISES}
MOST = {"py_inprocess": lambda baseline: 1.2 * baseline + 5, "py_shm": lambda baseline: baseline + 40,
        "vllm_masks_512": lambda _: 1000, "vllm_masks_512_top_p": lambda _: 1000}

torch.set_num_threads(1)


class Process:
    """Contenders in a separate process, which time themselves."""

    def __init__(self, command, matrix, folder, *more):
        path = os.path.join(folder, "logits")
        matrix.tofile(path)
        self._process = subprocess.Popen((*command, path, str(matrix.shape[1]), str(ROWS), *more),
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

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
    client = sortition.Client(listen, rows="full")
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
    client = sortition.Client(listen, rows="full")
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


def api_rows(shape):
    """Rows like those of docs/benchmarks/cpu.md: a normal bulk and 300 tokens by a power law ("sharp": a steeper one),
    or almost alike."""
    random = numpy.random.default_rng(4)
    if shape == "flat":
        return (random.standard_normal((ROWS, VOCABULARY)) * 0.05).astype(numpy.float32)
    matrix = (random.standard_normal((ROWS, VOCABULARY)) * 2.5).astype(numpy.float32)
    fall = 3 if shape == "sharp" else 1.5
    for row in matrix:
        row[random.choice(VOCABULARY, 300, replace=False)] = 20 - fall * numpy.log(numpy.arange(1, 301))
    return matrix


def torch_draw(request, batch):
    """Draws as torch's users write it, with logprobs of the token and of the first ones where they are asked for."""
    scaled = batch / request["temperature"]
    probabilities = torch.softmax(scaled, -1)
    if "top_p" in request:
        ordered, ids = probabilities.sort(-1, descending=True)
        ordered[ordered.cumsum(-1) - ordered > request["top_p"]] = 0
        drawn = ids.gather(-1, torch.multinomial(ordered, 1))
    else:
        drawn = torch.multinomial(probabilities, 1)
    if "raw_logprobs" in request:
        logprobs = torch.log_softmax(batch, -1)
        logprobs.gather(-1, drawn).tolist()
        logprobs.topk(request["raw_logprobs"]["top"], -1).values.tolist()
    return drawn.tolist()


def vllm_samplers(matrix, folder):
    return Process((os.environ["ENGINES_VLLM_PYTHON"], pathlib.Path(__file__).with_name("vllm_sampler.py")), matrix,
                   folder)


def one_row_of_vllm(folder, rounds):
    matrix = (numpy.random.default_rng(4).standard_normal((ROWS, 32000)) * 3).astype(numpy.float32)
    process = vllm_samplers(matrix, folder)
    result = medians({name: process.contender(f"{name}/top_p/1") for name in ("plugin", "own")}, rounds)
    process.close()
    yield "vllm_1_top_p", result["plugin"], result["own"]


def beside_peers(folder, listen, rounds, shape, rows):
    matrix = api_rows(shape)
    native = Process((os.environ["ENGINES_CONTENDERS"],), matrix, folder, listen)
    vllm = vllm_samplers(matrix, folder)
    logits, sampler = torch.from_numpy(matrix), sortition.local.Sampler()

    def pick(index):
        first = index % (ROWS - rows + 1)
        return logits[first:first + rows]

    for name, request in REQUESTS.items():
        local = [sampler.open(vocabulary_size=VOCABULARY, seed=row, **request) for row in range(rows)]
        contenders = {"ours": timed(lambda batch, local=local: tokens_of(sampler.step(local, batch)), pick),
                      "torch": timed(lambda batch, request=request: torch_draw(request, batch), pick),
                      "vllm": vllm.contender(f"own/{name}/{rows}", rows)}
        if rows == 1 and name != "logprobs":  # llama.cpp's sampler takes one row, and returns no logprobs
            contenders["llamacpp"] = native.contender(f"llama_{name}")
        result = medians(contenders, rounds)
        for peer in list(contenders)[1:]:
            yield f"api_{name}_{shape}/{rows}_{peer}", result["ours"] / rows, result[peer] / rows
    native.close()
    vllm.close()


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "unknown")


def judged(name, value, baseline, unit="us", **more):
    """A result, with its aim. `value` and `baseline` are times, or tokens a second."""
    speed = baseline and (value / baseline if unit == "tokens/s" else baseline / value)
    aim = FASTER.get(name, 1) if name in FASTER or name.startswith("api_") else MOST[name](baseline)
    result = {"name": name, "value": value, "unit": unit, "baseline": baseline, "times_as_fast": speed, "aim": aim,
              "held": value <= aim if name in MOST else speed >= aim, **more}
    beside = f"baseline {baseline:10.2f}  {speed:8.2f} times as fast" if baseline else ""
    if "ours" in more:
        steps = [more[whose]["ms_between_tokens_p10"] for whose in ("own", "ours")]
        beside += f" (10th percentile of steps: {steps[0]:.2f} / {steps[1]:.2f} ms = {steps[0] / steps[1]:.2f})"
    print(f"{name:24} {value:10.2f} {unit:8} {beside}  aim {aim:8.2f} {'held' if result['held'] else 'MISSED'}",
          flush=True)
    return result


def rows_figures(folder, listen, rounds, wanted):
    """Yields results of single rows, of those groups that have a wanted name."""
    matrix = (numpy.random.default_rng(4).standard_normal((ROWS, VOCABULARY)) * 3).astype(numpy.float32)
    native = None
    if wanted("py_inprocess", "py_shm", "vs_llamacpp"):
        native = Process((os.environ["ENGINES_CONTENDERS"],), matrix, folder, listen)
    groups = ((("py_inprocess", "py_shm"), lambda: from_python(matrix, native, listen, rounds)),
              (("vs_llamacpp_inprocess", "vs_llamacpp_shm"), lambda: beside_llama(native, rounds)),
              (("vs_hf_inprocess/1", "vs_hf_shm/1"), lambda: beside_transformers(matrix, listen, rounds // 4, 1)),
              (("vs_hf_inprocess/32", "vs_hf_shm/32"),
               lambda: beside_transformers(matrix, listen, max(5, rounds // 60), 32)))
    groups += ((("vllm_1_top_p",), lambda: one_row_of_vllm(folder, rounds)),)
    groups += tuple(((f"api_plain_{shape}/{rows}", f"api_top_p_{shape}/{rows}", f"api_logprobs_{shape}/{rows}"),
                     lambda shape=shape, rows=rows: beside_peers(folder, listen, max(5, rounds // (5 * rows)), shape,
                                                                 rows))
                    for shape in ("peaked", "flat") for rows in (1, 16))
    for names, figures in groups:
        if wanted(*names):
            for name, value, baseline in figures():
                yield judged(name, value, baseline)
    if native:
        native.close()


def masks_figure(name, top_k):
    """Measures the way from 512 drawn rows to vLLM's masks, under the Python with vLLM's runner of generation 2."""
    done = subprocess.run([os.environ["ENGINES_RUNNER_2_PYTHON"], pathlib.Path(__file__).with_name("masks.py"),
                           str(top_k)], stdout=subprocess.PIPE, check=True, text=True)
    tokens, microseconds = map(float, done.stdout.split()[-2:])
    return judged(name, microseconds, None, tokens_of_a_mask=tokens)


def drafts_figures(rounds):
    """Yields the time of a step with argmax drafts beside those that were drawn and have their probabilities."""
    for shape in ("sharp", "peaked"):
        for noise, ways in drafts.measure(api_rows(shape), rounds):
            (ours, accepted), (theirs, others) = ways["argmax"], ways["block"]
            yield judged(f"drafts_{shape}_{noise}", ours, theirs, tokens=accepted, baseline_tokens=others)
            print(f"{'':24} tokens of a request and step: {accepted:.2f}, baseline {others:.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--only", default="", help="names of figures, a regular expression")
    arguments = parser.parse_args()

    def wanted(*names):
        return any(re.search(arguments.only, name) for name in names)

    results = []
    with tempfile.TemporaryDirectory() as folder:
        with serve(f"--memory_listen=unix:{folder}/memory.sock", "--cpu_threads=1",
                   listen=f"unix:{folder}/stream.sock") as server:
            results += rows_figures(folder, server.serving["listen"], arguments.rounds, wanted)
        results += [masks_figure(name, top_k) for name, top_k in (("vllm_masks_512", 40), ("vllm_masks_512_top_p", 0))
                    if wanted(name)]
        if wanted("drafts"):
            results += drafts_figures(max(3, arguments.rounds // 30))
        # The service for whole texts shares no memory: rows travel through its socket.
        with serve(listen=f"unix:{folder}/texts.sock") as server:
            for engine in texts.PREFIX:
                for name, ours, own in texts.measure(engine, folder, server.serving["listen"], wanted):
                    results.append(judged(name, ours["tokens_per_second"], own["tokens_per_second"], "tokens/s",
                                          ours=ours, own=own))
    figures = {"suite": "engines", "machine": machine(), "load": os.getloadavg()[0], "results": results}
    print("\n".join(engines_table(figures)))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
