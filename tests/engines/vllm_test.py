"""The vLLM plugin: its own logic, and vLLM's interfaces for runner generation 1 where vLLM is installed."""

import importlib.util
import os
import pathlib
import types
import unittest
from unittest import mock

import numpy
import torch
import sortition.local
from sortition import logits as way
from sortition import vllm as plugin
from sortition import vllm_engine as engine
from sortition import vllm_common as common
from sortition import vllm_options
from sortition import vllm_runner_2 as runner_2
from sortition.v1.parameters_pb2 import SamplingParameters

VOCABULARY = 200
HAS_VLLM = importlib.util.find_spec("vllm") is not None


def fake_params(**options):
    """The fields of vLLM's SamplingParams that the plugin reads."""
    defaults = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0,
                "frequency_penalty": 0.0, "presence_penalty": 0.0, "seed": 1, "logprobs": None, "min_tokens": 0,
                "logit_bias": None, "allowed_token_ids": None, "all_stop_token_ids": set(),
                "bad_words_token_ids": None, "logprob_token_ids": None}
    return types.SimpleNamespace(**{**defaults, **options})


def fake_update(removed=(), added=(), moved=()):
    return types.SimpleNamespace(removed=removed, added=added, moved=moved)


def logits(*seeds):
    return torch.stack([torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3 for seed in seeds])


class Logic(unittest.TestCase):
    def setUp(self):
        self.sampler = sortition.local.Sampler()
        self.drawer = common.Drawer(self.sampler)
        self.rows = common.Rows()

    def draw(self, batch):
        return self.drawer.draw([self.rows.requests[row] for row in range(len(batch))], batch)

    def expected(self, prompt, seeds, **options):
        sequence = self.sampler.open(vocabulary_size=VOCABULARY, prompt=prompt, seed=1, **options)
        return [self.sampler.draw(sequence, logits(seed)[0]).token for seed in seeds]

    def test_rows_follow_requests(self):
        outputs = [[], [], []]
        penalty = {"repetition_penalty": 1.5}
        added = [(index, fake_params(**penalty), [index, 7], outputs[index]) for index in range(3)]
        self.rows.update(fake_update(added=added))
        order = [0, 1, 2]
        for step in range(6):
            if step == 2:
                self.rows.update(fake_update(moved=[(0, 2, "SWAP")]))
                order = [2, 1, 0]
            if step == 4:
                self.rows.update(fake_update(removed=[0], moved=[(2, 0, "UNIDIRECTIONAL")]))
                order = [0, 1]
            draws = self.draw(logits(*(100 * request + step for request in order)))
            for request, draw in zip(order, draws):
                outputs[request].append(draw.token)
        for request, steps in ((0, 6), (1, 6), (2, 4)):
            self.assertEqual(outputs[request],
                             self.expected([request, 7], [100 * request + step for step in range(steps)], **penalty))

    def test_history_is_vllms(self):
        output = []
        self.rows.update(fake_update(added=[(0, fake_params(frequency_penalty=1.5), [3], output)]))
        for step in range(3):
            output.append(self.draw(logits(step))[0].token)
        output[-1] = 50  # another token was accepted
        output.append(51)  # and a further one
        drawn = self.draw(logits(9))[0].token
        sequence = self.sampler.open(vocabulary_size=VOCABULARY, prompt=[3], seed=1, frequency_penalty=1.5)
        sequence.append(output)
        self.assertEqual(drawn, self.sampler.draw(sequence, logits(9)[0]).token)

    def test_steps_of_a_long_text_read_its_end_alone(self):
        class Watched:
            """A sequence that counts readings of its whole text."""

            def __init__(self, sequence):
                self.inner, self.readings = sequence, 0

            def __getattr__(self, name):
                self.readings += name == "tokens"
                return getattr(self.inner, name)

        output = []
        self.rows.update(fake_update(added=[(0, fake_params(repetition_penalty=1.3), [3], output)]))
        output.append(self.draw(logits(0))[0].token)
        request = self.rows.requests[0]
        request.sequence = watched = Watched(request.sequence)
        for token in (None, 50):
            request.follow()
            self.assertEqual(watched.readings, 0)
            output.append(self.sampler.draw(watched.inner, logits(1)[0]).token)
            request.last_drawn = output[-1]
            output[-1] = output[-1] if token is None else token
        request.follow()
        self.assertEqual((watched.readings, watched.inner.tokens), (1, [3, *output]))

    def test_parameters(self):
        self.assertEqual(common.parameters_of(fake_params(temperature=0.0, top_k=5), "raw")["temperature"], 0.0)
        self.assertNotIn("top_k", common.parameters_of(fake_params(temperature=0.0, top_k=5), "raw"))
        result = common.parameters_of(fake_params(top_k=-1, logit_bias={3: 1.5}, allowed_token_ids=[9, 2, 9],
                                                  bad_words_token_ids=[[4], [5, 6]]), "raw")
        self.assertEqual((result["top_k"], result["logit_bias"], result["allowed_token_ids"],
                          result["banned_token_ids"], result["bad_words"]),
                         (0, [{"token": 3, "bias": 1.5}], [2, 9], [4], [{"tokens": [5, 6]}]))
        with self.assertRaisesRegex(sortition.Error, r"logprobs \(0..1000\)"):
            common.parameters_of(fake_params(logprobs=-1), "processed")
        with self.assertRaisesRegex(ValueError, "raw_logits"):
            common.Drawer(self.sampler, "raw_logits")

    def test_admission_names_field_and_range(self):
        for options, text in (({"repetition_penalty": 1000.0}, r"repetition_penalty \(0.01..100\)"),
                              ({"logit_bias": {3: 1e30}}, r"logit_bias\[0\].bias \(\|bias\| < 65504\)"),
                              ({"seed": 2**64}, r"seed \(-2\^63..2\^64-1\)"),
                              ({"logprobs": 1001}, r"logprobs \(-1..1000\)"),
                              ({"temperature": 1e-3}, r"temperature \(0 or 0.01..100\)"),
                              ({"extra_args": {"banned_phrases": [[1, 2]]}}, r"extra_args.banned_phrases"),
                              ({"extra_args": {"top_p": 0.5}}, r"extra_args.top_p: vLLM has top_p"),
                              ({"extra_args": {"typicalp": 0.5}}, r"extra_args.typicalp: there is no such option"),
                              ({"extra_args": {"typical_p": "much"}}, r"extra_args.typical_p: 'much'"),
                              ({"extra_args": {"typical_p": 2}}, r"typical_p \(\(0, 1\]\)"),
                              ({"extra_args": {"mirostat.version": 2.5}}, r"extra_args.mirostat.version: 2.5"),
                              ({"extra_args": {"mirostat.omega": 1}}, r"extra_args.mirostat.omega"),
                              ({"extra_args": {"mirostat": 2}}, r"extra_args.mirostat: 2"),
                              ({"extra_args": {"dry.base": 1000}}, r"dry.base \(1 or 1.01..100\)"),
                              ({"extra_args": {"chain.preset": "PRESET_HF", "chain.explicit.samplers": ["xtc"]}},
                               r"extra_args.chain \(preset or explicit\)"),
                              ({"extra_args": {"typical_p": 0.5}, "temperature": 0.0}, r"typical_p")):
            with self.assertRaisesRegex(sortition.Error, text):
                common.check(fake_params(**options))
        for options in ({}, {"seed": -7}, {"seed": None}, {"logprobs": -1}, {"logprob_token_ids": [9, 3, 9]},
                        {"extra_args": {"kv_transfer_params": {"a": {}}, "diffusion_max_steps": 1}}):
            common.check(fake_params(**options))

    def test_every_further_option_is_taken_by_its_name(self):
        whole = {"typical_p": 0.9, "top_n_sigma": 1.5, "epsilon_cutoff": 0.01, "eta_cutoff": 0.01, "top_a": 0.1,
                 "top_h": 0.9, "p_less": 1, "min_keep": 2, "min_k.tau": 2, "xtc.probability": 0.5, "xtc.threshold": 0.2,
                 "dynamic_temperature.range": 0.5, "quadratic_smoothing.factor": 0.2, "dry.multiplier": 0.8,
                 "dry.sequence_breakers": [7, 9], "no_repeat_ngram_size": 3, "penalty_scope.window": 20,
                 "banned_token_ids": [5], "nan_policy": "NAN_POLICY_MASK", "chain.preset": "PRESET_LLAMA_CPP",
                 "watermark.key": 7, "mirostat.version": 2, "mirostat.tau": 4, "adaptive_p.target": 0.4}
        fields = {name.split(".")[0] for name in whole}
        self.assertEqual(fields | set(vllm_options.REFUSED), set(SamplingParameters.DESCRIPTOR.fields_by_name))
        self.assertFalse(fields & set(vllm_options.REFUSED))
        nested = vllm_options.options_of(whole)
        self.assertEqual(vllm_options.options_of({**nested, "dry": {"multiplier": 0.8, "sequence_breakers": [[7], 9]}}),
                         nested)
        message = SamplingParameters(**nested)
        self.assertEqual((message.mirostat.tau, message.dry.sequence_breakers[1].tokens[:]), (4, [9]))
        self.assertEqual(vllm_options.options_of({"min_k": {}}), {"min_k": {}})
        self.assertEqual(common.parameters_of(fake_params(bad_words_token_ids=[[4]], extra_args={
            "banned_token_ids": [5, 4]}), "raw")["banned_token_ids"], [4, 5])

    def test_further_options_draw_the_laws_tokens(self):
        for given, options in (({"typical_p": 0.3}, {"typical_p": 0.3}),
                               ({"mirostat.version": 2, "mirostat.tau": 1.0}, {"mirostat": {"version": 2, "tau": 1.0}}),
                               ({"no_repeat_ngram_size": 1}, {"no_repeat_ngram_size": 1})):
            output, seeds = [], [0, 1] * 4
            self.rows.update(fake_update(added=[(0, fake_params(extra_args=given), [3, 4, 3], output)]))
            output.extend(self.draw(logits(seed))[0].token for seed in seeds)
            self.assertEqual(output, self.expected([3, 4, 3], seeds, **options), given)
            self.assertNotEqual(output, self.expected([3, 4, 3], seeds), given)

    def test_both_targets_and_fallback(self):
        for setting, targets, fallback in (("a:1, unix:/b", ["a:1", "unix:/b"], "none"),
                                           ("a:1,in_process", ["a:1"], "in_process")):
            with mock.patch.dict(os.environ, {common.SETTING: setting}), mock.patch.object(way, "Client") as client:
                common.make_sampler()
                self.assertEqual(tuple(client.call_args), ((targets,), {"fallback": fallback, "rows": "auto"}))
        with mock.patch.dict(os.environ, {common.SETTING: "in_process"}):
            self.assertIsInstance(common.make_sampler(), sortition.local.Sampler)

    def test_drafts_keep_the_text(self):
        options = {"frequency_penalty": 0.7, "min_tokens": 3, "all_stop_token_ids": {int(logits(2)[0].argmax())}}
        texts = []
        for drafts in ([], [7, 8, 9]):
            output = []
            self.rows.update(fake_update(added=[(0, fake_params(**options), [1, 2], output)]))
            while len(output) < 5:
                rows = logits(*range(len(output), len(output) + 1 + len(drafts)))
                (drawn,) = self.drawer.draw([self.rows.requests[0]], rows,
                                           drafts=[common.Proposal(drafts)] if drafts else None)
                output += drawn.tokens if drafts else [drawn.token]
            texts.append(output[:5])
        self.assertEqual(*texts)

    def test_sampled_drafts_are_verified_with_their_probabilities(self):
        options = {"temperature": 1.3, "presence_penalty": 0.5}
        rows, proposed = logits(*range(4)), torch.softmax(logits(*range(10, 13)), -1)
        drafts, answers = [int(row.multinomial(1, generator=torch.Generator().manual_seed(3))) for row in proposed], []
        for method, mode in (("standard", "rejection"), ("block", "block")):
            self.assertEqual(common.mode_of(types.SimpleNamespace(rejection_sample_method=method)), mode)
            self.rows.update(fake_update(added=[(0, fake_params(**options), [1, 2], [])]))
            (found,) = self.drawer.draw([self.rows.requests[0]], rows,
                                        drafts=[common.Proposal(drafts, mode, proposed.double())])
            sequence = self.sampler.open(vocabulary_size=VOCABULARY, prompt=[1, 2], seed=1, **options)
            expected = self.sampler.verify(sequence, rows, sortition.Drafts(drafts, mode, probabilities=proposed))
            self.assertEqual(found.tokens, expected.tokens)
            answers.append(found.tokens)
        (coupled,) = self.drawer.draw([self.rows.requests[0]], rows, drafts=[common.Proposal(drafts)])
        self.assertNotEqual(answers, [coupled.tokens] * 2)
        self.assertIsNone(common.Proposal([], "rejection", proposed).task())

    def test_a_spent_thinking_budget_forces_its_end(self):
        reasoning = types.SimpleNamespace(reasoning_start_token_ids=[1, 2], reasoning_end_token_ids=[7, 8, 9],
                                          natural_reasoning_end_token_ids=[8, 9])
        rows = common.Rows(config=types.SimpleNamespace(reasoning_config=reasoning))
        budgets = (2, None, 0, 1 << 40)
        texts = [[] for _ in budgets]
        rows.update(fake_update(added=[(row, fake_params(thinking_token_budget=budget), [5, 1, 2], texts[row])
                                       for row, budget in enumerate(budgets)]))
        requests = [rows.requests[row] for row in range(len(budgets))]
        for step in range(6):
            for text, drawn in zip(texts, self.drawer.draw(requests, logits(*[step] * len(budgets)))):
                text.append(drawn.token)
        free = self.expected([5, 1, 2], range(6))
        self.assertFalse({8, 9} & set(free))
        self.assertEqual(texts[0], [*free[:2], 7, 8, 9, free[5]])
        self.assertEqual(texts[2], [7, 8, 9, *free[3:]])
        self.assertEqual([texts[1], texts[3]], [free, free])

    def test_without_tags_there_is_no_budget(self):
        self.assertIsNone(common.thinking_of(None))
        self.assertIsNone(common.thinking_of(types.SimpleNamespace(reasoning_config=None)))
        only = types.SimpleNamespace(reasoning_start_token_ids=[1], reasoning_end_token_ids=[2])
        self.assertEqual(common.thinking_of(types.SimpleNamespace(reasoning_config=only)),
                         {"begin": [1], "end": [2], "then": [2]})

    def test_named_and_all_logprobs(self):
        params = [fake_params(logprob_token_ids=[9, 3, 150]), fake_params(logprobs=-1)]
        self.rows.update(fake_update(added=[(row, params[row], [1], []) for row in range(2)]))
        batch = logits(5, 6)
        ids, values, _ = self.drawer.logprobs([self.rows.requests[row] for row in range(2)], self.draw(batch),
                                              VOCABULARY, batch)
        whole = torch.log_softmax(batch, -1)
        self.assertEqual(ids[0, 1:4].tolist(), [9, 3, 150])
        torch.testing.assert_close(values[0, 1:4], whole[0, [9, 3, 150]], atol=1e-5, rtol=0)
        torch.testing.assert_close(values[1, 1:], whole[1].sort(descending=True).values, atol=1e-5, rtol=0)

    def test_min_tokens(self):
        best = int(logits(1)[0].argmax())
        output, params = [], fake_params(temperature=0.0, min_tokens=1, all_stop_token_ids={best})
        self.rows.update(fake_update(added=[(0, params, [1], output)]))
        output.append(self.draw(logits(1))[0].token)
        self.assertNotEqual(output[0], best)
        self.assertEqual(self.draw(logits(1))[0].token, best)

    def test_min_tokens_leave_a_token(self):
        """As vLLM does: stop tokens that alone are allowed, by a grammar too, stay allowed."""
        closed = torch.full((VOCABULARY,), -float("inf"))
        closed[[9, 10]] = torch.tensor([1.0, 2.0])  # the grammar's end
        open_still = torch.where(torch.arange(VOCABULARY) == 30, 0.0, closed)
        grammar = {"structured_outputs": object()}

        def begin(options):
            params = fake_params(temperature=0.0, min_tokens=5, all_stop_token_ids={9, 10}, **options)
            self.rows.update(fake_update(added=[(0, params, [1], [])]))

        for row, options, expected in (
                (logits(1)[0], {"allowed_token_ids": [9]}, 9), (logits(1)[0], {"allowed_token_ids": [9, 30]}, 30),
                (closed, grammar, 10), (open_still, grammar, 30),
                (open_still, {**grammar, "allowed_token_ids": [9, 40]}, 9)):
            begin(options)
            self.assertEqual(getattr(self.draw(row[None])[0], "token", None), expected, options)
        begin(grammar)
        rows = torch.stack([open_still, closed])
        (verified,) = self.drawer.draw([self.rows.requests[0]], rows, drafts=[common.Proposal([30])])
        self.assertEqual(verified.tokens, [30, 10])

    def test_stop_tokens_beyond_the_vocabulary(self):
        params = fake_params(temperature=0.0, min_tokens=1, all_stop_token_ids={-1, VOCABULARY})
        self.rows.update(fake_update(added=[(0, params, [1], [])]))
        self.assertEqual(self.draw(torch.eye(VOCABULARY)[-1:] * 9)[0].token, VOCABULARY - 1)

    def test_logprobs(self):
        self.rows.update(fake_update(added=[(0, fake_params(logprobs=3), [1], []), (1, fake_params(), [1], [])]))
        batch = logits(5, 6)
        draws = self.draw(batch)
        ids, values, ranks = self.drawer.logprobs([self.rows.requests[row] for row in range(2)], draws, 3, batch)
        whole = torch.log_softmax(batch, -1)
        self.assertEqual(ids[0, 1:].tolist(), whole[0].topk(3).indices.tolist())
        self.assertEqual(int(ids[0, 0]), draws[0].token)
        torch.testing.assert_close(values[0], whole[0, ids[0].long()], atol=1e-5, rtol=0)
        self.assertEqual(int(ranks[0]), 1 + int((whole[0] > whole[0, draws[0].token]).sum()))

    def test_step_uses_the_device_logits_moved_to(self):
        self.rows.update(fake_update(added=[(0, fake_params(), [1], [])]))
        elsewhere = logits(6)
        with mock.patch.object(self.drawer.logits, "move", return_value=elsewhere) as move:
            drawn = self.draw(logits(5))
        self.assertEqual(move.call_count, 1)
        self.assertEqual(drawn[0].token, self.expected([1], [6])[0])
        self.draw(logits(5))
        self.assertEqual((self.drawer.logits.path, self.drawer.logits.note), ("host", ""))

    def test_a_bad_row_fails_alone(self):
        self.rows.update(fake_update(added=[(row, fake_params(), [1], []) for row in range(2)]))
        bad = logits(1, 2)
        bad[0, 3] = float("nan")
        first, second = self.draw(bad)
        self.assertIn("LOGIT_NAN", str(first))
        self.assertEqual(second.token, self.expected([1], [2])[0])
        self.assertIs(self.draw(logits(1, 2))[0], first, "the request has ended")

    def test_what_cannot_be_opened_fails_alone(self):
        self.rows.update(fake_update(added=[(0, fake_params(top_p=7.0), [1], []), (1, fake_params(), [1], [])]))
        first, second = self.draw(logits(1, 2))
        self.assertEqual(first.field, "open.parameters.top_p")
        self.assertEqual(second.token, self.expected([1], [2])[0])

    def test_ranks_draw_alike(self):
        drawn = []
        for _ in range(2):
            numpy.random.seed(3)
            rows = common.Rows(alike=True)
            rows.update(fake_update(added=[(row, fake_params(seed=None), [1], []) for row in range(3)]))
            drawn.append([draw.token for draw in self.drawer.draw(list(rows.requests.values()), logits(1, 1, 1))])
        self.assertEqual(*drawn)
        self.assertGreater(len(set(drawn[0])), 1)

    def test_replaces_the_samplers_of_both_runners(self):
        runners = {name: types.ModuleType(name) for name in ("vllm.v1.worker.gpu_model_runner",
                                                             "vllm.v1.worker.gpu.model_runner")}
        first, second = runners.values()
        for runner in runners.values():
            runner.GPUModelRunner = type("Runner", (), {"sample_tokens": lambda self: None})
        first.build_logitsprocs = lambda *_: None
        second.Sampler = second.GPUWatermarkSampler = type("TheirSampler", (), {})
        ours = type("OurSampler", (), {"__module__": runner_2.__name__})
        scheduler = types.SimpleNamespace(Scheduler=type("Scheduler", (), {"update_from_output": lambda self: None}))
        beams = {f"vllm.entrypoints.generate.beam_search.{place}": types.SimpleNamespace(
            **{f"BeamSearch{place.capitalize()}Mixin": type("Mixin", (), {"beam_search": lambda self, prompt: prompt})})
            for place in ("offline", "online")}
        refusal = type("VLLMValidationError", (ValueError,), {"__init__": lambda self, text, parameter: None})
        beams["vllm.exceptions"] = types.SimpleNamespace(VLLMValidationError=refusal)
        beams["vllm.exceptions"].GenerationError = RuntimeError
        state = type("RequestState", (), {"_new_completion_output": lambda self, reason, why: types.SimpleNamespace(
            finish_reason=reason, stop_reason=why)})
        serving = type("GenerateBaseServing", (), {"_raise_if_error": lambda self, reason, name: None})
        beams["vllm.v1.engine.output_processor"] = types.SimpleNamespace(RequestState=state)
        beams["vllm.entrypoints.generate.base.serving"] = types.SimpleNamespace(GenerateBaseServing=serving)
        params = type("SamplingParams", (), {"_validate_spec_decode": lambda self, speculative_config: 1 / 0})
        inputs = type("InputProcessor", (), {"_validate_params": lambda self, params: None})
        beams["vllm.v1.engine.input_processor"] = types.SimpleNamespace(InputProcessor=inputs)
        beams["vllm.sampling_params"] = types.SimpleNamespace(SamplingParams=params)
        modules = {**runners, **beams, plugin.__name__: plugin, runner_2.__name__: runner_2,
                   "vllm": types.SimpleNamespace(__version__="0.33.0"), "vllm.v1.engine": None, "vllm.v1.request": None,
                   "vllm.v1.core.sched.scheduler": scheduler}
        with mock.patch.dict(os.environ, {common.SETTING: "in_process"}), \
                mock.patch.dict(vars(plugin), {"SortitionSampler": object, "SortitionRejectionSampler": list}), \
                mock.patch.object(runner_2, "sampler_class", return_value=ours), \
                mock.patch.object(runner_2, "rejection_sampler_class", return_value=dict), \
                mock.patch("importlib.import_module", side_effect=modules.__getitem__):
            plugin.register()
            with self.assertRaises(refusal):
                beams["vllm.entrypoints.generate.beam_search.online"].BeamSearchOnlineMixin().beam_search("a prompt")
            params()._validate_spec_decode(object())
            ended = [state()._new_completion_output(reason, why).finish_reason
                     for reason, why in (("error", "LOGIT_NAN: bad"), ("error", None), ("stop", "word"))]
            self.assertEqual(ended, ["error", "error", "stop"])
            serving()._raise_if_error(ended[1], "a")
            serving()._raise_if_error(ended[2], "a")
            with self.assertRaisesRegex(RuntimeError, "^LOGIT_NAN: bad$"):
                serving()._raise_if_error(ended[0], "a")
            wrapped = [first.GPUModelRunner.sample_tokens, scheduler.Scheduler.update_from_output]
            plugin.register()
        self.assertIs(first.Sampler, object)
        self.assertIs(first.RejectionSampler, list)
        self.assertIs(second.Sampler, ours)
        self.assertIs(second.RejectionSampler, dict)
        self.assertEqual(wrapped, [first.GPUModelRunner.sample_tokens, scheduler.Scheduler.update_from_output])
        with self.assertRaisesRegex(NotImplementedError, "watermark_config"):
            second.GPUWatermarkSampler()

    def test_failed_rows_go_with_the_output(self):
        class Runner:
            sampler = types.SimpleNamespace(failed={1: sortition.Error("bad", reason="LOGIT_NAN")})

            def sample_tokens(self, plain, inside):
                return types.SimpleNamespace(**{inside: plain}) if inside else plain

        handing_over = engine._handing_over(Runner.sample_tokens)
        for inside in ("", "_model_runner_output", "model_runner_output"):
            plain = types.SimpleNamespace(req_ids=["a", "b"])
            Runner.sampler.failed = {1: sortition.Error("bad", reason="LOGIT_NAN")}
            handing_over(Runner(), plain, inside)
            self.assertEqual(plain.sortition_failed, {"b": "LOGIT_NAN: bad"})
            self.assertEqual(Runner.sampler.failed, {})

    def test_does_nothing_unless_asked(self):
        with mock.patch.dict(os.environ):
            os.environ.pop(common.SETTING, None)
            with mock.patch("importlib.import_module", side_effect=AssertionError("vLLM was touched")):
                plugin.register()


@unittest.skipUnless(HAS_VLLM, "vLLM is not installed")
class Interfaces(unittest.TestCase):
    """vLLM's own sampler, metadata and updates, on the CPU."""

    def setUp(self):
        patch = mock.patch.dict(os.environ, {common.SETTING: "in_process"})
        patch.start()
        self.addCleanup(patch.stop)

    def metadata(self, tracker, params):
        from vllm.v1.sample.logits_processor import LogitsProcessors
        from vllm.v1.sample.metadata import SamplingMetadata

        count = len(params)
        ones = torch.ones(count)
        logprobs = [param.logprobs for param in params if param.logprobs is not None]
        greedy = all(param.temperature == 0 for param in params)
        return SamplingMetadata(
            temperature=None if greedy else torch.tensor([param.temperature for param in params]), all_greedy=greedy,
            all_random=not greedy, top_p=None, top_k=None, generators={},
            max_num_logprobs=max(logprobs) if logprobs else None, no_penalties=True, prompt_token_ids=None,
            frequency_penalties=0 * ones, presence_penalties=0 * ones, repetition_penalties=ones,
            output_token_ids=[[] for _ in params], allowed_token_ids_mask=None, bad_words_token_ids={},
            logitsprocs=LogitsProcessors([tracker] if tracker else []))

    def test_greedy_and_logprobs_are_vllms(self):
        from vllm import SamplingParams
        from vllm.v1.sample.logits_processor import BatchUpdate
        from vllm.v1.sample.sampler import Sampler

        params = [SamplingParams(temperature=0.0, logprobs=4) for _ in range(3)]
        tracker = plugin.RequestTracker(None, "cpu", False)
        tracker.update_state(BatchUpdate(batch_size=3, removed=[], moved=[],
                                         added=[(row, params[row], [1, 2], []) for row in range(3)]))
        batch = logits(1, 2, 3)
        theirs = Sampler()(batch.clone(), self.metadata(None, params))
        ours = plugin.SortitionSampler()(batch.clone(), self.metadata(tracker, params))
        self.assertEqual(ours.sampled_token_ids.tolist(), theirs.sampled_token_ids.tolist())
        self.assertEqual(ours.sampled_token_ids.dtype, theirs.sampled_token_ids.dtype)
        self.assertEqual(ours.logprobs_tensors.logprob_token_ids.tolist(),
                         theirs.logprobs_tensors.logprob_token_ids.tolist())
        torch.testing.assert_close(ours.logprobs_tensors.logprobs, theirs.logprobs_tensors.logprobs, atol=1e-5, rtol=0)
        self.assertEqual(ours.logprobs_tensors.selected_token_ranks.tolist(),
                         theirs.logprobs_tensors.selected_token_ranks.tolist())

    def test_an_untracked_batch_is_refused(self):
        """Never vLLM's own sampler for a real request: its processors are there, and no tracker is."""
        from vllm import SamplingParams
        from vllm.v1.sample.logits_processor import LogitsProcessors, MinTokensLogitsProcessor

        metadata = self.metadata(None, [SamplingParams(temperature=0.0)])
        metadata.logitsprocs = LogitsProcessors([object.__new__(MinTokensLogitsProcessor)])
        with self.assertRaisesRegex(RuntimeError, "was not told of"):
            plugin.SortitionSampler()(logits(1), metadata)

    def test_speculation_is_tracked_or_refused_at_start(self):
        from vllm.v1.sample.logits_processor import LogitsProcessors, MinTokensLogitsProcessor

        def built(**speculation):
            config = types.SimpleNamespace(speculative_config=types.SimpleNamespace(
                **{"num_speculative_tokens": 3, "rejection_sample_method": "standard", **speculation}))
            theirs = LogitsProcessors([object.__new__(MinTokensLogitsProcessor)])
            return plugin._with_tracker(lambda *_: theirs)(config, "cpu", False, False, ())

        self.assertEqual([type(processor).__name__ for processor in built().all],
                         ["RequestTracker", "MinTokensLogitsProcessor"])
        for speculation, name in (({"num_speculative_tokens": 65}, "num_speculative_tokens"),
                                  ({"rejection_sample_method": "synthetic"}, "rejection_sample_method"),
                                  ({"rejection_sample_method": "fly"}, "rejection_sample_method")):
            with self.assertRaisesRegex(NotImplementedError, name):
                built(**speculation)

    def test_a_dummy_run_is_vllms(self):
        from vllm import SamplingParams

        params = [SamplingParams(temperature=0.0)]
        ours = plugin.SortitionSampler()(logits(1), self.metadata(plugin.RequestTracker(None, "cpu", False), params))
        self.assertEqual(ours.sampled_token_ids.tolist(), [[int(logits(1)[0].argmax())]])

    def test_runner_takes_its_sampler_by_the_replaced_name(self):
        for module in ("vllm/v1/worker/gpu_model_runner.py", "vllm/v1/worker/gpu/model_runner.py"):
            root = pathlib.Path(importlib.util.find_spec("vllm").origin).parents[1]
            text = (root / module).read_text(encoding="utf-8")
            self.assertRegex(text, r"from vllm\.v1\.\S+ import Sampler\n")
            self.assertIn("self.sampler = Sampler(", text)


if __name__ == "__main__":
    unittest.main()
