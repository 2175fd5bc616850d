"""llama-cpp-python writes texts with a model of random weights, by its own samplers and by Sortition's."""

import os
import tempfile
import unittest

import llama_cpp
import numpy
import random_gguf
import sortition
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from sortition import llama_cpp as adapter

from rows import serve

PROMPT = [1, 70, 71, 72, 70, 71, 72, 70, 71]
STEPS = 24
PENALTIES = {"repeat_penalty": 1.4, "frequency_penalty": 0.3, "presence_penalty": 0.2}
SAMPLED = {"temp": 1.3, "top_k": 50, "top_p": 0.95, "min_p": 0.02, "typical_p": 0.97, **PENALTIES}
GRAMMAR = 'root ::= "{" [a-c] [a-c] "}"'


class LlamaCppPython(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = os.path.join(cls.folder.name, "words.gguf")
        random_gguf.main(cls.path, "words")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def llama(self, kind=adapter.Llama, **options):
        made = kind(model_path=self.path, **{"n_ctx": 256, "seed": 5, "verbose": False, "logits_all": False, **options})
        self.addCleanup(made.close)
        return made

    def write(self, llama, steps=STEPS, **options):
        llama.reset()
        tokens = []
        for token in llama.generate(PROMPT, **options):
            tokens.append(token)
            if len(tokens) == steps:
                return tokens

    def test_greedy_texts_are_llama_cpps(self):
        texts = []
        for options, window in (({}, 64), (PENALTIES, 64), (PENALTIES, -1)):
            own, ours = (self.write(self.llama(kind, last_n_tokens_size=window), temp=0.0, **options)
                         for kind in (llama_cpp.Llama, adapter.Llama))
            self.assertEqual(ours, own)
            texts.append(ours)
        self.assertNotEqual(texts[1], texts[0])
        self.assertEqual(texts[2], texts[0], "a negative window is no penalty")

    def test_texts_are_the_same_in_process_and_by_a_service(self):
        expected = self.write(self.llama(), **SAMPLED)
        self.assertEqual(self.write(self.llama(), **SAMPLED), expected)
        self.assertNotEqual(self.write(self.llama(seed=6), **SAMPLED), expected)
        with serve() as server:
            client = sortition.Client(server.serving["listen"], fallback="in_process")
            llama = self.llama(sampler=client)
            self.assertEqual(self.write(llama, **SAMPLED), expected)
            server.kill()
            server.wait()
            self.assertEqual(self.write(llama, **SAMPLED), expected)

    def test_drafts_keep_the_text(self):
        expected = self.write(self.llama(), **SAMPLED)
        drafting = self.llama(draft_model=LlamaPromptLookupDecoding(max_ngram_size=2, num_pred_tokens=4),
                              logits_all=True)
        self.assertEqual(self.write(drafting, **SAMPLED), expected)

    def test_mirostat_draws(self):
        for version in (1, 2):
            tokens = self.write(self.llama(), mirostat_mode=version, temp=0.7)
            self.assertEqual(self.write(self.llama(), mirostat_mode=version, temp=0.7), tokens)
            self.assertGreater(len(set(tokens)), 3)

    def test_grammars_hold(self):
        grammar = llama_cpp.LlamaGrammar.from_string(GRAMMAR, verbose=False)
        llama = self.llama()
        for seed in range(4):
            text = llama.create_completion(PROMPT, max_tokens=12, temperature=1.5, seed=seed,
                                           grammar=grammar)["choices"][0]["text"]
            self.assertRegex(text, r"^\{[abc][abc]\}$")

    def test_logits_processors_and_biases_run(self):
        def only_even(_, scores):
            scores[1::2] = -float("inf")
            return scores

        tokens = self.write(self.llama(), logits_processor=llama_cpp.LogitsProcessorList([only_even]), **SAMPLED)
        self.assertFalse(any(token % 2 for token in tokens))
        biased = self.llama().create_completion(PROMPT, max_tokens=3, temperature=0.0, logit_bias={"70": 1000.0})
        self.assertEqual(biased["choices"][0]["text"], "CCC")

    def test_what_has_no_counterpart_is_refused_by_name(self):
        for options in ({"tfs_z": 0.9}, {"penalize_nl": False}):
            (name,) = options
            with self.assertRaisesRegex(ValueError, name):
                self.write(self.llama(), **options)
        with self.assertRaises(sortition.Error) as refused:
            self.write(self.llama(), repeat_penalty=1000.0)
        self.assertEqual(refused.exception.field, "open.parameters.repetition_penalty")

    def test_a_bad_row_raises(self):
        def spoil(_, scores):
            return scores * numpy.nan

        with self.assertRaises(sortition.Error) as failed:
            self.write(self.llama(), logits_processor=llama_cpp.LogitsProcessorList([spoil]))
        self.assertEqual(failed.exception.reason, "LOGIT_NAN")


if __name__ == "__main__":
    unittest.main()
