"""Real Transformers models, small and random, generate through the service and in process."""

import unittest
from unittest import mock

import ml_dtypes
import numpy
import torch
import transformers
import sortition.local
from sortition.logits import LogitsTransfer, tensor_of
from sortition.transformers import Plan, SortitionSampler

from rows import serve
from sortitiond_process import free_port

torch.set_num_threads(1)

VOCABULARY = 503
STEPS = 12


def models():
    """Returns (name, model) pairs; the weights are large enough for logits that are not flat."""
    common = {"vocab_size": VOCABULARY, "initializer_range": 0.25, "bos_token_id": 1, "eos_token_id": 2}
    gpt2 = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=128, **common)
    llama = transformers.LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                                     num_key_value_heads=2, max_position_embeddings=128, **common)
    for dtype in (torch.float32, torch.bfloat16):
        for name, kind, config in (("gpt2", transformers.GPT2LMHeadModel, gpt2),
                                   ("llama", transformers.LlamaForCausalLM, llama)):
            torch.manual_seed(5)
            yield f"{name} {dtype}", kind(config).to(dtype).eval()


MODELS = dict(models())


def prompts():
    """Returns three prompts, padded on the left."""
    tokens = torch.randint(3, VOCABULARY, (3, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(tokens)
    mask[1, :4] = 0
    tokens[1, :4] = 0
    return {"input_ids": tokens, "attention_mask": mask}


def generate(model, method=None, **options):
    return model.generate(**prompts(), max_new_tokens=STEPS, pad_token_id=0, custom_generate=method, **options)


class Green(transformers.LogitsProcessor):
    """A watermark: raises half of the tokens, as the token before says which."""

    @staticmethod
    def is_green(tokens):
        return (tokens[:, -1:] * 31 + torch.arange(VOCABULARY) * 17) % 7 < 3

    def __call__(self, input_ids, scores):
        return scores + 4.0 * self.is_green(input_ids)

    @classmethod
    def share(cls, texts, start):
        found = [bool(cls.is_green(texts[row:row + 1, :end])[0, texts[row, end]])
                 for row in range(len(texts)) for end in range(start, texts.shape[1]) if texts[row, end] > 2]
        return sum(found) / len(found)


FILTERS = ("top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "top_h")


def processors(model, options):
    """The processors that generate would run over the scores."""
    config = transformers.GenerationConfig(do_sample=True, pad_token_id=0, **{"top_k": 0, **options})
    model._prepare_special_tokens(config)
    batch = prompts()
    return model._get_logits_processor(config, input_ids_seq_length=batch["input_ids"].shape[1], device="cpu",
                                       model_kwargs={"attention_mask": batch["attention_mask"]})


class TransformersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = serve()
        cls.client = sortition.Client(cls.server.serving["listen"])
        cls.samplers = {"service": cls.client, "in process": sortition.local.Sampler()}

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.__exit__()

    def each(self):
        for model_name, model in MODELS.items():
            for sampler_name, sampler in self.samplers.items():
                yield f"{model_name}, {sampler_name}", model, sampler

    def test_greedy_is_generate(self):
        for options in ({}, {"repetition_penalty": 1.3, "sequence_bias": [[[7], 9.0], [[11], -9.0]]},
                        {"min_new_tokens": 9, "suppress_tokens": [3, 4, 5], "bad_words_ids": [[50], [51]]}):
            for name, model, sampler in self.each():
                with self.subTest(name):
                    expected = generate(model, do_sample=False, **options)
                    drawn = generate(model, SortitionSampler(sampler), do_sample=False, **options)
                    self.assertEqual(drawn.tolist(), expected.tolist(), options)

    def test_prefix_constraint(self):
        def allowed(row, tokens):
            return [(int(tokens[-1]) * 7 + row + step) % VOCABULARY for step in range(5)]

        for name, model, sampler in self.each():
            with self.subTest(name):
                expected = generate(model, do_sample=False, prefix_allowed_tokens_fn=allowed)
                drawn = generate(model, SortitionSampler(sampler), do_sample=False, prefix_allowed_tokens_fn=allowed)
                self.assertEqual(drawn.tolist(), expected.tolist())

    def test_tokens_beyond_the_vocabulary(self):
        model = MODELS["gpt2 torch.float32"]
        method = SortitionSampler(self.samplers["in process"])
        options = {"do_sample": False, "eos_token_id": -1, "min_new_tokens": STEPS}
        self.assertEqual(generate(model, method, **options).tolist(), generate(model, **options).tolist())
        for token in (-1, VOCABULARY):
            with self.assertRaisesRegex(ValueError, f"prefix_allowed_tokens_fn: token {token}"):
                generate(model, method, do_sample=False, prefix_allowed_tokens_fn=lambda *_: [token])

    def assert_steps_agree(self, model, sampler, **options):
        steps = []
        method = SortitionSampler(sampler, seed=3, on_step=steps.append, processed_logprobs={"top": VOCABULARY})
        output = generate(model, method, do_sample=True, output_logits=True, return_dict_in_generate=True, **options)
        chain = processors(model, options)
        changes = processors(model, {name: value for name, value in options.items() if name not in FILTERS})
        compared = ties = 0
        for step, (logits, draws) in enumerate(zip(output.logits, steps)):
            tokens = output.sequences[:, :prompts()["input_ids"].shape[1] + step]
            scores, changed = chain(tokens, logits.clone()), changes(tokens, logits.clone())
            logprobs = torch.log_softmax(scores, -1)
            for row, draw in enumerate(draws):
                if draw is None:
                    continue
                ours = set(draw.processed.top_tokens)
                theirs = set(scores[row].isfinite().nonzero().reshape(-1).tolist())
                if ours == theirs:
                    self.assertAlmostEqual(draw.processed.logprob, float(logprobs[row, draw.token]), places=4)
                    compared += 1
                    continue
                # Transformers keeps all tokens that tie with the last of top-k, so that other filters see more of them,
                # and orders tokens that tie with the last of top-p differently.
                ties += 1
                most = options.get("top_k", 0)
                ordered = changed[row].sort(descending=True).values
                if most and ordered[most - 1] == ordered[most]:
                    continue
                last = min(float(changed[row, token]) for token in ours)
                self.assertEqual({float(changed[row, token]) for token in ours ^ theirs}, {last}, (options, step, row))
        self.assertGreater(compared, STEPS)
        return ties

    def test_processors_agree_at_every_step(self):
        for options in ({"top_k": 0, "temperature": 0.7, "repetition_penalty": 1.4}, {"top_k": 17},
                        {"top_k": 0, "top_p": 0.8}, {"top_k": 0, "min_p": 0.05, "temperature": 1.5},
                        {"top_k": 0, "repetition_penalty": 0.8, "suppress_tokens": [9, 8], "top_p": 0.6}):
            for name, model, sampler in self.each():
                with self.subTest(name):
                    ties = self.assert_steps_agree(model, sampler, **options)
                    if model.dtype == torch.float32:
                        self.assertEqual(ties, 0)

    def test_orders_and_samplers_agree_or_are_refused_by_name(self):
        for options, field in (({"top_k": 40, "top_p": 0.9, "min_p": 0.02}, "chain"),
                               ({"top_k": 0, "typical_p": 0.8}, "typical_p"),
                               ({"top_k": 0, "epsilon_cutoff": 0.002}, "epsilon_cutoff"),
                               ({"top_k": 0, "eta_cutoff": 0.002}, "eta_cutoff"),
                               ({"top_k": 0, "top_h": 0.5}, "top_h"),
                               ({"top_k": 0, "no_repeat_ngram_size": 2}, "no_repeat_ngram_size"),
                               ({"top_k": 0, "bad_words_ids": [[4, 5], [7, 8, 9]]}, "bad_words")):
            for name, model, sampler in self.each():
                with self.subTest(name):
                    try:
                        self.assert_steps_agree(model, sampler, **options)
                    except sortition.Error as error:
                        self.assertEqual(error.reason, "NOT_IMPLEMENTED", options)
                        self.assertIn("open.parameters." + field, error.field)

    def test_unsupported_options_are_refused_by_name(self):
        class First(transformers.LogitsProcessor):
            def __call__(self, input_ids, scores):
                return scores[:1]

        model = MODELS["llama torch.float32"]
        for options, name in (({"logits_processor": [First()]}, "First makes .1, 503. of logits of the shape .3, 503"),
                              ({"num_beams": 2}, "num_beams"),
                              ({"sequence_bias": [[[7, 8], 9.0]]}, "sequence_bias"),
                              ({"output_scores": True, "return_dict_in_generate": True}, "output_scores")):
            with self.subTest(name), self.assertRaisesRegex(ValueError, name):
                generate(model, SortitionSampler(self.client), do_sample=True, **options)

    def test_other_processors_run_first(self):
        model = MODELS["llama torch.float32"]
        watermark = transformers.WatermarkingConfig(bias=3.0, seeding_scheme="selfhash")
        for options in ({"watermarking_config": watermark}, {"exponential_decay_length_penalty": (2, 1.5)},
                        {"forced_eos_token_id": 2}, {"guidance_scale": 1.5},
                        {"logits_processor": [Green()], "temperature": 0.9, "top_k": 20}):
            with self.subTest(str(options)):
                greedy = {**options, "do_sample": False, "temperature": None, "top_k": None}
                self.assertEqual(generate(model, SortitionSampler(self.client), **greedy).tolist(),
                                 generate(model, **greedy).tolist())
        plain, marked = (generate(model, SortitionSampler(self.client, seed=3), do_sample=True, top_k=20, **more)
                         for more in ({}, {"logits_processor": [Green()]}))
        start = prompts()["input_ids"].shape[1]
        self.assertGreater(Green.share(marked, start), Green.share(plain, start) + 0.2)

    def test_other_processors_keep_texts_with_drafts(self):
        model, batch = MODELS["llama torch.float32"], {name: rows[:1] for name, rows in prompts().items()}
        texts = [model.generate(**batch, max_new_tokens=STEPS, pad_token_id=0, do_sample=True, temperature=0.7,
                                custom_generate=SortitionSampler(self.client, seed=3), logits_processor=[Green()],
                                **drafts).tolist()
                 for drafts in ({}, {"prompt_lookup_num_tokens": 3}, {"assistant_model": model})]
        self.assertEqual(texts[1:], texts[:1] * 2)

    def test_checkpointing_keeps_texts_or_is_refused(self):
        model, method = MODELS["llama torch.float32"], SortitionSampler(self.samplers["in process"], seed=3)
        expected = generate(model, method, do_sample=True).tolist()
        try:
            model.train().gradient_checkpointing_enable()
            with self.assertRaisesRegex(ValueError, "gradient checkpointing"):
                generate(model, method, do_sample=True)
            self.assertEqual(generate(model, method, do_sample=True, use_cache=False).tolist(), expected)
            self.assertEqual(generate(model.eval(), method, do_sample=True).tolist(), expected)
        finally:
            model.eval().gradient_checkpointing_disable()

    def test_banned_phrases_are_refused_by_name(self):
        with self.assertRaisesRegex(ValueError, "banned_phrases"):
            SortitionSampler(self.client, banned_phrases=[{"tokens": [3]}])

    def test_phases_hold_within(self):
        tokens = generate(MODELS["llama torch.float32"],
                          SortitionSampler(self.client, seed=3, phases=[{"max_tokens": 2, "then": [7, 8, 9]}]),
                          do_sample=True)
        self.assertEqual(tokens[0, prompts()["input_ids"].shape[1] + 2:][:3].tolist(), [7, 8, 9])

    def test_extra_processor_settings_are_refused_by_name(self):
        ignores = transformers.RepetitionPenaltyLogitsProcessor(1.5, prompt_ignore_length=4)
        least = transformers.TopPLogitsWarper(0.5, min_tokens_to_keep=3)
        for chain, name in (([least, transformers.MinPLogitsWarper(0.5)], "min_tokens_to_keep: 3 of top_p, 1 of min_p"),
                            ([transformers.TopKLogitsWarper(2), least], "min_tokens_to_keep: 3, where top_k keeps 2"),
                            ([transformers.MinPLogitsWarper(0.5, filter_value=-50.0)], "filter_value -50"),
                            ([transformers.TopKLogitsWarper(5), transformers.TopKLogitsWarper(7)], "TopK.* twice"),
                            ([ignores, transformers.NoRepeatNGramLogitsProcessor(2)], "prompt_ignore_length")):
            with self.subTest(name), self.assertRaisesRegex(ValueError, name):
                Plan(chain, True)
        self.assertEqual(Plan([transformers.TopKLogitsWarper(2, min_tokens_to_keep=3)], True).parameters, {"top_k": 3})
        self.assertEqual(Plan([least], True).parameters, {"top_p": 0.5, "min_keep": 3})
        self.assertEqual(Plan([transformers.TemperatureLogitsWarper(0.5)], False).parameters, {"temperature": 0.0})

    def test_step_uses_the_device_logits_moved_to(self):
        """Stands for a GPU's memory, which is written again at each step."""
        class Memory(LogitsTransfer):
            moved = torch.empty(0)
            times = 0

            def move(self, logits):
                self.moved.resize_(0)
                self.moved = logits.clone()
                self.times += 1
                return self.moved

        options = {"do_sample": True, "temperature": 1.2, "top_k": 0, "eos_token_id": list(range(2, 80))}
        for name, model, sampler in self.each():
            with self.subTest(name):
                method = SortitionSampler(sampler, seed=1)
                self.assertEqual(method.logits_path, "")
                expected = generate(model, method, **options)
                self.assertEqual((method.logits_path, method.logits_note), ("host", ""))
                ends = (expected != 0).sum(-1).unique()
                self.assertGreater(len(ends), 1, "some texts end before others")
                memory = Memory(sampler)
                with mock.patch.object(method, "_logits", memory):
                    self.assertEqual(generate(model, method, **options).tolist(), expected.tolist())
                self.assertEqual(memory.times, expected.shape[1] - prompts()["input_ids"].shape[1])

    def test_memory_is_a_tensor_like_the_logits(self):
        """Tensors of the host's memory here: both speak DLPack."""
        memory = numpy.zeros(1 << 12, numpy.uint8)
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            logits = torch.randn(3, 101).to(dtype)
            there = tensor_of(memory, logits)
            self.assertEqual((there.shape, there.dtype, there.data_ptr()), (logits.shape, dtype, memory.ctypes.data))
            there.copy_(logits)
            self.assertEqual(memory[:logits.numel() * dtype.itemsize].tobytes(),
                             logits.view(torch.uint8).numpy().tobytes())

    def test_seeds_reproduce(self):
        options = {"do_sample": True, "temperature": 1.2, "top_k": 0, "repetition_penalty": 1.1}
        for name, model, sampler in self.each():
            with self.subTest(name):
                first = generate(model, SortitionSampler(sampler, seed=1), **options).tolist()
                self.assertEqual(generate(model, SortitionSampler(sampler, seed=1), **options).tolist(), first)
                self.assertNotEqual(generate(model, SortitionSampler(sampler, seed=2), **options).tolist(), first)
                torch.manual_seed(8)
                unseeded = generate(model, SortitionSampler(sampler), **options).tolist()
                torch.manual_seed(8)
                self.assertEqual(generate(model, SortitionSampler(sampler), **options).tolist(), unseeded)

    def test_several_texts_of_one_prompt_differ(self):
        for name, model, sampler in self.each():
            with self.subTest(name):
                batch = {name: tensor[:1] for name, tensor in prompts().items()}
                texts = model.generate(**batch, max_new_tokens=STEPS, pad_token_id=0, do_sample=True, top_k=0,
                                       num_return_sequences=4,
                                       custom_generate=SortitionSampler(sampler, seed=1)).tolist()
                self.assertEqual(len(set(map(tuple, texts))), 4)

    def test_kill_and_restart_change_nothing(self):
        options = {"do_sample": True, "temperature": 1.1, "top_k": 0, "repetition_penalty": 1.2,
                   "min_new_tokens": STEPS}
        listen = f"127.0.0.1:{free_port()}"
        for name, model in MODELS.items():
            with self.subTest(name):
                expected = generate(model, SortitionSampler(self.samplers["in process"], seed=4), **options).tolist()
                servers = [serve(listen=listen)]
                steps = []

                def kill(draws):
                    steps.append(draws)
                    if len(steps) in (3, 8):
                        servers[-1].kill()
                        servers[-1].wait()
                        servers.append(serve(listen=listen))

                with sortition.Client(listen, retry=sortition.Retry(backoff_max=0.2)) as client:
                    drawn = generate(model, SortitionSampler(client, seed=4, on_step=kill), **options).tolist()
                servers[-1].__exit__()
                self.assertEqual(len(servers), 3)
                self.assertEqual(drawn, expected)

    def test_streaming(self):
        class Collect(transformers.generation.BaseStreamer):
            def __init__(self):
                self.pieces, self.ended = [], False

            def put(self, value):
                self.pieces.append(value.tolist())

            def end(self):
                self.ended = True

        options = {"max_new_tokens": STEPS, "pad_token_id": 0, "do_sample": True}
        for name, model, sampler in self.each():
            for through in ("generate", "custom_generate"):
                with self.subTest(f"{name}, {through}"):
                    streamer, method = Collect(), SortitionSampler(sampler, seed=1)
                    batch = {name: tensor[:1] for name, tensor in prompts().items()}
                    if through == "generate":
                        tokens = method.generate(model, **batch, streamer=streamer, **options).tolist()
                    else:
                        tokens = model.generate(**batch, streamer=streamer, custom_generate=method, **options).tolist()
                    self.assertEqual(streamer.pieces[0], [tokens[0][:9]])
                    self.assertEqual(streamer.pieces[1:], [[token] for token in tokens[0][9:]])
                    self.assertTrue(streamer.ended)

    def assert_drafts_keep_texts(self, *, least_saved, **drafter):
        """Greedy and sampled texts, with options that look at the history and with masks, are those without drafts."""
        prompt = torch.cat([prompts()["input_ids"][:1]] * 2, dim=-1)  # a lookup finds drafts there
        common = {"max_new_tokens": STEPS, "pad_token_id": 0}
        saved = verified = 0
        for options in ({"do_sample": False}, {"do_sample": True, "temperature": 0.9, "top_k": 20},
                        {"do_sample": True, "repetition_penalty": 1.2, "top_k": 0, "min_new_tokens": STEPS - 2}):
            for name, model, sampler in self.each():
                if model.dtype != torch.float32:  # logits of several rows at once are others in bfloat16
                    continue
                with self.subTest(name, **options):
                    steps = []
                    method = SortitionSampler(sampler, seed=4)
                    plain = model.generate(prompt, custom_generate=method, **common, **options)
                    proposing = drafter if "assistant_model" not in drafter else {"assistant_model": model}
                    method = SortitionSampler(sampler, seed=4, on_step=steps.append)
                    drawn = model.generate(prompt, custom_generate=method, **common, **options, **proposing)
                    self.assertEqual(drawn.tolist(), plain.tolist())
                    saved = max(saved, plain.shape[1] - prompt.shape[1] - len(steps))
                    verified += sum(isinstance(step[0], sortition.Verify) for step in steps)
        self.assertGreater(verified, 0)
        self.assertGreaterEqual(saved, least_saved)

    def test_assistant_keeps_texts(self):
        self.assert_drafts_keep_texts(assistant_model=True, least_saved=STEPS // 3)

    def test_prompt_lookup_keeps_texts(self):
        self.assert_drafts_keep_texts(prompt_lookup_num_tokens=3, least_saved=0)

    def test_drafts_that_cannot_be_verified_are_refused(self):
        model = MODELS["llama torch.float32"]
        method = SortitionSampler(self.client)
        with self.assertRaisesRegex(ValueError, "assistant_model.*one text at a time"):
            generate(model, method, assistant_model=model)
        with self.assertRaisesRegex(ValueError, "assistant_ensemble_weight"):
            model.generate(prompts()["input_ids"][:1], custom_generate=method, prompt_lookup_num_tokens=3,
                           assistant_ensemble_weight=0.5, max_new_tokens=3, pad_token_id=0)

    def test_stop_strings_need_a_tokenizer(self):
        with self.assertRaisesRegex(ValueError, "tokenizer is missing"):
            SortitionSampler(self.client).generate(MODELS["llama torch.float32"], **prompts(), stop_strings=["w1 "])

    def test_tensors_of_torch(self):
        sampler = self.samplers["in process"]

        def draw(logits):
            return sampler.draw(sampler.open(vocabulary_size=VOCABULARY, seed=1, raw_logprobs={}), logits)

        logits = torch.randn(2, 3, VOCABULARY, generator=torch.Generator().manual_seed(1))
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            rounded = logits.to(dtype)
            self.assertEqual(draw(rounded[1, -1]), draw(rounded[1, -1].float().numpy()))
            self.assertEqual(draw(rounded[1:, -1]), draw(rounded[1, -1]))
        words = logits[0, 0].bfloat16().view(torch.uint16).numpy()
        self.assertEqual(draw(words.view(ml_dtypes.bfloat16)), draw(logits[0, 0].bfloat16()))
        for bad, kind, text in ((logits[0, 0].double(), TypeError, "float64"),
                                (logits[..., 0], ValueError, "sequences"),
                                (torch.empty(VOCABULARY, device="meta"), TypeError, "memory")):
            with self.assertRaisesRegex(kind, text):
                draw(bad)

    def test_a_plan_runs_no_processor(self):
        chain = [transformers.RepetitionPenaltyLogitsProcessor(1.5), transformers.TemperatureLogitsWarper(0.5)]
        self.assertEqual(Plan(chain, True).parameters, {"repetition_penalty": 1.5, "temperature": 0.5})
        self.assertEqual(Plan([], False).parameters, {"temperature": 0.0})


if __name__ == "__main__":
    unittest.main()
