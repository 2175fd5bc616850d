"""Tensor-parallel ranks: each has a client and a shard of every row, and gets the results of the whole rows."""

import asyncio
import tempfile
import threading
import unittest

import numpy
import sortition
import sortition.local

from rows import VOCABULARY, row, serve
from sortitiond_process import free_port

SAMPLER = sortition.local.Sampler()
OPTIONS = {"vocabulary_size": VOCABULARY, "live_vocabulary_size": VOCABULARY - 3, "prompt": [1, 2], "temperature": 0.9,
           "top_p": 0.9, "repetition_penalty": 1.1, "raw_logprobs": {"top": 3}}


def on_ranks(count, run):
    """Returns the results of `run(rank)` on a thread for each rank."""
    results = {}

    def keep(rank):
        results[rank] = run(rank)

    threads = [threading.Thread(target=keep, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results.get(rank) for rank in range(count)]


def connect(target, rank, count, **options):
    return sortition.Client(target, worker_session="ranks", shard=sortition.Shard.even(rank, count, VOCABULARY),
                            **{"retry": sortition.Retry(backoff_max=0.2), **options})


def shard_of(rank, count, logits):
    shard = sortition.Shard.even(rank, count, VOCABULARY)
    return logits[..., shard.first_token:shard.first_token + shard.tokens]


def bits(result):
    return str(result) if isinstance(result, sortition.Error) else result.to_bytes()


def mask(step):
    return numpy.arange(VOCABULARY) % 3 != step % 3


def logits_of(step):
    """Makes a matrix for two sequences, float32 or words of bfloat16."""
    logits = numpy.stack([row(2 * step), row(2 * step + 1)])
    return logits if step % 2 else ((logits.view(numpy.uint32) >> 16).astype(numpy.uint16), "bfloat16")


def drawn(client, part=lambda logits: logits, steps=range(6)):
    """Returns the draws of two sequences in some steps."""
    sequences = [client.open(f"text {seed}", seed=seed, **OPTIONS) for seed in range(2)]
    said = []
    for step in steps:
        logits, dtype = logits_of(step) if step % 2 == 0 else (logits_of(step), None)
        results = client.step(sequences, part(logits), dtype=dtype, allowed=[mask(step), None], draw_salts=[step, 0])
        said.append([bits(result) for result in results])
    return said, [sequence.position for sequence in sequences]


class Answers(unittest.TestCase):
    def test_those_of_whole_rows_by_every_transport(self):
        expected = drawn(SAMPLER)
        with tempfile.TemporaryDirectory() as folder:
            server = serve(f"--memory_listen=unix:{folder}/memory.sock",
                           listen=f"127.0.0.1:0,unix:{folder}/stream.sock")
            tcp, unix = server.serving["listen"].split(",")
            inline = sortition.Transport("grpc", shared_memory_bytes=0)
            for count, transport, target in ((2, inline, tcp), (3, inline, unix), (4, "grpc", tcp)):
                def run(rank):
                    with connect(target, rank, count, transport=transport) as client:
                        assert client.transport == "grpc"
                        assert client.row_memory == (transport == "grpc")
                        return drawn(client, lambda logits: shard_of(rank, count, logits))

                with self.subTest(transport, target=target):
                    self.assertEqual(on_ranks(count, run), [expected] * count)
            server.__exit__()

    def test_drafts_scores_and_cuts(self):
        logits = numpy.stack([row(seed) for seed in range(4)])

        def run(client, part):
            sequence = client.open("tasks", seed=3, **OPTIONS)
            said = [bits(client.score(sequence, part(logits), [5, 6, 7, 8])),
                    bits(client.verify(sequence, part(logits), sortition.Drafts([5, 6, 7]))),
                    bits(client.verify(sequence, part(logits), sortition.Drafts(
                        [9, 10, 11], mode="rejection",
                        probabilities=numpy.full((3, VOCABULARY), 1 / VOCABULARY, numpy.float32))))]
            sequence.truncate(3)
            said.append(bits(client.draw(sequence, part(row(9)))))
            return said, sequence.position, getattr(sequence, "turns", None)

        expected = run(SAMPLER, lambda logits: logits)[:2] + (2,)
        with serve() as server:
            def of_rank(rank):
                with connect(server.serving["listen"], rank, 3) as client:
                    # Rows of one sequence are adjacent.
                    return run(client, lambda logits: numpy.ascontiguousarray(shard_of(rank, 3, logits)))

            self.assertEqual(on_ranks(3, of_rank), [expected] * 3)

    def test_of_compact_shards(self):
        options = {name: value for name, value in OPTIONS.items() if name != "raw_logprobs"}
        options |= {"top_k": 20, "processed_logprobs": {"top": 3}}
        whole = SAMPLER.open(seed=5, **options)
        expected = [bits(SAMPLER.draw(whole, row(step))) for step in range(6)]
        with serve() as server:
            def of_rank(rank):
                with connect(server.serving["listen"], rank, 3, rows="compact(30)") as client:
                    sequence = client.open("compact", seed=5, **options)
                    return [bits(client.draw(sequence, shard_of(rank, 3, row(step)))) for step in range(6)]

            self.assertEqual(on_ranks(3, of_rank), [expected] * 3)
            self.assertIn('sortition_compact_rows_total{outcome="decided"} 6', server.metrics())

    def test_of_tasks(self):
        expected = [bits(SAMPLER.draw(SAMPLER.open(seed=seed, **OPTIONS), row(seed))) for seed in range(20)]

        async def of_rank(target, rank):
            shard = sortition.Shard.even(rank, 2, VOCABULARY)
            async with await sortition.AsyncClient.connect(target, worker_session="tasks", shard=shard) as client:
                async def run(seed):
                    sequence = await client.open(f"text {seed}", seed=seed, **OPTIONS)
                    return bits(await client.draw(sequence, shard_of(rank, 2, row(seed))))

                return await asyncio.gather(*(run(seed) for seed in range(20)))

        async def all_ranks(target):
            return await asyncio.gather(*(of_rank(target, rank) for rank in range(2)))

        with serve() as server:
            self.assertEqual(asyncio.run(all_ranks(server.serving["listen"])), [expected] * 2)


class Losses(unittest.TestCase):
    def test_killed_server_and_restarted_ranks_change_no_token(self):
        steps, count = 30, 3
        whole = SAMPLER.open(seed=4, **OPTIONS)
        expected = [SAMPLER.draw(whole, row(step)).token for step in range(steps)]
        listen = f"127.0.0.1:{free_port()}"
        servers = [serve(listen=listen)]

        def restart():
            servers[-1].kill()
            servers[-1].wait()
            servers.append(serve(listen=listen))

        def run(rank):
            tokens = []
            while len(tokens) < steps:
                with connect(listen, rank, count) as client:
                    sequence = client.open("text", seed=4, **OPTIONS)
                    sequence.append(tokens)
                    while True:
                        step = len(tokens)
                        if rank == 0 and step % 10 == 8:  # no rank restarts between a result and this
                            restart()
                        tokens.append(client.draw(sequence, shard_of(rank, count, row(step))).token)
                        if len(tokens) == steps or step % 10 == 3 * rank:
                            break
            return tokens

        self.assertEqual(on_ranks(count, run), [expected] * count)
        self.assertEqual(len(servers), 4)
        servers[-1].__exit__()

    def test_missing_rank_is_named_and_step_retried(self):
        expected = SAMPLER.draw(SAMPLER.open(seed=4, **OPTIONS), row(0)).token
        with serve("--shard_wait=100ms") as server:
            with connect(server.serving["listen"], 0, 2) as first, connect(server.serving["listen"], 1, 2) as second:
                sequences = [client.open("text", seed=4, **OPTIONS) for client in (first, second)]
                error, = first.step(sequences[:1], shard_of(0, 2, row(0)), timeout=0.5)
                self.assertEqual((error.reason, error.field), ("DEADLINE_PASSED", "step.logits.shard"))
                self.assertRegex(str(error), "of 2 shards these have not come: 1")
                drawn_by = on_ranks(2, lambda rank: (first, second)[rank].draw(
                    sequences[rank], shard_of(rank, 2, row(0))).token)
                self.assertEqual(drawn_by, [expected] * 2)


class Refusals(unittest.TestCase):
    def test_options_ranks_cannot_share_are_refused(self):
        shard = sortition.Shard.even(1, 2, VOCABULARY)
        for name, options in (("targets", {"targets": ["127.0.0.1:1", "127.0.0.1:2"]}),
                              ("in_process", {"fallback": "in_process"}), ("worker_session", {"worker_session": ""}),
                              ("shard.index", {"shard": sortition.Shard(2, 2, 0, 1, 2)}),
                              ("shard.count", {"shard": sortition.Shard(0, 1, 0, 2, 2)}),
                              ("shard.first_token", {"shard": sortition.Shard(1, 2, 9, 1, 9)}),
                              ("shard.tokens", {"shard": sortition.Shard(1, 2, 5, 5, 9)})):
            with self.subTest(name), self.assertRaises(sortition.Error) as raised:
                sortition.Client(**{"targets": "127.0.0.1:1", "worker_session": "ranks", "shard": shard, **options})
            self.assertEqual(raised.exception.code, "INVALID_ARGUMENT")
            self.assertIn(f"ClientOptions::{name} ", str(raised.exception))

    def test_misfit_steps_are_refused(self):
        with serve() as server, connect(server.serving["listen"], 1, 2) as client:
            with self.assertRaisesRegex(ValueError, "request_id: .* the same on every rank"):
                client.open(vocabulary_size=VOCABULARY)
            with self.assertRaisesRegex(sortition.Error, "shard.vocabulary_size, 1000"):
                client.open("narrow", vocabulary_size=VOCABULARY // 2)
            sequence = client.open("text", vocabulary_size=VOCABULARY)
            with self.assertRaisesRegex(ValueError, "logits: rows of 1000 elements; shard.tokens is 500"):
                client.draw(sequence, row(0))
            with self.assertRaisesRegex(ValueError, "allowed"):
                client.draw(sequence, shard_of(1, 2, row(0)), allowed=numpy.ones(VOCABULARY // 2, bool))

    def test_turns_are_of_ranks(self):
        with sortition.Client(fallback="in_process", in_process_threads=1) as client:
            with self.assertRaisesRegex(ValueError, "turns: with a shard only"):
                client.open(vocabulary_size=VOCABULARY, turns=1)


class Slices(unittest.TestCase):
    def test_even_ones_cover_the_vocabulary(self):
        for vocabulary, count in ((1000, 2), (1000, 3), (151936, 8), (257, 256 // 2)):
            ends = [0]
            for rank in range(count):
                shard = sortition.Shard.even(rank, count, vocabulary)
                self.assertEqual(shard.first_token, ends[-1])
                ends.append(shard.first_token + shard.tokens)
            self.assertEqual(ends[-1], vocabulary)


if __name__ == "__main__":
    unittest.main()
