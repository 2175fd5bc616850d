"""Whole texts under engines: tokens a second, and time between tokens, with Sortition and without.

Each engine runs three times, each in a separate process: with its own sampler, with Sortition in process, and with the
service over a Unix socket. They take turns, one round of texts each, on the same cores. A model has random weights, one
layer and a vocabulary of 128256.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
VOCABULARY = 128256
# By engine: its Python's variable, rows at once, tokens of a round and rounds, for each case.
ENGINES = {
    "vllm": ("ENGINES_VLLM_PYTHON", 16, {"full": (9, 5), "greedy": (25, 9)}),
    "transformers": ("ENGINES_PYTHON", 32, {"full": (9, 5)}),
}
PREFIX = {"vllm": "vllm_16", "transformers": "hf_32"}


def make_model(folder):
    """Writes the model, with the Python that has Transformers."""
    code = "import sys, small_model; small_model.make(sys.argv[1], vocabulary=int(sys.argv[2]), layers=1, hidden=32)"
    path = f"{HERE.parents[1] / 'engines'}:{os.environ.get('PYTHONPATH', '')}"
    subprocess.run([os.environ["ENGINES_PYTHON"], "-c", code, folder, str(VOCABULARY)], check=True,
                   env={**os.environ, "PYTHONPATH": path})


class Writer:
    """A worker's process."""

    def __init__(self, engine, model, sampling, log):
        python, rows, _ = ENGINES[engine]
        self.rows = rows
        self._process = subprocess.Popen(
            [os.environ[python], HERE / "texts_worker.py", engine, model, sampling, str(rows)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1)

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


def figures_of(rows, times):
    """Returns tokens a second (the median round's) and ms, from rounds that are lists of seconds between tokens."""
    every = sorted(time for made in times for time in made)
    return {"tokens_per_second": statistics.median(rows * len(made) / sum(made) for made in times),
            "ms_between_tokens": 1e3 * statistics.median(every),
            "ms_between_tokens_p95": 1e3 * every[int(0.95 * (len(every) - 1))]}


def measure(engine, folder, target):
    """Yields (name, Sortition's figures, the engine's own) of an engine's cases."""
    model = os.path.join(folder, "model")
    if not os.path.exists(model):
        make_model(model)
    samplings = {"own": "", "in_process": "in_process", "service": target}
    with open(os.path.join(folder, f"{engine}.log"), "w+", encoding="utf-8") as log:
        writers = {}
        try:
            for name, sampling in samplings.items():
                writers[name] = Writer(engine, model, sampling, log)
                writers[name].write("greedy", 3)
            for case, (tokens, rounds) in ENGINES[engine][2].items():
                times = {name: [] for name in writers}
                for index in range(rounds + 1):
                    for name, writer in writers.items():
                        made = writer.write(case, tokens)
                        if index:  # the first round warms up
                            times[name].append(made)
                rows = ENGINES[engine][1]
                figures = {name: figures_of(rows, made) for name, made in times.items()}
                yield f"{PREFIX[engine]}_{case}", figures["in_process"], figures["own"]
                yield f"{PREFIX[engine]}_{case}_service", figures["service"], figures["own"]
        except RuntimeError:
            log.seek(0)
            sys.stderr.write(log.read()[-4000:])
            raise
        finally:
            for writer in writers.values():
                writer.close()
