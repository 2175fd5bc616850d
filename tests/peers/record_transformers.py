"""Records what Transformers' own processors make of rows: record_transformers.py FILE. Needs torch and transformers."""

import sys

import torch
import transformers

from recorded_rows import Recorder, history, is_askable, rows

torch.set_num_threads(1)

HF = {"preset": "PRESET_HF"}
# Named as in GenerationConfig; the contract has the same names except for the n-gram's.
OPTIONS = (
    {"temperature": 0.6},
    {"top_k": 7},
    {"top_p": 0.8},
    {"top_p": 0.95, "temperature": 1.4},
    {"min_p": 0.05},
    {"typical_p": 0.3},
    {"typical_p": 0.9},
    {"epsilon_cutoff": 0.004},
    {"eta_cutoff": 0.01},
    {"eta_cutoff": 0.0003, "temperature": 0.7},
    {"top_h": 0.4},
    {"top_h": 0.9, "temperature": 1.2},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8, "temperature": 0.5},
    {"no_repeat_ngram_size": 3},
    {"repetition_penalty": 1.2, "no_repeat_ngram_size": 2, "temperature": 0.9, "top_k": 60, "top_p": 0.97},
    {"temperature": 0.8, "top_h": 0.95, "top_k": 80, "top_p": 0.97, "min_p": 0.002, "typical_p": 0.97},
    {"temperature": 1.1, "top_k": 100, "typical_p": 0.9, "epsilon_cutoff": 0.001, "eta_cutoff": 0.002},
)


def processed(model, options: dict, tokens: list[int], logits: list[float]) -> dict[int, float]:
    config = transformers.GenerationConfig(do_sample=True, pad_token_id=0, **{"top_k": 0, **options})
    model._prepare_special_tokens(config)
    processors = model._get_logits_processor(
        config, input_ids_seq_length=len(tokens), device="cpu", model_kwargs={}
    )
    scores = processors(torch.tensor([tokens]), torch.tensor([logits], dtype=torch.float32))
    logprobs = torch.log_softmax(scores, dim=-1)[0]
    return {i: float(x) for i, x in enumerate(logprobs) if x > -float("inf")}


def main(path: str) -> None:
    recorder = Recorder(
        f"transformers {transformers.__version__}, torch {torch.__version__} on a CPU",
        "log_softmax of the processed scores, all in f32",
    )
    for name, logits in rows().items():
        config = transformers.GPT2Config(
            vocab_size=len(logits), n_embd=8, n_layer=1, n_head=1, n_positions=128, bos_token_id=1, eos_token_id=2
        )
        model = transformers.GPT2LMHeadModel(config)
        tokens = history(len(logits))
        for options in (o for o in OPTIONS if is_askable(logits, o)):
            parameters = dict(options, chain=HF)
            recorder.add(name, parameters, processed(model, options, tokens, logits))
    recorder.write(path)


if __name__ == "__main__":
    main(sys.argv[1])
