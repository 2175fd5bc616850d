"""A watermark for vLLM, as a logits processor of either generation: it raises tokens that the token before names.

A request asks for it by extra_args={"green": BIAS}. vLLM loads it by its name, "green:Green1".
"""

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.worker.gpu.sample import logits_processor


def is_green(before, vocabulary):
    """Returns [rows, vocabulary]: the tokens that follow these ones more often."""
    return (before.long()[:, None] * 31 + torch.arange(vocabulary) * 17) % 7 < 3


class Green1(LogitsProcessor):
    """The one of generation 1. Changes its logits in place."""

    def __init__(self, *_):
        self.texts = {}

    def is_argmax_invariant(self):
        return False

    def update_state(self, batch_update):
        for row in batch_update.removed if batch_update else ():
            self.texts.pop(row, None)
        for row, params, prompt, output in batch_update.added if batch_update else ():
            self.texts[row] = (prompt, output, (params.extra_args or {}).get("green"))

        for one, other, direction in batch_update.moved if batch_update else ():
            swapped = self.texts.pop(other, None)
            self.texts[other] = self.texts.pop(one)
            if direction.name == "SWAP" and swapped is not None:
                self.texts[one] = swapped

    def apply(self, logits):
        for row, (prompt, output, delta) in self.texts.items():
            if delta:
                logits[row] += delta * is_green(torch.tensor([[*prompt, *output][-1]]), logits.shape[1])[0]
        return logits


class Cut(LogitsProcessor):
    """Another one of generation 1. Removes a token, in another tensor. Says that it leaves the likeliest one."""

    def __init__(self, *_):
        pass

    def is_argmax_invariant(self):
        return True

    def update_state(self, batch_update):
        pass

    def apply(self, logits):
        return logits.index_fill(1, torch.tensor([9]), -float("inf"))


class Green2(logits_processor.LogitsProcessor):
    """The one of generation 2."""

    def __init__(self, config, states):
        del config
        self.deltas, self.calls = torch.zeros(states.max_num_reqs), 0

    def add_request(self, req_idx, sampling_params):
        self.deltas[req_idx] = float((sampling_params.extra_args or {}).get("green", 0))
        return bool(self.deltas[req_idx])

    def apply(self, logits, ctx):
        self.calls += 1
        assert logits.dtype == torch.float32
        logits += self.deltas[ctx.expanded_idx_mapping.long()][:, None] * is_green(ctx.input_ids, logits.shape[1])
        return logits
