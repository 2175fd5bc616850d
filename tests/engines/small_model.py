"""Makes small models of random weights, with a tokenizer, in the folder form that engines load."""

import json
import pathlib

import safetensors.torch
import tokenizers
import torch
import transformers

# Token 0..255 are bytes. A prompt with POISON gives logits that are not numbers.
END, POISON, THINK, ANSWER = 256, 257, 258, 259
SPECIAL = ("<end>", "<poison>", "<think>", "</think>")
VOCABULARY = 256 + len(SPECIAL)
CONTEXT = 512


def _tokenizer(folder):
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(alphabet)}
    model = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    model.add_special_tokens([tokenizers.AddedToken(text, special=True) for text in SPECIAL])
    transformers.PreTrainedTokenizerFast(tokenizer_object=model, eos_token=SPECIAL[0]).save_pretrained(folder)
    (pathlib.Path(folder) / "chat_template.jinja").write_text(
        "{% for message in messages %}{{ message['content'] }}\n{% endfor %}", encoding="utf-8")


def _never_draw_poison(model):
    """Keeps the first element of the hidden state positive at every place, and lets POISON's logit read only that."""
    model.model.embed_tokens.weight[:, 0] = 2.0
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight[0] = 0.0
        layer.mlp.down_proj.weight[0] = 0.0
    model.lm_head.weight[:, 0] = 0.0
    model.lm_head.weight[POISON] = 0.0
    model.lm_head.weight[POISON, 0] = -1000.0


def make(folder, vocabulary=VOCABULARY, layers=2, seed=5, hidden=128):
    """Writes a Llama with weights large enough for logits that are not flat. Returns the folder's path."""
    config = transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=hidden, num_hidden_layers=layers,
        num_attention_heads=max(1, hidden // 64), num_key_value_heads=1, max_position_embeddings=CONTEXT,
        initializer_range=0.2, bos_token_id=None, eos_token_id=END, tie_word_embeddings=False)
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        _never_draw_poison(model)
        model.model.embed_tokens.weight[POISON] = float("nan")
    model.save_pretrained(folder)
    generation = pathlib.Path(folder) / "generation_config.json"
    generation.write_text(json.dumps({"eos_token_id": END}), encoding="utf-8")
    _tokenizer(folder)
    return str(folder)


def make_lora(folder, model, rank=4):
    """Writes a LoRA adapter of random weights for a model of this form. Returns the folder's path."""
    loaded = transformers.LlamaForCausalLM.from_pretrained(model)
    generator = torch.Generator().manual_seed(9)
    weights = {}
    for name, module in loaded.named_modules():
        if name.endswith(("q_proj", "v_proj")):
            rows, columns = module.weight.shape
            base = f"base_model.model.{name}"
            weights[f"{base}.lora_A.weight"] = torch.randn(rank, columns, generator=generator)
            weights[f"{base}.lora_B.weight"] = torch.randn(rows, rank, generator=generator) * 2
    path = pathlib.Path(folder)
    path.mkdir()
    safetensors.torch.save_file(weights, path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": rank, "bias": "none",
        "target_modules": ["q_proj", "v_proj"], "base_model_name_or_path": model}), encoding="utf-8")
    return str(path)
