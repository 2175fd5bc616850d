"""vLLM's model runner of generation 2 runs small models of random weights, with the plugin: on a CPU, by Triton's
interpreter.

Its texts are those of generation 1, which vllm_served_test compares with vLLM's own.
"""

import functools
import math
import os
import subprocess
import sys
import unittest

import small_model
import vllm_served_test as first_generation
from vllm_served_test import (ABORTED, BIASED, CHOICES, CROWDED, DRAFT_MODEL, LONG, MODEL, NAMED, NGRAM, POISONED,
                              REASONING, REFUSED, REQUESTS, SAMPLED, SAMPLING, THINKS, task)

from sortitiond_process import Sortitiond, binary, free_port

FOLDER = first_generation.FOLDER.name
MTP_MODEL = small_model.make_mtp(os.path.join(FOLDER, "mtp"))
EAGLE = {"method": "eagle", "model": small_model.make_eagle(os.path.join(FOLDER, "eagle"), MODEL),
         "num_speculative_tokens": 3}
MTP = {"method": "mtp", "num_speculative_tokens": 1}
# A text in which a drafter that repeats the last token is right.
REPEATED = ([5, 6], {"temperature": 1.0, "seed": 4, "logit_bias": {"65": 30.0}})
# vLLM returns masks of sampled texts alone. Without the plugin it wants top-k.
MASKED = [*((prompt, {"top_k": 50, **options}) for prompt, options in [*REQUESTS.values(), REPEATED]
            if options["temperature"] > 0 and "json" not in options),
          ([5, 6], {"temperature": 1.0, "seed": 4, "top_p": 0.97}), ([5, 6], {"temperature": 1.0, "seed": 4})]
KINDS = ("lookup", "draft model", "eagle")
GREEDY = [REQUESTS["greedy"], REQUESTS["greedy with penalties"]]

FIRST = list(REQUESTS.values())
USUAL = [FIRST, [THINKS], [*BIASED, REPEATED]]
# A request that has all log probabilities, one that fails, its neighbour, and some that are refused.
SECOND = [([9], {"temperature": 0.0, "logprobs": -1, "max_tokens": 2}), POISONED, REQUESTS["full"],
          *(([5], options) for options in REFUSED.values())]
MASKS = {"return_sampling_mask": True, "logprobs_mode": "processed_logprobs"}


def second_generation(requests, setting="in_process", **options):
    return task(setting, requests, 2, **{"reasoning_config": REASONING, **options})


ENGINES = {
    "generation 1": task("in_process", [*USUAL, SECOND, [NAMED], CHOICES, LONG], reasoning_config=REASONING),
    "generation 2": second_generation([*USUAL, SECOND, [NAMED], CHOICES, LONG, [ABORTED, *FIRST],
                                       *([request] for request in FIRST)], async_scheduling=True),
    "lookup": second_generation(USUAL, speculative_config=NGRAM),
    "draft model": second_generation(USUAL, speculative_config=DRAFT_MODEL),
    "eagle": second_generation(USUAL, speculative_config=EAGLE),
    "without mtp": second_generation([MASKED], model=MTP_MODEL),
    "mtp": second_generation([MASKED], model=MTP_MODEL, speculative_config=MTP),
    "masks": second_generation([MASKED], **MASKS),
    "masks of drafts": second_generation([MASKED], speculative_config=DRAFT_MODEL, **MASKS),
    "sampled drafts": second_generation([SAMPLED, GREEDY], speculative_config=SAMPLING),
    "sampled blocks": second_generation([SAMPLED, GREEDY],
                                        speculative_config={**SAMPLING, "rejection_sample_method": "block"}),
    "crowded": second_generation([LONG], async_scheduling=False, **CROWDED),
    "two ranks": second_generation([FIRST], tensor_parallel_size=2),
}


def run(one):
    """Returns a task's batches of answers and its metrics."""
    done = first_generation.run_llm(one)
    if "failed" in done:
        raise AssertionError(done["failed"])
    return done


@functools.lru_cache(maxsize=None)
def engine(name):
    """Runs one of ENGINES in a process, once."""
    return run(ENGINES[name])


def batches(name):
    return engine(name)["batches"]


def accepted(name):
    return engine(name)["metrics"]["vllm:spec_decode_num_accepted_tokens"]


def proposed(name):
    return engine(name)["metrics"]["vllm:spec_decode_num_draft_tokens"]


def texts(batch):
    return [None if answer is None else answer.get("tokens") for answer in batch]


class Generation2(unittest.TestCase):
    def test_texts_are_those_of_generation_1(self):
        for ours, theirs in zip(batches("generation 2")[:7], batches("generation 1")[:7]):
            self.assertEqual(texts(ours), texts(theirs))

    def test_texts_do_not_depend_on_their_batch(self):
        made, *others = batches("generation 2")
        self.assertEqual([answer["tokens"] for (answer,) in others[-len(REQUESTS):]], texts(made))
        aborted, *rest = others[6]
        self.assertIsNone(aborted)
        self.assertEqual(texts(rest), texts(made))

    def test_speculation_keeps_texts(self):
        expected = batches("generation 2")
        for kind in KINDS:
            with self.subTest(kind):
                for found, plain in zip(batches(kind), expected):
                    self.assertEqual(texts(found), texts(plain))
                self.assertGreater(accepted(kind), 10)

    def test_multi_token_prediction_keeps_texts(self):
        self.assertEqual(texts(batches("mtp")[0]), texts(batches("without mtp")[0]))
        self.assertGreater(accepted("mtp"), 5)

    def test_sampled_drafts_are_verified_with_their_probabilities(self):
        for kind in ("sampled drafts", "sampled blocks"):
            with self.subTest(kind):
                sampled, greedy = batches(kind)
                self.assertEqual([len(answer["tokens"]) for answer in sampled], [first_generation.STEPS] * len(SAMPLED))
                self.assertEqual(texts(greedy), texts(batches("generation 2")[0][:2]))
                self.assertGreater(accepted(kind), 0.8 * proposed(kind))
        self.assertLess(accepted("draft model"), 0.6 * proposed("draft model"))

    def test_logprobs_are_those_of_generation_1(self):
        ours, theirs = batches("generation 2"), batches("generation 1")
        pairs = [(ours[0][place], theirs[0][place]) for place, options in enumerate(REQUESTS.values())
                 if "logprobs" in options[1]] + [(ours[3][0], theirs[3][0]), (ours[4][0], theirs[4][0])]
        for found, expected in pairs:
            self.assertEqual(len(found["logprobs"]), len(found["tokens"]))
            for one, other in zip(found["logprobs"], expected["logprobs"]):
                self.assertEqual(one.keys(), other.keys())
                for token in other:
                    self.assertAlmostEqual(one[token][0], other[token][0], places=3)
        self.assertEqual(len(ours[3][0]["logprobs"][0]), small_model.VOCABULARY)

    def test_masks_are_the_tokens_that_the_options_keep(self):
        """Under a draft model too, they are the masks at the drawn tokens' positions."""
        (plain,), (drafted,) = batches("masks"), batches("masks of drafts")
        for (_, options), one, other in zip(MASKED, plain, drafted):
            self.assertEqual((other["tokens"], other["masks"]), (one["tokens"], one["masks"]))
            self.assertEqual(len(one["masks"]), len(one["tokens"]))
            for token, mask in zip(one["tokens"], one["masks"]):
                self.assertIn(token, mask)
                self.assertLessEqual(len(mask), options.get("top_k", small_model.VOCABULARY))
        self.assertGreater(max(map(len, plain[-2]["masks"])), 50)
        self.assertEqual(set(map(len, plain[-1]["masks"])), {small_model.VOCABULARY})
        self.assertGreater(accepted("masks of drafts"), 5)

    def test_bad_options_are_refused_and_a_bad_row_ends_one_request(self):
        _, poisoned, full, *refused = batches("generation 2")[3]
        self.assertEqual((poisoned["finish"], poisoned["tokens"]), ("error", []))
        self.assertIn("LOGIT_NAN", poisoned["stop"])
        self.assertEqual(full["tokens"], batches("generation 2")[0][list(REQUESTS).index("full")]["tokens"])
        for text, answer in zip(REFUSED, refused):
            self.assertIn(text, answer.get("refused", answer))

    def test_named_logprobs_and_thinking_budgets_are_served(self):
        (named,) = batches("generation 2")[4]
        for token, position in zip(named["tokens"], named["logprobs"]):
            self.assertEqual(set(position), {"3", "1", "200", str(token)})
            self.assertTrue(all(math.isfinite(part[0]) for part in position.values()))
        (thinks,) = batches("generation 2")[1]
        self.assertEqual(thinks["tokens"].index(small_model.ANSWER), 5)

    def test_preemption_and_prompts_in_parts_keep_texts(self):
        self.assertEqual(texts(batches("crowded")[0]), texts(batches("generation 2")[6]))
        self.assertGreater(engine("crowded")["metrics"]["vllm:num_preemptions"], 0)

    def test_ranks_draw_the_texts_of_one(self):
        self.assertEqual(texts(batches("two ranks")[0]), texts(batches("generation 2")[0]))

    def test_a_lost_service_keeps_texts(self):
        listen = f"127.0.0.1:{free_port()}"
        command = [str(binary()), f"--listen={listen}", "--metrics_listen=127.0.0.1:0"]
        with Sortitiond(*command) as server:
            done = run(second_generation([FIRST, {"kill": server.pid}, FIRST, {"start": command}, FIRST],
                                         setting=f"{listen},in_process"))
        self.assertEqual([texts(batch) for batch in done["batches"]], [texts(batches("generation 2")[0])] * 3)


class Example(unittest.TestCase):
    def test_the_text_is_the_same_in_both_generations(self):
        example = first_generation.HERE.parents[1] / "client/examples/vllm_same_text.py"
        done = subprocess.run([sys.executable, example, MODEL, binary(), "float32"], text=True, check=False,
                              env=first_generation.environment("", 2), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr[-4000:])
        self.assertRegex(done.stdout, r"generation 1: \[\d+, .*\]\ngeneration 2: \[\d+, .*\]\nthe server killed: \[\d+")


if __name__ == "__main__":
    unittest.main(verbosity=2)
