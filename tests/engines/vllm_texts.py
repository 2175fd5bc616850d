"""Runs vLLM's LLM as a process: reads engine options and batches of requests as JSON, writes the answers as JSON.

A request is a prompt (token ids) and sampling options; "json" is a schema of its text, "lora" the folder of an
adapter. "abort" is the number of steps after which the request is given up. An answer has the tokens, or the text of
the refusal at admission. In the place of a batch, {"kill": PID} ends a process, and {"start": COMMAND} starts one that
lives as long as this.
"""

import json
import os
import signal
import subprocess
import sys
import traceback


def params_of(options):
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    options = {name: value for name, value in options.items() if name not in ("lora", "abort")}
    schema = options.pop("json", None)
    if "logit_bias" in options:
        options["logit_bias"] = {int(token): bias for token, bias in options["logit_bias"].items()}
    if schema is not None:
        options["structured_outputs"] = StructuredOutputsParams(json=schema)
    # The last output has all texts of a request, not only those that end last.
    return SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY, **options)


def answer_of(output):
    best = output.outputs[0]
    logprobs = None if best.logprobs is None else [
        {str(token): [part.logprob, part.rank] for token, part in position.items()} for position in best.logprobs]
    return {"tokens": list(best.token_ids), "texts": [list(other.token_ids) for other in output.outputs],
            "text": best.text, "finish": best.finish_reason, "stop": best.stop_reason, "logprobs": logprobs,
            "masks": getattr(getattr(best, "sampling_mask", None), "token_ids", None)}


def run(engine, requests):
    """Answers a batch. Requests are added one by one, because a refusal in a batch would hide which it was of."""
    from vllm.exceptions import VLLMValidationError
    from vllm.lora.request import LoRARequest

    answers, ends = {}, {}
    for number, (prompt, options) in enumerate(requests):
        name = f"{id(requests)}-{number}"
        lora = LoRARequest("adapter", 1, options["lora"]) if "lora" in options else None
        try:
            engine.add_request(name, {"prompt_token_ids": prompt}, params_of(options), lora_request=lora)
        except (ValueError, VLLMValidationError) as error:
            answers[name] = {"refused": str(error)}
        else:
            answers[name] = None
            ends.setdefault(options.get("abort"), []).append(name)
    steps = 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                answers[output.request_id] = answer_of(output)
        steps += 1
        engine.abort_request(ends.get(steps, []))
    return list(answers.values())


def run_engine(task, started):
    from vllm import LLM

    llm = LLM(**{"dtype": "float32", "enforce_eager": True, "max_model_len": 256, "max_num_seqs": 16, "seed": 1,
                 "disable_log_stats": False, **task["engine"]})
    made = []
    for batch in task["batches"]:
        if isinstance(batch, list):
            made.append(run(llm.llm_engine, batch))
        elif "kill" in batch:
            os.kill(batch["kill"], signal.SIGKILL)
        else:
            started.append(subprocess.Popen(batch["start"], stdout=subprocess.DEVNULL))
    metrics = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    return {"batches": made, "metrics": metrics}


def main():
    task = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM and its parts write to standard output, too
    started = []
    try:
        made = run_engine(task, started)
    except Exception:
        made = {"failed": traceback.format_exc()}
    json.dump(made, answers)
    answers.flush()
    for process in started:
        process.kill()
    os._exit(0)  # without the ends of vLLM's processes, which take seconds


if __name__ == "__main__":
    main()
