"""Chains from the peers' formulas in double precision, compared with the law's reference.

Kept sets must be equal; where they are not, moving every threshold by one part in a million must explain it. Logprobs
of equal sets must agree to 1e-5, those of unlikely tokens to two parts in a million.
"""

import json
import math
import subprocess
import sys

SLACK = 1e-6
FILTERS = ("top_n_sigma", "min_p", "top_k", "top_p", "epsilon_cutoff", "eta_cutoff", "top_a", "top_h", "p_less",
           "min_k")
MOST_EXPLAINED = 0.02  # of the rows
LOGPROB_ERROR = 1e-5
LOGPROB_RELATIVE_ERROR = 2e-6


def softmax(logits):
    top = max(logits)
    weights = [math.exp(x - top) for x in logits]
    total = sum(weights)
    return [w / total for w in weights]


def entropy(probabilities):
    return -sum(p * math.log(p) for p in probabilities if p > 0)


class Chain:
    """Tokens in order (logit descending, id ascending) with the logits that stages leave."""

    def __init__(self, row, slack):
        self.options = row["options"]
        self.vocabulary = len(row["logits"])
        self.state = row["state"]
        self.slack = slack
        order = sorted(range(self.vocabulary), key=lambda i: (-row["logits"][i], i))
        self.tokens = [(i, row["logits"][i]) for i in order]
        self.divisor = 1.0  # the temperature that the logits were divided by, since they were reshaped

    def logits(self):
        return [x for _, x in self.tokens]

    def least(self, before):
        """The filter keeps the first min_keep of its tokens at least."""
        if len(self.tokens) < self.options["min_keep"]:
            self.tokens = before[: self.options["min_keep"]]

    def keep_from(self, threshold):
        threshold *= 1 + self.slack
        kept = [t for t, p in zip(self.tokens, softmax(self.logits())) if p >= threshold]
        self.tokens = kept or self.tokens[:1]

    def run(self):
        for name in self.options["order"]:
            before = self.tokens
            getattr(self, name)()
            if name in FILTERS:
                self.least(before)

    def temperature(self):
        t = self.options["temperature"]
        reach = self.options["dynamic_temperature_range"]
        if reach != 0:
            if len(self.tokens) < 2:
                return
            low, high = max(0.0, t - reach), t + reach
            share = entropy(softmax(self.logits())) / math.log(len(self.tokens))
            t = max(0.01, low + (high - low) * share ** self.options["dynamic_temperature_exponent"])
        self.divisor = t
        self.tokens = [(i, x / t) for i, x in self.tokens]

    def quadratic_smoothing(self):
        factor, curve = self.options["smoothing_factor"], self.options["smoothing_curve"]
        if factor == 0:
            return
        k, s = (3 - curve) / 2, (curve - 1) / 2
        top = self.tokens[0][1]
        self.divisor = 1.0
        self.tokens = [(i, -k * factor * (x - top) ** 2 + s * factor * (x - top) ** 3) for i, x in self.tokens]

    def top_n_sigma(self):
        n = self.options["top_n_sigma"]
        if n == 0:
            return
        logits = self.logits()
        mean = sum(logits) / len(logits)
        sigma = math.sqrt(sum((x - mean) ** 2 for x in logits) / len(logits))
        least = logits[0] - n * sigma * (1 + self.slack)
        self.tokens = [t for t in self.tokens if t[1] >= least]

    def min_p(self):
        if self.options["min_p"] != 0:
            self.keep_from(self.options["min_p"] * softmax(self.logits())[0])

    def top_k(self):
        if self.options["top_k"] != 0:
            self.tokens = self.tokens[: self.options["top_k"]]

    def top_p(self):
        if self.options["top_p"] == 1:
            return
        target = self.options["top_p"] * (1 + self.slack)
        total = 0.0
        for n, p in enumerate(softmax(self.logits())):
            total += p
            if total >= target:
                self.tokens = self.tokens[: n + 1]
                return

    def typical_p(self):
        if self.options["typical_p"] == 1:
            return
        probabilities = softmax(self.logits())
        h = entropy(probabilities)
        gaps = [abs(-math.log(p) - h) if p > 0 else math.inf for p in probabilities]
        target = self.options["typical_p"] * (1 + self.slack)
        total = 0.0
        for gap, p in sorted(zip(gaps, probabilities)):
            total += p
            if total >= target:
                most = gap
                break
        most = max(most, sorted(gaps)[max(1, min(self.options["min_keep"], len(gaps))) - 1])
        # Ties stay, even if rounding has changed their gaps.
        self.tokens = [t for t, gap in zip(self.tokens, gaps) if gap <= most + 1e-9]

    def epsilon_cutoff(self):
        if self.options["epsilon_cutoff"] != 0:
            self.keep_from(self.options["epsilon_cutoff"])

    def eta_cutoff(self):
        epsilon = self.options["eta_cutoff"]
        if epsilon != 0:
            self.keep_from(min(epsilon, math.sqrt(epsilon) * math.exp(-entropy(softmax(self.logits())))))

    def top_a(self):
        if self.options["top_a"] != 0:
            self.keep_from(self.options["top_a"] * softmax(self.logits())[0] ** 2)

    def top_h(self):
        if self.options["top_h"] == 0:
            return
        self.tokens = self.tokens[:100]
        terms = [-p * math.log(p) for p in softmax(self.logits())]
        limit = self.options["top_h"] * sum(terms) * (1 + self.slack)
        total = 0.0
        kept = 0
        for term in terms:
            total += term
            if total > limit:
                break
            kept += 1
        self.tokens = self.tokens[: max(1, kept)]

    def min_k(self):
        if not self.options["min_k"] or len(self.tokens) == 1:
            return
        x = self.logits()[:256]
        span = (x[0] - x[-1]) * self.divisor
        decay = [(x[i] - x[i + 1]) / (i + 1) for i in range(len(x) - 1)]
        cliff = 1 + decay.index(max(decay))
        self.tokens = self.tokens[: max(cliff, int(self.options["min_k_tau"] / span) if span else 256)]

    def p_less(self):
        if self.options["p_less"]:
            self.keep_from(sum(p * p for p in softmax(self.logits())))

    def xtc(self):
        # The rows' coin always falls.
        if self.options["xtc_probability"] == 0:
            return
        threshold = self.options["xtc_threshold"] * (1 + self.slack)
        reached = sum(p >= threshold for p in softmax(self.logits()))
        if len(self.tokens) - max(0, reached - 1) >= self.options["min_keep"]:
            self.tokens = self.tokens[max(0, reached - 1) :]

    def mirostat(self):
        version = self.options["mirostat"]
        if version == 0:
            return
        mu = self.state * 2.0**-26
        if version == 2:
            self.keep_from(2.0**-mu)
            return
        probabilities = softmax(self.logits())[: self.options["mirostat_m"]]
        t = [math.log((i + 2) / (i + 1)) for i in range(len(probabilities) - 1)]
        b = [math.log(p / q) for p, q in zip(probabilities, probabilities[1:])]
        s = sum(x * y for x, y in zip(t, b)) / sum(x * x for x in t)
        e = s - 1
        k = ((e * 2.0**mu) / (1 - self.vocabulary**-e)) ** (1 / s) * (1 + self.slack)
        self.tokens = self.tokens[: max(1, int(k))]

    def adaptive_p(self):
        if not self.options["adaptive_p"]:
            return
        self.before = dict(zip((i for i, _ in self.tokens), softmax(self.logits())))
        target = min(1.0, max(0.0, 2 * self.options["adaptive_target"] - self.state * 2.0**-32))
        gaps = [abs(p - target) / 0.3 for p in softmax(self.logits())]
        self.tokens = [(i, 5 - 10 * d * d / (1 + d)) for (i, _), d in zip(self.tokens, gaps)]

    def next_state(self, token):
        probabilities = dict(zip((i for i, _ in self.tokens), softmax(self.logits())))
        if self.options["mirostat"] != 0:
            surprise = -math.log2(probabilities[token])
            return self.state * 2.0**-26 - self.options["mirostat_eta"] * (surprise - self.options["mirostat_tau"])
        if self.options["adaptive_p"]:
            decay = self.options["adaptive_decay"]
            return decay * self.state * 2.0**-32 + (1 - decay) * self.before[token]
        return 0.0


def kept_by(row, slack):
    chain = Chain(row, slack)
    chain.run()
    return chain


def unit_of_state(options):
    return 2.0**-32 if options["adaptive_p"] else 2.0**-26


def main():
    lines = subprocess.run([sys.argv[1]], check=True, capture_output=True, text=True).stdout.splitlines()
    explained = 0
    largest = 0.0
    failures = []
    for number, line in enumerate(lines):
        row = json.loads(line)
        kept = {int(token): logprob for token, logprob in row["kept"].items()}
        chain = kept_by(row, 0)
        if {i for i, _ in chain.tokens} != kept.keys():
            others = [{i for i, _ in kept_by(row, slack).tokens} for slack in (-SLACK, SLACK)]
            explained += 1
            if kept.keys() not in others:
                failures.append(f"row {number}: kept {len(kept)}, expected {len(chain.tokens)}: {row['options']}")
            continue
        for (i, _), p in zip(chain.tokens, softmax(chain.logits())):
            if p > 1e-30:
                scale = max(1, -math.log(p) * LOGPROB_RELATIVE_ERROR / LOGPROB_ERROR)
                largest = max(largest, abs(math.log(p) - kept[i]) / scale)
        state = abs(chain.next_state(row["token"]) - row["next_state"] * unit_of_state(row["options"]))
        if state > 1e-5:
            failures.append(f"row {number}: the state differs by {state}: {row['options']}")
    print(f"{len(lines)} rows, {explained} differ by rounding at a cut, logprobs within {largest:.2g}")
    if largest > LOGPROB_ERROR:
        failures.append(f"a logprob differs by {largest}")
    if explained > MOST_EXPLAINED * len(lines) or len(lines) < 400:
        failures.append("too many rows differ, or there are too few")
    for failure in failures[:10]:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
