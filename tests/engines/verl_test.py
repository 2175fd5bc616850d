"""One update of GRPO with top-p by verl's engine, advantage and loss: its log probabilities are the sampler's.

verl's engines need a GPU to be registered, and its rollouts are of servers that do. So this test takes its FSDP engine
on one process, without shards, and draws by `generate`. The engine gets the kept sets as a mask of its logits.
"""

import functools
import tempfile
import unittest

import sortition.local
import torch
import transformers
from sortition.transformers import SortitionSampler
from tensordict import TensorDict
from verl.plugin.platform import platform_manager
from verl.trainer.config import CheckpointConfig
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
from verl.trainer.ppo.rollout_corr_helper import compute_offpolicy_metrics
from verl.utils import tensordict_utils
from verl.workers.config import ActorConfig, FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
from verl.workers.engine.fsdp import FSDPEngineWithLMHead
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import left_right_2_no_padding, no_padding_2_padding

import small_model

torch.set_num_threads(1)
PROMPTS, GROUP, PLACES = ["Hello", "a longer prompt", "b"], 4, 12
TOP_P, TEMPERATURE, EXACT = 0.8, 0.9, 1e-6


class Processor(platform_manager.PlatformCUDA):
    """A platform of verl's, which has none for a processor alone."""

    device_name, device_module = "cpu", torch.cpu

    def current_device(self):
        return "cpu"


class KeptSetEngine(FSDPEngineWithLMHead):
    """Takes the softmax over the tokens that `allowed` of the batch names, if it has such a mask."""

    def _build_fsdp_module(self, module):
        self._autocast_dtype = torch.float32
        return module

    def prepare_model_outputs(self, output, output_args, micro_batch, logits_processor_func):
        self.logits = output.logits.detach().double()
        if "allowed" in micro_batch:
            output.logits = output.logits.masked_fill(~micro_batch["allowed"], -1e30)
        return super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)


def engine_of(path):
    model = HFModelConfig(path=path, use_remove_padding=False, enable_gradient_checkpointing=False,
                          override_config={"attn_implementation": "sdpa"})
    engine = KeptSetEngine(model, FSDPEngineConfig(use_torch_compile=False, use_remove_padding=False),
                           FSDPOptimizerConfig(lr=1e-3, total_training_steps=1), CheckpointConfig())
    engine._build_model_optimizer()
    return engine


def drawn(engine, tokenizer):
    """Returns a batch of completions in verl's form, and the draws of each."""
    inputs = tokenizer([prompt for prompt in PROMPTS for _ in range(GROUP)], return_tensors="pt", padding=True,
                       padding_side="left")
    steps = []
    method = SortitionSampler(sortition.local.Sampler(), seed=3, processed_logprobs={}, kept_log_mass=True,
                              kept_set={"tokens": True}, on_step=steps.append)
    tokens = engine.module.eval().generate(
        input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], do_sample=True, top_p=TOP_P, top_k=0,
        temperature=TEMPERATURE, max_new_tokens=PLACES, pad_token_id=tokenizer.pad_token_id, custom_generate=method)
    draws = [[step[row] for step in steps if step[row] is not None] for row in range(len(tokens))]
    responses = tokens[:, inputs["input_ids"].shape[1]:]
    mask = torch.arange(responses.shape[1]) < torch.tensor([len(row) for row in draws])[:, None]
    attention = torch.cat([inputs["attention_mask"], mask.long()], dim=1)
    return TensorDict({"prompts": inputs["input_ids"], "responses": responses, "input_ids": tokens,
                       "attention_mask": attention, "position_ids": (attention.cumsum(1) - 1).clamp(min=0),
                       "response_mask": mask.long()}, batch_size=len(tokens)), draws


def mask_of(batch, draws, vocabulary):
    """Returns the kept sets as a mask of the logits of the sequences without padding before them."""
    prompts = batch["attention_mask"][:, :batch["prompts"].shape[1]].sum(1).tolist()
    longest = max(prompt + len(row) for prompt, row in zip(prompts, draws))
    allowed = torch.ones(len(draws), longest, vocabulary, dtype=torch.bool)
    for row, prompt, mask in zip(draws, prompts, allowed):
        for place, draw in enumerate(row):
            mask[prompt - 1 + place] = False
            mask[prompt - 1 + place, torch.tensor(draw.kept_tokens)] = True
    return allowed


def padded(draws, value):
    rows = [torch.tensor([value(draw) for draw in row]) for row in draws]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


class VerlTest(unittest.TestCase):
    def setUp(self):
        platform_manager.set_platform(Processor())
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder.name}/group", rank=0, world_size=1)
        self.addCleanup(torch.distributed.destroy_process_group)
        path = small_model.make(f"{folder.name}/model", hidden=16, letters=40)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        self.tokenizer.pad_token = self.tokenizer.eos_token
        self.engine = engine_of(path)

    def run_engine(self, batch, loss=None):
        """Returns the log probabilities of the responses, or with a loss the metrics after its gradients."""
        batch = left_right_2_no_padding(batch.clone())
        tensordict_utils.assign_non_tensor(batch, temperature=TEMPERATURE, use_remove_padding=False,
                                           use_dynamic_bsz=False, micro_batch_size_per_gpu=len(batch),
                                           global_batch_size=len(batch))
        with self.engine.train_mode() if loss else self.engine.eval_mode():
            found = self.engine.forward_backward_batch(batch, loss, forward_only=loss is None)
            if loss:
                self.engine.optimizer_step()
                return found["metrics"]
            return no_padding_2_padding(found["model_output"]["log_probs"], batch)

    def test_an_update_is_over_the_kept_tokens(self):
        batch, draws = drawn(self.engine, self.tokenizer)
        mask = batch["response_mask"].bool()
        sampled = padded(draws, lambda draw: draw.processed.logprob)
        mass = padded(draws, lambda draw: draw.kept_log_mass)
        whole = self.run_engine(batch)
        own = transformers.TopPLogitsWarper(TOP_P)(None, self.engine.logits.flatten(0, 1) / TEMPERATURE).isfinite()
        batch["allowed"] = mask_of(batch, draws, len(self.tokenizer))
        drawn_at = ~batch["allowed"].all(-1)
        self.assertEqual(int(drawn_at.sum()), int(mask.sum()))
        self.assertTrue((own.view_as(batch["allowed"]) == batch["allowed"])[drawn_at].all())
        ours = self.run_engine(batch)
        self.assertGreater(int(mask.sum()), 100)
        self.assertLess(float((ours - sampled)[mask].abs().max()), EXACT)
        self.assertLess(float((whole.double() - sampled.double() - mass.double())[mask].abs().max()), EXACT)
        self.assertLess(float((whole.double() - ours.double() - mass.double())[mask].abs().max()), EXACT)
        self.assertLess(compute_offpolicy_metrics(ours, sampled, batch["response_mask"])["k3_kl"], 1e-9)
        self.assertGreater(compute_offpolicy_metrics(whole, sampled, batch["response_mask"])["k3_kl"], 1e-2)

        rewards = torch.zeros_like(sampled)
        rewards[:, 0] = torch.tensor([float(len({draw.token for draw in row})) for row in draws])
        groups = [index // GROUP for index in range(len(draws))]
        batch["advantages"] = compute_grpo_outcome_advantage(rewards, batch["response_mask"], groups)[0]
        batch["old_log_probs"] = sampled
        before = self.engine.module.lm_head.weight.detach().clone()
        metrics = self.run_engine(batch, functools.partial(ppo_loss, config=ActorConfig(
            strategy="fsdp", rollout_n=GROUP, use_dynamic_bsz=True)))
        self.assertLess(abs(metrics["actor/ppo_kl"].aggregate()), EXACT)
        self.assertGreater(float((self.engine.module.lm_head.weight.detach() - before).abs().max()), 1e-4)


if __name__ == "__main__":
    unittest.main()
