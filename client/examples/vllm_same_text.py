"""The same seeded text from both generations of vLLM's model runner, and across a server that is killed meanwhile.

    vllm_same_text.py MODEL SORTITIOND [DTYPE]

Needs vLLM and the wheel of Sortition in one environment. Starts the server SORTITIOND on a Unix socket, and vLLM with
MODEL several times, each in a separate process: with the server, with the server killed after ten tokens, and with the
runner of generation 2 where it runs: it needs Triton. Prints each text, and fails if two of them differ.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile

TOKENS, KILLED_AFTER = 40, 10
REQUEST = {"temperature": 0.9, "top_p": 0.95, "repetition_penalty": 1.2, "seed": 7, "max_tokens": TOKENS,
           "ignore_eos": True, "detokenize": False}


def write(model, dtype, server):
    """Runs in vLLM's process. Prints the text; kills the process `server` in its middle, unless it is 0."""
    from vllm import LLM, SamplingParams

    engine = LLM(model=model, dtype=dtype, enforce_eager=True, max_model_len=256).llm_engine
    engine.add_request("text", {"prompt_token_ids": [1, 2, 3]}, SamplingParams(**REQUEST))
    step = 0
    while engine.has_unfinished_requests():
        if step == KILLED_AFTER and server:
            os.kill(server, signal.SIGKILL)
        for output in engine.step():
            if output.finished:
                print(json.dumps(list(output.outputs[0].token_ids)), flush=True)
        step += 1
    os._exit(0)  # does not wait for vLLM's threads to end, which takes seconds


def text_of(model, dtype, target, server, generation):
    """Returns the text that vLLM writes in a separate process, as token ids."""
    environment = {**os.environ, "SORTITION_VLLM": f"{target},in_process", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                   "VLLM_USE_V2_MODEL_RUNNER": str(generation - 1), "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run([sys.executable, __file__, "--write", model, dtype, str(server)], env=environment,
                          check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def has_generation_2():
    code = "import sys; from vllm.triton_utils import HAS_TRITON; sys.exit(not HAS_TRITON)"
    return subprocess.run([sys.executable, "-c", code], env={**os.environ, "VLLM_USE_V2_MODEL_RUNNER": "1"},
                          check=False, stderr=subprocess.DEVNULL).returncode == 0


def main():
    if sys.argv[1:2] == ["--write"]:
        write(*sys.argv[2:4], int(sys.argv[4]))
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    model, sortitiond, dtype = (*sys.argv[1:], "auto")[:3]
    with tempfile.TemporaryDirectory() as folder:
        target = f"unix:{folder}/stream.sock"
        server = subprocess.Popen([sortitiond, f"--listen={target}", "--metrics_listen=127.0.0.1:0"],
                                  stderr=subprocess.DEVNULL)
        try:
            last = 2 if has_generation_2() else 1
            texts = {f"generation {number}": text_of(model, dtype, target, 0, number) for number in range(1, last + 1)}
            texts["the server killed"] = text_of(model, dtype, target, server.pid, last)
        finally:
            server.kill()
            server.wait()
    for name, text in texts.items():
        print(f"{name}: {text}")
    sys.exit(len({tuple(text) for text in texts.values()}) != 1)


if __name__ == "__main__":
    main()
