"""Compares real servers with a model of the contract: model.py [--seconds=N] [--seed=S] [--plant=NAME] [--world=FILE]

Worlds are random, from seeds. Each answer is compared. The first difference is made small and printed, and the exit
status is 1. It is 1, too, where two options have met fewer times than `--least`. As long as they have, the run lasts
longer, up to four times `--seconds`.
"""

import argparse
import ast
import contextlib
import multiprocessing
import os
import pathlib
import queue
import random
import sys
import tempfile
import time
import traceback

PLANTS = ("min_p", "budget", "scope")
POLICIES = 60


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plant", choices=PLANTS)
    parser.add_argument("--least", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--world", help="a file with a world, as printed after \"world: \": plays it alone")
    parser.add_argument("--table", action="store_true", help="print the table of pairs")
    return parser.parse_args()


def work(number, arguments, addresses, tenants, results):
    """One process: plays worlds and reports the pairs that it has met."""
    import grpc
    import pairs as table
    from calls import Caller
    from play import Difference
    from worlds import make_world

    plants, seconds = (arguments.plant,) if arguments.plant else (), arguments.seconds
    channels = [grpc.insecure_channel(address) for address in addresses]
    met, chosen, start = table.Pairs(), random.Random(arguments.seed * 2 + number), time.monotonic()
    seed, count = arguments.seed * 1000003 + number, dict(worlds=0, sequences=0, steps=0, required=0)
    refused, least = {}, -(-arguments.least // arguments.processes)
    while (took := time.monotonic() - start) < seconds or took < 4 * seconds and met.lacks(least):
        if arguments.world:
            world = ast.literal_eval(pathlib.Path(arguments.world).read_text(encoding="utf-8"))
        else:
            world = make_world(seed, tenants, met.least(chosen, 16))
        player = Caller(channels, world, f"world-{seed}", plants, met)
        try:
            player.run()
        except Difference as difference:
            results.put(("difference", seed, report(channels, world, difference, plants)))
            return
        except Exception:  # a lost connection, or a mistake of the model
            results.put(("difference", seed, f"{traceback.format_exc()}\nworld: {world}"))
            return
        finally:
            player.close()
        count["worlds"] += 1
        count["sequences"] += len(player.texts)
        count["steps"] += player.steps
        count["required"] += player.required
        for reason, times in player.refused.items():
            refused[reason] = refused.get(reason, 0) + times
        seed += arguments.processes
    results.put(("done", count, refused, met.met))


def report(channels, world, difference, plants):
    import shrink
    small = shrink.Shrinker(channels, world, difference, plants).run()
    log = []
    found = shrink.difference_of(channels, small, plants, log) or difference
    return "\n".join([*log, f"world: {small}", str(found)])


def main():
    arguments = parse()
    import pairs as table
    import policies
    from wire import Servers
    context = multiprocessing.get_context("spawn")
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tenants = {"free": None, **policies.make_policies(arguments.seed, folder, POLICIES)}
        rules = policies.file_of(tenants)
        servers = stack.enter_context(Servers(os.environ["TEST_SORTITIOND"], folder, rules, tenants,
                                              arguments.seconds * 5))
        results = context.Queue()
        addresses = [servers.address(number) for number in range(2)]
        workers = [context.Process(target=work, args=(number, arguments, addresses, tenants, results))
                   for number in range(arguments.processes)]
        for worker in workers:
            worker.start()
        met, total, refused = table.Pairs(), {}, {}
        try:
            for _ in workers:
                kind, *said = results.get(timeout=arguments.seconds * 4 + 600)
                if kind == "difference":
                    print(f"seed {said[0]}\n{said[1]}")
                    return 1
                count, reasons, matrix = said
                met.met += matrix
                for name, value in count.items():
                    total[name] = total.get(name, 0) + value
                for name, value in reasons.items():
                    refused[name] = refused.get(name, 0) + value
        except queue.Empty:
            print("a process has not ended in time")
            return 1
        finally:
            for worker in workers:
                worker.terminate()
                worker.join()
    took = time.monotonic() - start
    for (reason, field), times in sorted(refused.items()):
        print(f"{times:8} {reason} {field}")
    lines = list(met.table(arguments.least))
    if not arguments.table:
        lines = [*(str(pair) for pair in met.below(arguments.least)[:50]), lines[-1]]
    print("\n".join(lines))
    print(", ".join(f"{value} {name}" for name, value in total.items()), f"in {took:.0f} s")
    return 1 if met.below(arguments.least) else 0


if __name__ == "__main__":
    sys.exit(main())
