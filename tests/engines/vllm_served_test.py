"""vLLM runs small models of random weights, alone and with the plugin: texts, refusals, drafts, loss of servers."""

import concurrent.futures
import functools
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import small_model

from sortitiond_process import Sortitiond, binary, free_port

HERE = pathlib.Path(__file__).resolve().parent
FOLDER = tempfile.TemporaryDirectory()
MODEL = small_model.make(pathlib.Path(FOLDER.name, "model"))
LORA = small_model.make_lora(pathlib.Path(FOLDER.name, "lora"), MODEL)
STEPS = 24
REPEATS = [1, 2, 3, 1, 2, 3, 1, 2]  # a prompt in which a lookup finds drafts
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}

# Those without a seed are greedy. The texts of all are one and the same in every run with the plugin.
REQUESTS = {
    "greedy": (REPEATS, {"temperature": 0.0}),
    "greedy with penalties": (REPEATS, {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.4,
                                        "presence_penalty": 0.2, "logprobs": 3}),
    "greedy with words": ([5, 6], {"temperature": 0.0, "bad_words": ["a", "bc"], "min_tokens": 6}),
    "plain": (REPEATS, {"temperature": 0.8, "seed": 7}),
    "full": (REPEATS, {"temperature": 1.2, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.3,
                       "frequency_penalty": 0.4, "seed": 8, "logprobs": 3}),
    "negative seed": ([5, 6], {"temperature": 0.9, "seed": -7}),
    "further options": (REPEATS, {"temperature": 1.2, "seed": 9, "extra_args": {
        "typical_p": 0.6, "xtc.probability": 0.5, "dry.multiplier": 0.8, "dry.sequence_breakers": [10]}}),
    "grammar": ([9, 9], {"temperature": 1.0, "seed": 3, "json": SCHEMA, "max_tokens": 60}),
}
NAMED = ([9, 9], {"temperature": 0.9, "seed": 4, "logprob_token_ids": [3, 1, 200]})
# Beside speculation vLLM without the plugin refuses these.
BIASED = ([5, 6], {"temperature": 0.0, "logit_bias": {"65": 4.0}}), ([5], {"seed": 1, "min_p": 0.1})
# Requests that are refused, each by a part of its refusal.
REFUSED = {
    "repetition_penalty (0.01..100)": {"repetition_penalty": 1000.0},
    "logit_bias[0].bias (|bias| < 65504)": {"logit_bias": {"3": 1e30}},
    "frequency_penalty": {"frequency_penalty": 2.5},
    "seed": {"seed": 2**64},
    "typical_p ((0, 1])": {"extra_args": {"typical_p": 2.0}},
    "extra_args.typicalp": {"extra_args": {"typicalp": 0.5}},
}
PENALTY_BELOW = {"repetition_penalty": 0.001}
POISONED = ([small_model.POISON, 3], {"temperature": 0.8, "seed": 1})
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
DRAFT_MODEL = {"method": "draft_model", "model": MODEL, "num_speculative_tokens": 3}
# A drafter that is the model itself, and samples: nearly every draft is accepted, if its probabilities are known.
SAMPLING = {**DRAFT_MODEL, "draft_sample_method": "probabilistic"}
SAMPLED = [([5, number], {"temperature": 1.0, "seed": number, "ignore_eos": True}) for number in range(6)]

# Shorter than their minimum, because a stop token is all that is allowed: at once, or after a grammar's end.
ENDED = [([5], {"allowed_token_ids": [small_model.END], "min_tokens": 5}),
         ([9, 9], {"seed": 3, "json": SCHEMA, "max_tokens": 60, "min_tokens": 60})]

# Three texts of one request, and each alone. vLLM gives them the seed and the ones after it.
CHOICES = [(REPEATS, {"temperature": 0.8, "seed": 7, "n": 3}),
           *((REPEATS, {"temperature": 0.8, "seed": seed}) for seed in (7, 8, 9))]
ABORTED = ([5, 6], {"temperature": 0.8, "repetition_penalty": 1.2, "seed": 3, "ignore_eos": True, "abort": 5})
# Two of REQUESTS, with an adapter. vLLM's build for CPUs confuses requests with and without one in a batch, so all here
# have it.
WITH_LORA = [(prompt, {**options, "lora": LORA}) for prompt, options in (REQUESTS["greedy"], REQUESTS["plain"])]

# Texts that do not fit together. Their prompts take several steps.
LONG = [([1 + number] * 3 + list(range(97)), {"temperature": 0.9, "seed": number, "repetition_penalty": 1.3,
                                              "presence_penalty": 0.4, "ignore_eos": True, "max_tokens": 40})
        for number in range(8)]
CROWDED = {"block_size": 32, "num_gpu_blocks_override": 20, "max_num_batched_tokens": 48}

THINKS = ([7, small_model.THINK], {"temperature": 0.9, "seed": 5, "thinking_token_budget": 5, "ignore_eos": True})
REASONING = {"reasoning_start_str": "<think>", "reasoning_end_str": "</think>"}


def environment(setting, generation=1):
    """`generation`: of vLLM's model runner. Triton's interpreter runs the kernels of the second."""
    made = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_USE_V2_MODEL_RUNNER": str(generation - 1),
            "SORTITION_VLLM": setting}
    if generation == 2:
        path = [str(HERE / "triton_on_cpu"), *filter(None, [os.environ.get("PYTHONPATH")])]
        # Keeps torch from compiling for Triton: the interpreter does not run that.
        made.update(TRITON_INTERPRET="1", TORCHDYNAMO_DISABLE="1", PYTHONPATH=os.pathsep.join(path))
    return made


def task(setting, batches, generation=1, **engine):
    return {"setting": setting, "generation": generation, "engine": {"model": MODEL, "max_logprobs": -1, **engine},
            "batches": [[[prompt, {"max_tokens": STEPS, **options}] for prompt, options in batch]
                        if isinstance(batch, (list, tuple)) else batch for batch in batches]}


def run_llm(one):
    """Runs a task in a separate process. Returns its batches of answers and its metrics, or how it failed."""
    done = subprocess.run([sys.executable, HERE / "vllm_texts.py"], input=json.dumps(one), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False,
                          env=environment(one["setting"], one["generation"]))
    if done.returncode != 0:
        raise AssertionError(done.stderr[-4000:])
    return json.loads(done.stdout)


@functools.lru_cache(maxsize=None)
def everything():
    """Runs a process for each engine. Returns each engine's answers, by its name."""
    refused = [([5], options) for options in [*REFUSED.values(), PENALTY_BELOW]]
    first = list(REQUESTS.values())
    whole = ([9], {"temperature": 0.0, "logprobs": -1, "max_tokens": 2})
    second = [whole, REQUESTS["plain"], POISONED, REQUESTS["full"]]
    listen = f"127.0.0.1:{free_port()}"
    command = [str(binary()), f"--listen={listen}", "--metrics_listen=127.0.0.1:0"]
    pair = [REQUESTS["plain"], REQUESTS["full"]]
    with Sortitiond(*command) as server:
        tasks = {
            "plugin": task("in_process", [first, second + refused, [THINKS], BIASED, [NAMED], CHOICES,
                                          [ABORTED, *first], LONG, ENDED, *([request] for request in first)],
                           reasoning_config=REASONING, async_scheduling=False),
            "crowded": task("in_process", [LONG], **CROWDED),
            "two ranks": task("in_process", [first], tensor_parallel_size=2),
            "lora": task("in_process", [WITH_LORA, *([request] for request in WITH_LORA)], enable_lora=True),
            "asynchronous": task("in_process", [first, [THINKS]], reasoning_config=REASONING, async_scheduling=True),
            "lookup": task("in_process", [first, second, BIASED, [THINKS]], speculative_config=NGRAM,
                           reasoning_config=REASONING),
            "draft model": task("in_process", [first, [THINKS]], speculative_config=DRAFT_MODEL,
                                reasoning_config=REASONING),
            "sampled drafts": task("in_process", [SAMPLED, [REQUESTS["greedy"]]], speculative_config=SAMPLING),
            "lost service": task(listen, [pair, {"kill": server.pid}, pair, {"start": command}, pair, pair]),
        }
        made = {name: run_llm(one) for name, one in tasks.items()}
    made["own"] = run_llm(task("", [first, [whole], BIASED]))
    made["own lora"] = run_llm(task("", [WITH_LORA], enable_lora=True))
    return made


def answers(name):
    """Returns the answers to REQUESTS by name, the other batches, and the metrics."""
    done = everything()[name]
    if "failed" in done:
        raise AssertionError(done["failed"])
    first, *others = done["batches"]
    return dict(zip(REQUESTS, first)), others, done["metrics"]


def tokens(made):
    return {name: answer.get("tokens") for name, answer in made.items()}


class Llm(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        everything()

    def assert_logprobs_equal(self, found, expected):
        for found_at, expected_at in zip(found, expected):
            self.assertEqual(found_at.keys(), expected_at.keys())
            for token in expected_at:
                self.assertAlmostEqual(found_at[token][0], expected_at[token][0], places=3)

    def test_greedy_texts_are_vllms(self):
        own, ours = answers("own")[0], answers("plugin")[0]
        for name in REQUESTS:
            if name.startswith("greedy"):
                self.assertEqual(ours[name]["tokens"], own[name]["tokens"], name)
        self.assert_logprobs_equal(ours["greedy with penalties"]["logprobs"], own["greedy with penalties"]["logprobs"])
        self.assertEqual(answers("plugin")[1][2][0]["tokens"], answers("own")[1][1][0]["tokens"])

    def test_bad_options_are_refused_by_field(self):
        _, (second, *_), _ = answers("plugin")
        for (text, options), answer in zip(REFUSED.items(), second[4:]):
            self.assertIn(text, answer.get("refused", answer), options)
        self.assertIn("repetition_penalty (0.01..100)", second[-1]["refused"])

    def test_negative_seed_is_served(self):
        self.assertGreater(len(answers("plugin")[0]["negative seed"]["tokens"]), 3)

    def test_named_logprobs_are_served(self):
        (answer,) = answers("plugin")[1][3]
        for token, position in zip(answer["tokens"], answer["logprobs"]):
            self.assertEqual(set(position), {"3", "1", "200", str(token)})
            self.assertTrue(all(math.isfinite(part[0]) for part in position.values()))

    def test_all_logprobs_are_served(self):
        own, ours = (answers(name)[1][0][0] for name in ("own", "plugin"))
        self.assertEqual(len(ours["logprobs"][0]), small_model.VOCABULARY)
        self.assert_logprobs_equal(ours["logprobs"], own["logprobs"])

    def test_thinking_budget_is_served(self):
        (answer,) = answers("plugin")[1][1]
        self.assertEqual(answer["tokens"].index(small_model.ANSWER), 5)

    def test_thinking_budget_holds_under_speculation(self):
        expected = answers("plugin")[1][1][0]["tokens"]
        self.assertEqual(answers("lookup")[1][2][0]["tokens"], expected)
        self.assertEqual(answers("draft model")[1][0][0]["tokens"], expected)

    def test_asynchronous_scheduling_keeps_texts(self):
        made, (thinks,), _ = answers("asynchronous")
        self.assertEqual(tokens(made), tokens(answers("plugin")[0]))
        self.assertEqual(thinks[0]["tokens"], answers("plugin")[1][1][0]["tokens"])

    def test_a_bad_row_ends_one_request(self):
        first, (second, *_), _ = answers("plugin")
        _, plain, poisoned, full, *_ = second
        self.assertEqual((poisoned["finish"], poisoned["tokens"]), ("error", []))
        self.assertIn("LOGIT_NAN", poisoned["stop"])
        self.assertEqual([plain["tokens"], full["tokens"]], [first["plain"]["tokens"], first["full"]["tokens"]])

    def test_choices_are_the_texts_of_the_next_seeds(self):
        every, *alone = answers("plugin")[1][4]
        self.assertEqual(every["texts"], [answer["tokens"] for answer in alone])
        self.assertGreater(len(set(map(tuple, every["texts"]))), 1)

    def test_an_aborted_request_leaves_its_neighbours(self):
        aborted, *others = answers("plugin")[1][5]
        self.assertIsNone(aborted)
        self.assertEqual([answer["tokens"] for answer in others], list(tokens(answers("plugin")[0]).values()))

    def test_texts_do_not_depend_on_their_batch(self):
        made, _, _ = answers("plugin")
        alone = everything()["plugin"]["batches"][-len(REQUESTS):]
        self.assertEqual([answer["tokens"] for (answer,) in alone], list(tokens(made).values()))

    def test_preemption_and_prompts_in_parts_keep_texts(self):
        crowded = everything()["crowded"]
        expected = everything()["plugin"]["batches"][7]
        self.assertEqual([answer["tokens"] for answer in crowded["batches"][0]],
                         [answer["tokens"] for answer in expected])
        self.assertGreater(crowded["metrics"]["vllm:num_preemptions"], 0)

    def test_ranks_draw_the_texts_of_one(self):
        self.assertEqual(tokens(answers("two ranks")[0]), tokens(answers("plugin")[0]))

    def test_adapters_have_texts_of_their_model(self):
        (own, _), = everything()["own lora"]["batches"]
        (greedy, sampled), *alone = everything()["lora"]["batches"]
        self.assertEqual(greedy["tokens"], own["tokens"])
        self.assertNotEqual(sampled["tokens"], answers("plugin")[0]["plain"]["tokens"])
        self.assertEqual([greedy["tokens"], sampled["tokens"]], [answer["tokens"] for (answer,) in alone])

    def test_min_tokens_leave_stop_tokens_that_alone_are_allowed(self):
        only, grammar = everything()["plugin"]["batches"][8]
        self.assertEqual((only["tokens"], only["finish"]), ([small_model.END], "stop"))
        self.assertEqual((grammar["tokens"][-1], grammar["finish"]), (small_model.END, "stop"))
        self.assertIn("a", json.loads(grammar["text"]))

    def test_grammars_hold(self):
        self.assertIn("a", json.loads(answers("plugin")[0]["grammar"]["text"]))

    def test_lookup_keeps_texts(self):
        made, (second, biased, _), metrics = answers("lookup")
        self.assertEqual([answer["tokens"] for answer in biased],
                         [answer["tokens"] for answer in answers("plugin")[1][2]])
        self.assertEqual(tokens(made), tokens(answers("plugin")[0]))
        self.assertEqual(second[2]["finish"], "error")
        self.assertGreater(metrics["vllm:spec_decode_num_draft_tokens"], 0)

    def test_draft_model_keeps_texts(self):
        made, _, metrics = answers("draft model")
        plain = answers("plugin")[0]
        self.assertEqual(tokens(made), tokens(plain))
        self.assertGreater(metrics["vllm:spec_decode_num_accepted_tokens"], 20)
        self.assert_logprobs_equal(made["full"]["logprobs"], plain["full"]["logprobs"])

    def test_sampled_drafts_are_verified_with_their_probabilities(self):
        done = everything()["sampled drafts"]
        self.assertEqual(done["batches"][1][0]["tokens"], answers("plugin")[0]["greedy"]["tokens"])
        self.assertGreater(done["metrics"]["vllm:spec_decode_num_accepted_tokens"],
                           0.8 * done["metrics"]["vllm:spec_decode_num_draft_tokens"])

    def test_a_lost_service_ends_requests_only(self):
        """Nothing answers for longer than a step waits. Afterwards requests are served again."""
        answers("lost service")
        before, without, _, after = everything()["lost service"]["batches"]
        plain = answers("plugin")[0]
        expected = [plain["plain"]["tokens"], plain["full"]["tokens"]]
        self.assertEqual([answer["tokens"] for answer in before], expected)
        self.assertEqual([answer["finish"] for answer in without], ["error"] * 2)
        self.assertEqual([answer["tokens"] for answer in after], expected)


class Example(unittest.TestCase):
    def test_the_text_is_the_same_across_a_killed_server(self):
        example = HERE.parents[1] / "client/examples/vllm_same_text.py"
        done = subprocess.run([sys.executable, example, MODEL, binary(), "float32"], text=True, check=False,
                              env=environment(""), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr[-4000:])
        self.assertRegex(done.stdout, r"generation 1: \[\d+, .*\]\nthe server killed: \[\d+, ")


class Served:
    """vLLM's server with the model. `vllm serve` starts the same, but not in the build for CPUs."""

    def __init__(self, setting):
        self.port = free_port()
        self.log = open(pathlib.Path(FOLDER.name, "serve.log"), "w", encoding="utf-8")
        variables = {**environment(setting), "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", MODEL, "--port", str(self.port),
             "--host", "127.0.0.1", "--dtype", "float32", "--enforce-eager", "--max-model-len", "256",
             "--max-num-seqs", "16", "--served-model-name", "small"], stdout=self.log, stderr=self.log, env=variables)

    def __enter__(self):
        end = time.monotonic() + 400
        while time.monotonic() < end and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                    return self
            except OSError:
                time.sleep(0.5)
        self.__exit__()
        raise AssertionError(self.text()[-4000:])

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()

    def text(self):
        return pathlib.Path(self.log.name).read_text(encoding="utf-8")

    def open(self, **options):
        body = {"model": "small", "max_tokens": STEPS, "return_token_ids": True, **options}
        return urllib.request.urlopen(urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions", json.dumps(body).encode(),
            {"Content-Type": "application/json"}), timeout=120)

    def complete(self, prompt, **options):
        """Returns (HTTP status, message)."""
        try:
            with self.open(prompt=prompt, **options) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def tokens(self, number):
        status, answer = self.complete([3, number % 200], temperature=0.9, seed=number, repetition_penalty=1.2,
                                       max_tokens=100, ignore_eos=True)
        return status, answer["choices"][0]["token_ids"] if status == 200 else answer


class Serve(unittest.TestCase):
    def test_requests_survive_all_that_ends_neighbours(self):
        """One server: refusals, a failing row, and a service that is killed and comes back under load."""
        listen = f"127.0.0.1:{free_port()}"
        command = [str(binary()), f"--listen={listen}", "--metrics_listen=127.0.0.1:0"]
        with Sortitiond(*command) as server, Served(f"{listen},in_process") as served:
            with self.subTest("refusals are HTTP 400"):
                for text, options in {**REFUSED, "repetition_penalty": PENALTY_BELOW}.items():
                    if "logit_bias" in options:
                        continue  # vLLM's server moves it into -100..100 before the plugin sees it
                    options = {{"extra_args": "vllm_xargs"}.get(name, name): value for name, value in options.items()}
                    status, answer = served.complete([5], **options)
                    self.assertEqual(status, 400, answer)
                    self.assertIn(text.split(" ", maxsplit=1)[0], answer["error"]["message"])
                status, answer = served.complete([5], use_beam_search=True, n=2, temperature=0.0)
                self.assertEqual(status, 400, answer)
                self.assertIn("use_beam_search", answer["error"]["message"])
            with self.subTest("further options are served"):
                texts = [served.complete([5], temperature=1.2, seed=9, vllm_xargs=further)[1]["choices"][0]["token_ids"]
                         for further in ({}, {"typical_p": 0.3})]
                self.assertNotEqual(*texts)
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                expected = list(pool.map(served.tokens, range(16)))
                self.assertEqual([status for status, _ in expected], [200] * 16)
                with self.subTest("a failing row is one request's"):
                    poisoned = pool.submit(served.complete, POISONED[0])
                    self.assertEqual(list(pool.map(served.tokens, range(8))), expected[:8])
                    status, answer = poisoned.result()
                    self.assertEqual(status, 500)
                    self.assertIn("LOGIT_NAN", answer["error"]["message"])
                with self.subTest("a client that leaves takes its own request alone"):
                    leaves = served.open(prompt=[3], stream=True, max_tokens=200, ignore_eos=True,
                                         repetition_penalty=1.1)
                    load = pool.map(served.tokens, range(8))
                    leaves.readline()
                    leaves.close()
                    self.assertEqual(list(load), expected[:8])
                with self.subTest("no sequence is left behind"):
                    none = r"(?m)^sortition_live_sequences(\{.*\})? 0$"
                    end = time.monotonic() + 20  # vLLM tells of a request's end with its next step
                    while time.monotonic() < end and not re.search(none, server.metrics()):
                        time.sleep(0.1)
                    self.assertRegex(server.metrics(), none)
                with self.subTest("a killed service loses no request"):
                    load = pool.map(served.tokens, range(16))
                    server.kill()
                    server.wait()
                    self.assertEqual(list(load), expected)
                    again = pool.map(served.tokens, range(16))
                    with Sortitiond(*command):
                        self.assertEqual(list(again), expected)
                        self.assertEqual(list(pool.map(served.tokens, range(16))), expected)
                with self.subTest("vLLM's log says who draws the tokens, and why a request ended"):
                    lines = re.findall(r"(INFO|WARNING|ERROR) [\d-]+ [\d:]+ \[\S+:\d+\] (.*)", served.text())
                    said = "\n".join(map(" ".join, lines))
                    self.assertRegex(said, r"INFO Sortition \S+, law 1\. Tokens are drawn by the service over grpc")
                    self.assertRegex(said, r"ERROR request \S+ ends: LOGIT_NAN")
                    self.assertEqual(said.count("WARNING Sortition: no target answers."), 1, said)
                    self.assertEqual(said.count("INFO Sortition: a target answers."), 1, said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
