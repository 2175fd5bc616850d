"""One update of GRPO under TRL with top-p: masks, masses and log probabilities are those that TRL's own pass gives."""

import os
import pathlib
import sys
import tempfile
import unittest

import datasets
import sortition
import sortition.local
import torch
import transformers
import trl

import small_model
from rows import serve

sys.path.append(str(pathlib.Path(os.environ["TEST_SOURCE_DIR"], "client/examples")))
import trl_grpo

torch.set_num_threads(1)
TOP_P, TEMPERATURE, EXACT = 0.8, 0.9, 1e-6


class Watched(trl_grpo.KeptSetTrainer):
    """Notes each batch with what TRL's own code computes of it, before the update."""

    def __init__(self, **options):
        self.batches = []
        super().__init__(**options)

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        output["mass"] = torch.zeros_like(output["sampling_per_token_logps"])
        for row, draws in zip(output["mass"], self.draws):
            row[:len(draws)] = torch.tensor([draw.kept_log_mass for draw in draws])
        return output

    def _compute_loss(self, model, inputs):
        ids, mask = (torch.cat([inputs[f"prompt_{name}"], inputs[f"completion_{name}"]], dim=1)
                     for name in ("ids", "mask"))
        places = inputs["completion_ids"].shape[1]
        self.kept = inputs["kept"]
        with torch.no_grad():
            noted = {"ours": self._get_per_token_logps_and_entropies(model, ids, mask, places)[0],
                     "whole": trl.GRPOTrainer._get_per_token_logps_and_entropies(self, model, ids, mask, places)[0],
                     "logits": model(input_ids=ids, attention_mask=mask).logits[:, -places - 1:-1] / TEMPERATURE}
        drawn = inputs["completion_mask"].bool()
        self.batches.append({name: value[drawn] for name, value in {**inputs, **noted}.items() if value.ndim > 1
                             and value.shape[:2] == drawn.shape})
        return super()._compute_loss(model, inputs)


class TrlTest(unittest.TestCase):
    def trained(self, sampler):
        """Returns a trainer after two updates with the same completions, and how far its weights have moved."""
        torch.manual_seed(1)
        with tempfile.TemporaryDirectory() as folder:
            path = small_model.make(f"{folder}/model", hidden=16, letters=40)
            tokenizer = transformers.AutoTokenizer.from_pretrained(path)
            tokenizer.pad_token = tokenizer.eos_token
            model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
            before = model.lm_head.weight.detach().clone()
            trainer = Watched(
                model=model, processing_class=tokenizer, rollout_func=trl_grpo.rollout_by(sampler),
                args=trl.GRPOConfig(
                    output_dir=f"{folder}/out", max_steps=2, num_iterations=2, num_generations=4,
                    per_device_train_batch_size=8, max_completion_length=12, temperature=TEMPERATURE, top_p=TOP_P,
                    learning_rate=1e-3, use_cpu=True, bf16=False, report_to=[], save_strategy="no", disable_tqdm=True),
                train_dataset=datasets.Dataset.from_dict({"prompt": ["Hello", "a longer prompt", "b", "xyz"]}),
                reward_funcs=lambda completion_ids, **_: [float(len(set(ids))) for ids in completion_ids])
            trainer.train()
            return trainer, float((model.lm_head.weight.detach() - before).abs().max())

    def assert_is_the_trainers(self, batch):
        def largest(values):
            return float(values.abs().max())

        sampled, kept = batch["sampling_per_token_logps"], batch["kept"]
        self.assertGreater(len(sampled), 50)
        self.assertLess(largest(batch["ours"] - sampled), EXACT)
        self.assertLess(largest(batch["old_per_token_logps"] - sampled), EXACT)
        self.assertLess(largest(batch["whole"].double() - (sampled.double() + batch["mass"].double())), EXACT)
        # The mask and its mass, from the logits of the trainer's pass.
        allowed = torch.zeros_like(batch["logits"], dtype=torch.bool)
        for row, ids in zip(allowed, kept):
            row[ids[ids >= 0]] = True
        mass = batch["logits"].double().softmax(-1).masked_fill(~allowed, 0).sum(-1)
        self.assertLess(largest(mass - batch["mass"].double().exp()), EXACT)
        chances, order = batch["logits"].double().softmax(-1).sort(descending=True, stable=True)
        before = chances.cumsum(-1) - chances
        own = torch.zeros_like(allowed).scatter(-1, order, before < TOP_P)
        close = (before - TOP_P).abs().min(-1).values < EXACT  # either set is right there
        self.assertLess(int(close.sum()), 3)
        self.assertTrue((own == allowed).all(-1)[~close].all())
        # The loss without kept sets would be off by the mass at each token.
        self.assertGreater(float((batch["whole"] - sampled).abs().min()), 0.1)

    def test_an_update_is_over_the_kept_tokens(self):
        found = []
        with serve() as server, sortition.Client(server.serving["listen"]) as client:
            for sampler in (sortition.local.Sampler(), client):
                trainer, moved = self.trained(sampler)
                self.assertEqual(len(trainer.batches), 2)
                self.assert_is_the_trainers(trainer.batches[0])
                self.assertGreater(moved, 1e-4)
                ratio = (trainer.batches[1]["ours"] - trainer.batches[1]["old_per_token_logps"]).abs()
                self.assertTrue(1e-3 < float(ratio.max()) < 1, "the second update sees the first")
                found.append(trainer.batches[0]["completion_ids"].tolist())
        self.assertEqual(found[0], found[1])


if __name__ == "__main__":
    unittest.main()
