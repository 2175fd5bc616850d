"""Policy gradients on a small language model in numpy, with Sortition as the sampler of the rollouts (docs/rl.md).

    policy_gradient.py [--steps=100] [--top_p=0.8] [--json=FILE]

The engine's logits are bfloat16, the trainer's float32, as in training clusters. Each run differs in what the trainer
knows of the sampler's filters. The reward of a text is the share of tokens that follow a hidden rule. Prints for each
run the reward and the mismatch KL, the mean of exp(d) - 1 - d with d = trainer's less sampler's logprob of a token.
"""

import argparse
import json

import numpy
import sortition
import sortition.local

VOCABULARY, WIDTH, TEXTS, LENGTH = 256, 32, 128, 16
RATE, MOST_RATIO = 15, 2.0
RUNS = {  # top-p below 1, kept sets used by the trainer
    "top_p_1": (False, False),
    "without_sets": (True, False),
    "with_sets": (True, True),
}


class Policy:
    """Logits of the next token from the last two: embeddings, a hidden layer, a head."""

    def __init__(self, seed):
        generator = numpy.random.default_rng(seed)
        shapes = ((VOCABULARY, WIDTH), (VOCABULARY, WIDTH), (WIDTH, VOCABULARY))
        self.weights = [(generator.standard_normal(shape) * scale).astype(numpy.float32)
                        for shape, scale in zip(shapes, (0.7, 0.7, 0.45))]

    def hidden(self, last_two):
        return numpy.tanh(self.weights[0][last_two[:, 0]] + self.weights[1][last_two[:, 1]])

    def logits(self, last_two):
        return self.hidden(last_two) @ self.weights[2]

    def ascend(self, last_two, gradient):
        """Moves the weights along the gradient of a mean over rows, given by the logits."""
        hidden = self.hidden(last_two)
        inner = gradient @ self.weights[2].T * (1 - hidden * hidden)
        self.weights[2] += RATE * hidden.T @ gradient
        for side in (0, 1):
            numpy.add.at(self.weights[side], last_two[:, side], RATE * inner)


def bfloat16(values):
    """The words of float32 values, rounded to nearest even."""
    bits = values.astype(numpy.float32).view(numpy.uint32)
    return (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype(numpy.uint16)


def rollout(policy, sampler, step, options):
    """Texts, the sampler's logprobs of their tokens, and the kept set of each token; one row a token."""
    sequences = [sampler.open(vocabulary_size=VOCABULARY, seed=step * TEXTS + text, processed_logprobs={},
                              kept_set={"tokens": True}, **options) for text in range(TEXTS)]
    texts = numpy.zeros((TEXTS, LENGTH + 2), int)
    texts[:, 1] = numpy.arange(TEXTS)  # the prompts
    logprobs, kept = [], []
    for place in range(LENGTH):
        results = sampler.step(sequences, bfloat16(policy.logits(texts[:, place:place + 2])), dtype="bfloat16")
        texts[:, place + 2] = [result.token for result in results]
        logprobs.append([result.processed.logprob for result in results])
        kept.append(sortition.kept_sets(results))
    return texts, numpy.array(logprobs).ravel(), sortition.KeptSets.join(kept)


def log_softmax(logits, kept=None):
    """Over all tokens, or over each row's kept set. Tokens outside of it have -inf."""
    logits = logits.astype(numpy.float64)
    if kept is not None:
        allowed = numpy.zeros(logits.shape, bool)
        allowed[numpy.repeat(numpy.arange(len(kept)), kept.counts), kept.ids] = True
        logits = numpy.where(allowed, logits, -numpy.inf)
    logits -= logits.max(axis=1, keepdims=True)
    return logits - numpy.log(numpy.exp(logits).sum(axis=1, keepdims=True))


def rewards(texts):
    """1 for each token that equals the token two places before plus 1, modulo 8; one row a token."""
    return ((texts[:, 2:] - texts[:, :-2]) % 8 == 1).T.ravel().astype(float)


def train(steps, top_p, use_sets):
    """The course of one run, one entry a step."""
    policy, sampler, course = Policy(1), sortition.local.Sampler(), []
    for step in range(steps):
        texts, sampled, kept = rollout(policy, sampler, step, {"top_p": top_p})
        last_two = numpy.concatenate([texts[:, place:place + 2] for place in range(LENGTH)])
        tokens = texts[:, 2:].T.ravel()
        logprobs = log_softmax(policy.logits(last_two), kept if use_sets else None)
        rows = numpy.arange(len(tokens))
        off = logprobs[rows, tokens] - sampled
        reward = rewards(texts)
        advantage = reward - reward.mean()
        chances = numpy.exp(logprobs)
        entropy = -(chances * numpy.where(chances > 0, logprobs, 0)).sum(axis=1).mean()
        course.append({"reward": reward.mean(), "mismatch_kl": (numpy.exp(off) - 1 - off).mean(),
                       "entropy": entropy, "kept": kept.counts.mean()})
        gradient = -chances
        gradient[rows, tokens] += 1
        gradient *= (advantage * numpy.minimum(numpy.exp(off), MOST_RATIO) / len(tokens))[:, None]
        policy.ascend(last_two, gradient.astype(numpy.float32))
    return course


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--top_p", type=float, default=0.8)
    parser.add_argument("--json")
    asked = parser.parse_args()
    runs = {name: train(asked.steps, asked.top_p if truncated else 1.0, use_sets)
            for name, (truncated, use_sets) in RUNS.items()}
    for name, course in runs.items():
        last = course[-max(1, len(course) // 10):]
        mean = {key: float(numpy.mean([entry[key] for entry in last])) for key in last[0]}
        kl = float(numpy.mean([entry["mismatch_kl"] for entry in course]))
        print(f"{name}: reward {mean['reward']:.3f}, mismatch KL {kl:.2g}, entropy {mean['entropy']:.2f},"
              f" kept {mean['kept']:.1f}")
    if asked.json:
        with open(asked.json, "w", encoding="utf-8") as file:
            json.dump({"top_p": asked.top_p, "runs": {
                name: {key: [float(f"{entry[key]:.4g}") for entry in course] for key in course[0]}
                for name, course in runs.items()}}, file)


if __name__ == "__main__":
    main()
