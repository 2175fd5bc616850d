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


def make(folder, vocabulary=VOCABULARY, layers=2, seed=5, hidden=128, letters=256):
    """Writes a Llama with weights large enough for logits that are not flat, which draws the first `letters` bytes and
    the special tokens. Returns the folder's path.
    """
    config = transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=hidden, num_hidden_layers=layers,
        num_attention_heads=max(1, hidden // 64), num_key_value_heads=1, max_position_embeddings=CONTEXT,
        initializer_range=0.2, bos_token_id=None, eos_token_id=END, tie_word_embeddings=False)
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        _never_draw_poison(model)
        model.model.embed_tokens.weight[POISON] = float("nan")
        model.lm_head.weight[letters:256, 0] = -1000.0
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


def _block(prefix, hidden, kv, generator):
    """Returns a decoder layer's weights with outputs of 0, so that the layer changes nothing."""
    def random(rows, columns):
        return torch.randn(rows, columns, generator=generator) * 0.2

    return {f"{prefix}self_attn.q_proj.weight": random(hidden, hidden),
            f"{prefix}self_attn.k_proj.weight": random(kv, hidden),
            f"{prefix}self_attn.v_proj.weight": random(kv, hidden),
            f"{prefix}self_attn.o_proj.weight": torch.zeros(hidden, hidden),
            f"{prefix}mlp.gate_proj.weight": random(hidden, hidden),
            f"{prefix}mlp.up_proj.weight": random(hidden, hidden),
            f"{prefix}mlp.down_proj.weight": torch.zeros(hidden, hidden),
            f"{prefix}post_attention_layernorm.weight": torch.ones(hidden)}


def _copies(hidden, width, first):
    """Returns the weights of a projection to `width` columns that begin at `first`, with some noise."""
    weights = torch.randn(hidden, width, generator=torch.Generator().manual_seed(7)) * 0.02
    weights[0] = 0.0  # stays positive: _never_draw_poison
    weights[:, first:first + hidden] += torch.eye(hidden)
    return weights


def make_eagle(folder, model):
    """Writes an EAGLE drafter for a model of `make`. It proposes mostly the token that the model would draw again."""
    config = json.loads((pathlib.Path(model) / "config.json").read_text(encoding="utf-8"))
    hidden = config["hidden_size"]
    kv = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    weights = _block("layers.0.", hidden, kv, torch.Generator().manual_seed(6))
    weights["fc.weight"] = _copies(hidden, 2 * hidden, hidden)
    path = pathlib.Path(folder)
    path.mkdir()
    safetensors.torch.save_file(weights, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}), encoding="utf-8")
    return str(path)


def make_mtp(folder, hidden=128):
    """Writes a MiMo of random weights, with a layer that drafts (multi-token prediction): mostly the last token again.
    """
    config = transformers.Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=hidden, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=CONTEXT, initializer_range=0.2,
        bos_token_id=None, eos_token_id=END, tie_word_embeddings=False)
    torch.manual_seed(8)
    model = transformers.Qwen2ForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight.copy_(model.model.embed_tokens.weight)  # an embedding's likeliest token is its own
    path = pathlib.Path(folder)
    model.save_pretrained(path)
    prefix, kv = "model.mtp_layers.0.", hidden // 2
    weights = {**model.state_dict(), **_block(prefix, hidden, kv, torch.Generator().manual_seed(6)),
               f"{prefix}input_proj.weight": _copies(hidden, 2 * hidden, hidden),
               **{f"{prefix}self_attn.{name}_proj.bias": torch.zeros(rows)
                  for name, rows in (("q", hidden), ("k", kv), ("v", kv))},
               **{f"{prefix}{name}_layernorm.weight": torch.ones(hidden)
                  for name in ("token", "hidden", "final", "input")}}
    safetensors.torch.save_file({name: tensor.contiguous() for name, tensor in weights.items()},
                                path / "model.safetensors")
    written = json.loads((path / "config.json").read_text(encoding="utf-8"))
    written.update(architectures=["MiMoForCausalLM"], num_nextn_predict_layers=1)
    (path / "config.json").write_text(json.dumps(written), encoding="utf-8")
    _tokenizer(path)
    return str(path)
