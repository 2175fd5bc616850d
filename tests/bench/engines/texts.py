"""Whole texts under engines: tokens a second, and time between tokens, with Sortition and without.

Each engine runs three times, each in a separate process: with its own sampler, with Sortition in process, and with the
service over a Unix socket. They take turns, one round of texts each, on the same cores. A model has random weights, one
layer and a vocabulary of 128256. Its type is bfloat16 and the engine has one thread, unless a figure's name says
otherwise. llama-server answers requests over HTTP, one for each slot.
"""

import concurrent.futures
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
VOCABULARY = 128256
# By engine: its Python's variable and rows at once.
ENGINES = {"vllm": ("ENGINES_VLLM_PYTHON", 16), "transformers": ("ENGINES_PYTHON", 32), "llama_server": ("", 32)}
PREFIX = {"vllm": "vllm_16", "transformers": "hf_32", "llama_server": "llama_server_32"}
# By engine, its setups: the end of their figures' names, the model's type, the engine's threads, and for each case the
# tokens of a round and the rounds.
SETUPS = {
    "vllm": (("", "bfloat16", 1, {"full": (25, 5), "greedy": (25, 15), "top_p": (25, 3)}),
             ("_f32", "float32", 1, {"greedy": (25, 15)}),
             ("_2_threads", "bfloat16", 2, {"full": (25, 5), "greedy": (25, 15), "top_p": (25, 3)})),
    "transformers": (("", "bfloat16", 1, {"full": (25, 3)}), ("_f32", "float32", 1, {"full": (25, 3)}),
                     ("_2_threads", "bfloat16", 2, {"full": (25, 3)})),
    "llama_server": (("", "", 0, {"full": (25, 7)}),),
}
# Keeps freed memory, as the malloc does that vLLM advises for CPUs. Otherwise glibc gives back a step's logits now and
# then, and the next step takes 3 ms longer for their page faults.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
# llama-server's default filters, with penalties.
LLAMA_FULL = {"temperature": 0.8, "repeat_penalty": 1.1, "frequency_penalty": 0.1}


def make_model(folder, engine):
    """Writes the model, with the Python that has Transformers and gguf. Returns its path."""
    if engine == "llama_server":
        path = os.path.join(folder, "model.gguf")
        if not os.path.exists(path):
            import random_gguf
            random_gguf.main(path, "words", VOCABULARY, 1)
        return path
    path = os.path.join(folder, "model")
    if os.path.exists(path):
        return path
    code = "import sys, small_model; small_model.make(sys.argv[1], vocabulary=int(sys.argv[2]), layers=1, hidden=32)"
    subprocess.run([os.environ["ENGINES_PYTHON"], "-c", code, path, str(VOCABULARY)], check=True)
    return path


class Writer:
    """A worker's process."""

    def __init__(self, engine, model, sampling, dtype, threads, log):
        python, rows = ENGINES[engine]
        self._process = subprocess.Popen(
            [os.environ[python], HERE / "texts_worker.py", engine, model, sampling, str(rows), dtype, str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1,
            env={**os.environ, **MALLOC})

    def write(self, case, tokens):
        print(case, tokens, file=self._process.stdin)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("an engine ended; see its log")
        return json.loads(answer)

    def close(self):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


class LlamaWriter:
    """llama-server, and clients that each write a text. Its times are those of one of the texts, which is streamed."""

    def __init__(self, model, sampling):
        from llama_server_process import LlamaServer

        self.rows = ENGINES["llama_server"][1]
        self._server = LlamaServer(model, sampling, slots=self.rows).__enter__()
        self._pool = concurrent.futures.ThreadPoolExecutor(self.rows)

    def write(self, case, tokens):
        options = LLAMA_FULL if case == "full" else {"temperature": 0.0}
        # The first tokens come while other prompts are read.
        asked = {"n_predict": tokens + 4, "logit_bias": [[VOCABULARY - 1, False]], **options}
        others = [self._pool.submit(self._server.tokens, prompt=[1, 70 + row], **asked) for row in range(1, self.rows)]
        times = []
        with self._server.open(prompt=[1, 70], stream=True, **asked) as stream:
            for line in stream:
                if line.startswith(b"data:"):
                    times.append(time.perf_counter())
        for other in others:
            other.result()
        times = times[4:4 + tokens]
        return [after - before for before, after in zip(times, times[1:])]

    def close(self):
        self._server.__exit__()
        self._pool.shutdown()


def figures_of(rows, times):
    """Returns tokens a second (the median round's) and ms, from rounds that are lists of seconds between tokens."""
    every = sorted(time for made in times for time in made)
    return {"tokens_per_second": statistics.median(rows * len(made) / sum(made) for made in times),
            "ms_between_tokens": 1e3 * statistics.median(every),
            "ms_between_tokens_p10": 1e3 * every[int(0.1 * (len(every) - 1))],
            "ms_between_tokens_p95": 1e3 * every[int(0.95 * (len(every) - 1))]}


def name_of(engine, case, end):
    return PREFIX[engine] if engine == "llama_server" else f"{PREFIX[engine]}_{case}{end}"


def measure(engine, folder, target, wanted):
    """Yields (name, Sortition's figures, the engine's own) of an engine's cases that have a wanted name."""
    for end, dtype, threads, cases in SETUPS[engine]:
        names = {case: name_of(engine, case, end) for case in cases}
        cases = {names[case]: (case, *size) for case, size in cases.items()
                 if wanted(names[case], f"{names[case]}_service")}
        if cases:
            yield from measure_setup(engine, folder, target, (dtype, threads), cases)


def measure_setup(engine, folder, target, setup, cases):
    """Measures cases of one setup: a case, its tokens and rounds by name."""
    model = make_model(folder, engine)
    samplings = {"own": "", "in_process": "in_process", "service": target}
    with open(os.path.join(folder, f"{engine}.log"), "w+", encoding="utf-8") as log:
        writers = {}
        try:
            for name, sampling in samplings.items():
                writers[name] = (LlamaWriter(model, sampling) if engine == "llama_server" else
                                 Writer(engine, model, sampling, *setup, log))
                writers[name].write("greedy", 3)
            for name, (case, tokens, rounds) in cases.items():
                times = {name: [] for name in writers}
                for index in range(rounds + 1):
                    for writer, process in writers.items():
                        made = process.write(case, tokens)
                        if index:  # the first round warms up
                            times[writer].append(made)
                rows = ENGINES[engine][1]
                figures = {writer: figures_of(rows, made) for writer, made in times.items()}
                yield name, figures["in_process"], figures["own"]
                yield f"{name}_service", figures["service"], figures["own"]
        except RuntimeError:
            log.seek(0)
            sys.stderr.write(log.read()[-4000:])
            raise
        finally:
            for writer in writers.values():
                writer.close()
