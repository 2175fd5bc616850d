"""GRPO under TRL with top-p: Sortition draws the completions, and the loss is over the tokens that it kept.

    trl_grpo.py MODEL [HOST:PORT]

TRL's loss takes the softmax over the whole vocabulary. With top-p every ratio then has the mass of the kept tokens in
it, and the gradient is that of another distribution. KeptSetTrainer takes it over the kept set of each token.
MODEL is the folder of a causal language model and its tokenizer. Trains a few steps, with the number of different
tokens of a completion as its reward. A service draws at HOST:PORT; without one this process does.
"""

import sys
import tempfile

import datasets
import sortition
import sortition.local
import torch
import transformers
import trl
from sortition.transformers import SortitionSampler
from trl.models import unwrap_model_for_generation


def rollout_by(sampler):
    """Returns a rollout_func that draws with the options of the trainer's GRPOConfig."""
    def rollout(prompts, trainer):
        tokenizer, steps = trainer.processing_class, []
        inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left").to(trainer.model.device)
        method = SortitionSampler(sampler, processed_logprobs={}, kept_set={"tokens": True}, kept_log_mass=True,
                                  on_step=steps.append)
        # Turns gradient checkpointing off meanwhile: `generate` would lose its cache.
        with unwrap_model_for_generation(
                trainer.model_wrapped, trainer.accelerator,
                gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs) as model, torch.no_grad():
            model.generate(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"],
                           generation_config=trainer.generation_config, custom_generate=method)
        trainer.draws = [[step[row] for step in steps if step[row] is not None] for row in range(len(prompts))]
        return {"prompt_ids": [ids[mask.bool()].tolist() for ids, mask in
                               zip(inputs["input_ids"], inputs["attention_mask"])],
                "completion_ids": [[draw.token for draw in draws] for draws in trainer.draws],
                "logprobs": [[draw.processed.logprob for draw in draws] for draws in trainer.draws]}
    return rollout


def padded_sets(completion_ids, draws):
    """Returns the kept sets as a tensor (row, position, element), filled up with -1. A position after the end of its
    completion keeps its padding token.
    """
    sets = [sortition.kept_sets(row) for row in draws]
    width = max(int(row.counts.max()) for row in sets)
    padded = completion_ids.new_full((*completion_ids.shape, width), -1)
    padded[..., 0] = completion_ids
    for row, kept in zip(padded, sets):
        ids, offsets = kept.torch()
        inside = torch.arange(width) < offsets.diff()[:, None]
        row[:len(kept)].masked_scatter_(inside.to(row.device), ids.to(row))
    return padded


class KeptSetTrainer(trl.GRPOTrainer):
    """GRPO with log probabilities and entropies over the kept set of each token. Needs `rollout_by`."""

    draws = ()  # of the latest rollout
    kept = None  # sets of the batch that the loss is computed of

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        output["kept"] = padded_sets(output["completion_ids"], self.draws)  # is shuffled and split with the others
        return output

    def _compute_loss(self, model, inputs):
        self.kept = inputs["kept"]
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self.kept = None

    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, batch_size=None,
                                           **options):
        completions = input_ids[:, -logits_to_keep:]
        kept = self.kept if self.kept is not None else padded_sets(completions, self.draws)
        found = []
        for part in torch.arange(len(input_ids)).split(batch_size or len(input_ids)):
            logits = model(input_ids=input_ids[part], attention_mask=attention_mask[part], use_cache=False).logits
            logits = logits[:, -logits_to_keep - 1:-1].float() / self.temperature
            among = logits.gather(-1, kept[part].clamp(min=0)).masked_fill(kept[part] < 0, float("-inf"))
            total = among.logsumexp(-1)
            logprobs = logits.gather(-1, completions[part, :, None]).squeeze(-1) - total
            shares = among.softmax(-1)
            found.append((logprobs, total - (shares * among.masked_fill(kept[part] < 0, 0)).sum(-1)))
        logprobs, entropies = (torch.cat(parts) for parts in zip(*found))
        return logprobs, entropies, None


def main(folder, target=None):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    with tempfile.TemporaryDirectory() as output:
        trainer = KeptSetTrainer(
            model=folder, processing_class=tokenizer, rollout_func=rollout_by(
                sortition.Client(target) if target else sortition.local.Sampler()),
            args=trl.GRPOConfig(output_dir=output, max_steps=4, num_generations=4, max_completion_length=16, top_p=0.8,
                                per_device_train_batch_size=8, bf16=torch.cuda.is_available(), report_to=[],
                                save_strategy="no", logging_steps=1),
            train_dataset=datasets.Dataset.from_dict({"prompt": ["One, two, three", "A text begins"] * 8}),
            reward_funcs=lambda completion_ids, **_: [float(len(set(ids))) for ids in completion_ids])
        trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:])
