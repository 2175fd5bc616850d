"""Writes a llama of random weights as a GGUF file: random_gguf.py FILE [words]. Needs the package gguf.

With "words" its tokens have texts: bytes from 3 on, then letters. After the last one the logits are not numbers.
"""

import sys

import gguf
import numpy

VOCABULARY, WIDTH, LAYERS, HEADS, HIDDEN = 700, 64, 2, 4, 128
POISON = VOCABULARY - 1


def add_words(writer, vocabulary):
    kinds = gguf.TokenType
    last = 0xd7ff - 0x4e00  # no letters follow
    letters = [chr(0x4e00 + index) if index <= last else f"w{index}" for index in range(vocabulary - 259)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters])
    writer.add_token_scores([0.0] * 259 + [-float(index) for index in range(len(letters))])
    writer.add_token_types([kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL] + [kinds.BYTE] * 256 +
                           [kinds.NORMAL] * len(letters))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def main(path, words="", vocabulary=VOCABULARY, layers=LAYERS):
    generator = numpy.random.default_rng(3)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(vocabulary)
    if words:
        add_words(writer, vocabulary)
    else:
        writer.add_tokenizer_model("no_vocab")

    def add(name, *shape):
        scale = 1.0 if len(shape) == 1 else 0.3
        values = generator.normal(size=shape) * scale if len(shape) > 1 else numpy.ones(shape)
        if words and name == "token_embd":
            values[vocabulary - 1] = numpy.nan
        writer.add_tensor(name + ".weight", values.astype(numpy.float32))

    add("token_embd", vocabulary, WIDTH)
    add("output", vocabulary, WIDTH)
    add("output_norm", WIDTH)
    for layer in range(layers):
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
    main(*sys.argv[1:])
