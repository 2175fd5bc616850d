"""Writes a llama of random weights as a GGUF file: random_gguf.py FILE. Needs the package gguf."""

import sys

import gguf
import numpy

VOCABULARY, WIDTH, LAYERS, HEADS, HIDDEN = 700, 64, 2, 4, 128


def main(path):
    generator = numpy.random.default_rng(3)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("no_vocab")

    def add(name, *shape):
        scale = 1.0 if len(shape) == 1 else 0.3
        values = generator.normal(size=shape) * scale if len(shape) > 1 else numpy.ones(shape)
        writer.add_tensor(name + ".weight", values.astype(numpy.float32))

    add("token_embd", VOCABULARY, WIDTH)
    add("output", VOCABULARY, WIDTH)
    add("output_norm", WIDTH)
    for layer in range(LAYERS):
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{part}", WIDTH, WIDTH)
        for part in ("ffn_gate", "ffn_up"):
            add(f"blk.{layer}.{part}", HIDDEN, WIDTH)
        add(f"blk.{layer}.ffn_down", WIDTH, HIDDEN)
        add(f"blk.{layer}.attn_norm", WIDTH)
        add(f"blk.{layer}.ffn_norm", WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(sys.argv[1])
