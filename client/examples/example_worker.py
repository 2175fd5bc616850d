"""A minimal worker in Python. client/cpp/example_worker.cc is the same in C++, and draws the same tokens."""

import sys

import numpy
import sortition

VOCABULARY = 32000


def compute_logits(position):
    """Stands for the model: computes the row of logits after `position` tokens."""
    ids = numpy.arange(VOCABULARY, dtype=numpy.uint32)
    return (ids * numpy.uint32(position + 7) % 1009).astype(numpy.float32) / 100


def main(targets):
    # If no target can be reached, rows are sampled in this process, with the same tokens.
    with sortition.Client(targets, fallback="in_process") as sampler:
        sequences = [sampler.open(request_id, vocabulary_size=VOCABULARY, seed=42 + number, prompt=[1, 15043, 3186],
                                  temperature=0.8, top_p=0.95, repetition_penalty=1.1)
                     for number, request_id in enumerate(("request-1", "request-2"))]
        for _ in range(10):
            results = sampler.step(sequences, [compute_logits(sequence.position) for sequence in sequences])
            for result in results:
                if isinstance(result, sortition.Error):
                    raise result
            print(*(result.token for result in results))


if __name__ == "__main__":
    main(sys.argv[1:])
