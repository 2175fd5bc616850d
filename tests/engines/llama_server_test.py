"""llama-server writes texts with a model of random weights, by its own samplers and by Sortition's, over HTTP."""

import concurrent.futures
import json
import os
import re
import tempfile
import unittest

import llama_cpp
import numpy
import random_gguf
import sortition.local

from llama_server_process import LlamaServer
from rows import serve

SLOTS, STEPS = 32, 24
PROMPT = [1, 70, 71, 72, 70, 71, 72, 70, 71]
BAN = {"logit_bias": [[random_gguf.POISON, False]]}
GREEDY = {"temperature": 0.0, "repeat_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2, **BAN}
SAMPLED = {"temperature": 1.3, "top_k": 50, "top_p": 0.95, "min_p": 0.02, "typical_p": 0.97, "repeat_penalty": 1.4,
           "frequency_penalty": 0.3, "presence_penalty": 0.2, **BAN}
# By the name that the refusal has.
REFUSED = {
    "dry_multiplier": {"dry_multiplier": 0.8},
    "post_sampling_probs": {"post_sampling_probs": True, "n_probs": 3},
    "backend_sampling": {"backend_sampling": True},
    "infill": {"samplers": ["top_k", "infill"]},
    "penalties come before": {"samplers": ["top_k", "penalties"], "repeat_penalty": 1.3},
    "min_keep": {"min_keep": 50},
    "xtc_probability": {"temperature": 0.0, "xtc_probability": 0.5},
    "repetition_penalty": {"repeat_penalty": 1000.0},
    "logit_bias": {"logit_bias": [[70, 1e30]]},
}


class Server(LlamaServer):
    """One of these tests' servers."""

    def __init__(self, model, setting, *arguments, slots=SLOTS, **more):
        super().__init__(model, setting, *arguments, slots=slots, **more)

    def open(self, **options):
        return super().open(**{"prompt": PROMPT, "n_predict": STEPS, **options})

    def text_of(self, number):
        return self.tokens(prompt=[1, 100 + number, 70, 71], seed=number, **SAMPLED)


class LlamaServerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.model = os.path.join(cls.folder.name, "words.gguf")
        random_gguf.main(cls.model, "words")
        cls.own = cls.enterClassContext(Server(cls.model, "", slots=1))
        cls.ours = cls.enterClassContext(Server(cls.model, "in_process"))
        cls.alone = [cls.ours.text_of(number) for number in range(SLOTS)]

    def together(self, server):
        """Returns the texts that all slots write at once."""
        with concurrent.futures.ThreadPoolExecutor(SLOTS) as pool:
            return list(pool.map(server.text_of, range(SLOTS)))

    def test_greedy_texts_are_llama_servers(self):
        for options in ({"temperature": 0.0, **BAN}, GREEDY, {**GREEDY, "top_k": 0, "min_p": 0.0}):
            self.assertEqual(self.ours.tokens(**options), self.own.tokens(**options))

    def test_texts_of_all_slots_are_those_alone(self):
        self.assertEqual(self.together(self.ours), self.alone)
        self.assertGreater(len(set(map(tuple, self.alone))), SLOTS - 2)

    def test_texts_are_the_laws(self):
        """A text is the one that a sequence draws from the logits of the same model elsewhere."""
        sampler = sortition.local.Sampler()
        sequence = sampler.open(
            vocabulary_size=random_gguf.VOCABULARY, prompt=PROMPT, seed=5, banned_token_ids=[2, random_gguf.POISON],
            temperature=1.3, top_k=50, top_p=0.95, min_p=0.02, typical_p=0.97, repetition_penalty=1.4,
            frequency_penalty=0.3, presence_penalty=0.2, chain={"preset": "PRESET_LLAMA_CPP"},
            penalty_scope={"window": 64, "frequency_counts_prompt": True})
        model = llama_cpp.Llama(model_path=self.model, n_ctx=256, n_threads=1, verbose=False)
        self.addCleanup(model.close)
        written, further = [], PROMPT
        while len(written) < STEPS:
            model.eval(further)
            pointer = llama_cpp.llama_get_logits_ith(model._ctx.ctx, -1)
            logits = numpy.ctypeslib.as_array(pointer, (random_gguf.VOCABULARY,))
            further = [sampler.draw(sequence, logits).token]
            written += further
        self.assertEqual(self.ours.tokens(seed=5, **SAMPLED), written)

    def test_a_service_and_its_loss_keep_texts(self):
        with serve() as service, Server(self.model, f"{service.serving['listen']},in_process") as server:
            self.assertEqual(self.together(server), self.alone)
            with concurrent.futures.ThreadPoolExecutor(SLOTS) as pool:
                texts = pool.map(server.text_of, range(SLOTS))
                service.kill()
                service.wait()
                self.assertEqual(list(texts), self.alone)
            said = re.findall(r"Sortition \S+, law 1\. Tokens are drawn (by the service|in process)", server.log())
            self.assertEqual(said, ["by the service", "in process"])

    def test_speculation_keeps_texts(self):
        drafters = {"lookup": ("ngram-simple", "--spec-ngram-simple-size-n", "2", "--spec-ngram-simple-size-m", "4"),
                    "model": ("draft-simple", "--spec-draft-model", self.model, "--spec-draft-n-max", "4")}
        for name, arguments in drafters.items():
            with self.subTest(name), Server(self.model, "in_process", "--spec-type", *arguments) as server:
                self.assertEqual(self.together(server), self.alone)
                # Three tokens follow one another, so that drafters find some.
                options = {"temperature": 1.0, "seed": 4, "n_predict": 60,
                           "logit_bias": [[token, 50] for token in (70, 71, 72)]}
                status, answer = server.answer(**options)
                self.assertEqual((status, answer["tokens"]), (200, self.ours.tokens(**options)))
                self.assertGreater(answer["timings"]["draft_n"], 0)

    def test_a_service_verifies_drafts_in_one_step(self):
        drafter = ("--spec-type", "draft-simple", "--spec-draft-model", self.model, "--spec-draft-n-max", "4")
        with serve() as service, Server(self.model, service.serving["listen"], *drafter) as server:
            def steps():
                return int(float(re.search(r"^sortition_steps_total (\S+)$", service.metrics(), re.MULTILINE).group(1)))

            self.assertEqual(self.together(server), self.alone)
            options, before = {"temperature": 0.0, "n_predict": 60, **BAN}, steps()
            self.assertEqual(server.tokens(**options), self.ours.tokens(**options))
            self.assertLess(steps() - before, 30)

    def test_orders_of_samplers_are_served(self):
        order = {"samplers": ["temperature", "min_p", "top_k"], "temperature": 2.0, "min_p": 0.2, "top_k": 5, **BAN}
        texts = {seed: self.ours.tokens(seed=seed, **order) for seed in (1, 1, 2)}
        self.assertEqual(texts[1], self.ours.tokens(seed=1, **order, top_p=0.01))  # not in the list
        self.assertNotEqual(texts[1], texts[2])

    def test_stateful_samplers_draw(self):
        for options in ({"mirostat": 1}, {"mirostat": 2}, {"samplers": ["adaptive_p"], "adaptive_target": 0.3},
                        {"xtc_probability": 0.5}, {"dynatemp_range": 0.3}, {"top_n_sigma": 1.5}):
            tokens = self.ours.tokens(seed=3, **options, **BAN)
            self.assertEqual(self.ours.tokens(seed=3, **options, **BAN), tokens)
            self.assertGreater(len(set(tokens)), 3, options)

    def test_grammars_hold(self):
        for seed in range(4):
            _, answer = self.ours.answer(seed=seed, grammar='root ::= "{" [a-c] [a-c] "}"', temperature=1.5,
                                         ignore_eos=False, **BAN)
            self.assertRegex(answer["content"], r"^\{[abc][abc]\}$")
        _, answer = self.ours.answer(json_schema={"enum": ["x", "yy"]}, seed=1, ignore_eos=False)
        self.assertIn(json.loads(answer["content"]), ["x", "yy"])

    def test_a_reasoning_budget_ends_the_reasoning(self):
        budget = {"reasoning_budget_tokens": 4, "reasoning_budget_start_tag": "<<", "reasoning_budget_end_tag": ">>",
                  "reasoning_budget_message": "."}
        _, answer = self.ours.answer(prompt="ab", seed=2, grammar='root ::= "<<" [x-z]+ ">>" "."*', n_predict=12,
                                     ignore_eos=False, **budget, **BAN)
        self.assertRegex(answer["content"], r"^<<[xyz]{1,4}")

    def test_choices_have_the_next_seeds(self):
        with self.ours.open(seed=11, n_cmpl=2, **SAMPLED) as answer:
            choices = json.load(answer)
        alone = [self.ours.tokens(seed=seed, **SAMPLED) for seed in (11, 12)]
        self.assertEqual([choice["tokens"] for choice in choices], alone)

    def test_what_is_not_honoured_is_refused_by_name(self):
        for text, options in REFUSED.items():
            status, answer = self.ours.answer(**{"temperature": 0.8, **options})
            self.assertEqual(status, 400, (text, answer))
            self.assertIn(text, answer["error"]["message"])

    def test_a_bad_row_and_an_abort_end_one_request(self):
        with Server(self.model, "in_process", slots=8) as server, concurrent.futures.ThreadPoolExecutor(8) as pool:
            texts = pool.map(server.text_of, range(6))
            stream = server.open(stream=True, n_predict=100, **SAMPLED)
            stream.readline()
            stream.close()
            status, answer = server.answer(prompt=[1, random_gguf.POISON])
            self.assertEqual(status, 500, answer)
            self.assertIn("LOGIT_NAN", answer["error"]["message"])
            self.assertEqual(list(texts), self.alone[:6])

    def test_a_library_that_cannot_be_loaded_serves_nothing(self):
        with Server(self.model, "in_process", slots=1, library="none.so") as server:
            status, answer = server.answer()
            self.assertEqual(status, 400, answer)
            self.assertIn("none.so", answer["error"]["message"])


if __name__ == "__main__":
    unittest.main()
