"""An engine in a separate process, for texts.py: writes texts with a small model of random weights, and times them.

    texts_worker.py vllm|transformers MODEL SAMPLING ROWS DTYPE THREADS

SAMPLING says who draws: "" (the engine), "in_process", or a target of the service. The model has the type DTYPE. For
each line "CASE TOKENS" of standard input the engine writes ROWS texts of that many tokens at once, and the times
between tokens, in seconds, are printed as a JSON list. Cases are those of OPTIONS.
"""

import json
import os
import sys
import time

PROMPT = [7, 11, 13, 17, 19, 23, 29, 31]
OPTIONS = {"full": {"temperature": 0.8, "top_p": 0.95, "top_k": 40, "repetition_penalty": 1.1},
           "top_p": {"temperature": 0.8, "top_p": 0.95}, "greedy": {"temperature": 0.0}}


def vllm_writer(model, sampling, rows, dtype, threads):
    # An engine within its caller's process binds no threads by itself.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])
    os.environ.update(SORTITION_VLLM=sampling, VLLM_CPU_KVCACHE_SPACE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0",
                      VLLM_LOGGING_LEVEL="WARNING", OMP_NUM_THREADS=str(threads))
    import torch
    from vllm import LLM, SamplingParams

    engine = LLM(model=model, dtype=dtype, enforce_eager=True, max_model_len=256, max_num_seqs=rows,
                 seed=1).llm_engine
    if torch.get_num_threads() != threads:
        raise RuntimeError(f"the engine has {torch.get_num_threads()} threads, not {threads}")
    numbers = iter(range(1 << 30))

    def write(case, tokens):
        for row in range(rows):
            engine.add_request(str(next(numbers)), {"prompt_token_ids": [row + 1, *PROMPT]}, SamplingParams(
                max_tokens=tokens, ignore_eos=True, detokenize=False, **OPTIONS[case]))
        times = []
        while engine.has_unfinished_requests():
            start = time.perf_counter()
            engine.step()
            times.append(time.perf_counter() - start)
        return times[1:]  # the first one reads the prompts

    return write


def transformers_writer(model, sampling, rows, dtype, threads):
    import sortition.local
    import torch
    import transformers
    from sortition.transformers import SortitionSampler

    torch.set_num_threads(threads)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
    loaded.generation_config = transformers.GenerationConfig(pad_token_id=0)
    client = None
    if sampling:
        client = sortition.local.Sampler() if sampling == "in_process" else sortition.Client(sampling, rows="auto")

    class Clock:
        def __init__(self):
            self.times = []

        def put(self, _):
            self.times.append(time.perf_counter())

        def end(self):
            pass

    def write(case, tokens):
        clock = Clock()
        prompts = torch.tensor([[row + 1, *PROMPT] for row in range(rows)])
        more = {"custom_generate": SortitionSampler(client)} if client else {}
        more.update({"do_sample": False} if case == "greedy" else {"do_sample": True, **OPTIONS[case]})
        loaded.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=tokens, streamer=clock, **more)
        made = clock.times[1:]  # the first one is the prompt
        return [after - before for before, after in zip(made, made[1:])]

    return write


def main():
    engine, model, sampling, rows, dtype, threads = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # engines write to standard output, too
    make = {"vllm": vllm_writer, "transformers": transformers_writer}[engine]
    write = make(model, sampling, int(rows), dtype, int(threads))
    for line in sys.stdin:
        case, tokens = line.split()
        print(json.dumps(write(case, int(tokens))), file=answers)
    answers.close()
    os._exit(0)  # without the ends of the engine's threads, which take seconds


if __name__ == "__main__":
    main()
