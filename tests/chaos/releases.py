"""Builds earlier revisions and runs them with this tree: workers of each with servers of the other.

    releases.py REVISION...

A revision is a tag or a commit of this repository. For each of them three runs are made, in which workers check every
token: its workers on this tree's server, this tree's workers on its server, and a rolling upgrade, in which its
server drains while this tree's takes over. Prints one line a run. Exits with 1 if a token is wrong or lost.

Runs from the root of the source tree, whose programs are built in build/release. Revisions are built in build/releases.
"""

import os
import subprocess
import sys
import time

PROGRAMS = ("sortitiond", "scale_worker")
SECONDS = 5

root = os.getcwd()
sys.path.insert(0, os.path.join(root, "tests/server"))
os.environ["TEST_SORTITIOND"] = os.path.join(root, "build/release/bin/sortitiond")

from replicas import Replicas, Workers, await_true  # noqa: E402, the path is set above


def program(tree, name):
    return os.path.join(tree, "build/release/bin", name)


def build(tree, jobs):
    """Builds the programs of a source tree, without CUDA kernels: workers and servers meet on the CPU."""
    subprocess.run(["cmake", "--preset", "release", "-D", "SORTITION_CUDA=OFF"], cwd=tree, check=True,
                   stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", "--preset", "release", "--parallel", jobs, "--target", *PROGRAMS], cwd=tree,
                   check=True, stdout=subprocess.DEVNULL)


def check_out(revision):
    """Returns a source tree of the revision, which stays in build/releases."""
    commit = subprocess.run(["git", "rev-parse", "--verify", revision + "^{commit}"], check=True,
                            stdout=subprocess.PIPE, text=True).stdout.strip()
    tree = os.path.join(root, "build/releases", commit)
    if not os.path.isdir(tree):
        subprocess.run(["git", "clone", "--quiet", "--no-checkout", root, tree], check=True)
        subprocess.run(["git", "checkout", "--quiet", "--detach", commit], cwd=tree, check=True)
    return tree


def work(servers, workers, drain_first=False):
    """Runs workers of one tree on servers of others; returns the workers' findings."""
    with Replicas(len(servers)) as replicas:
        for number, tree in enumerate(servers):
            replicas.start(number, program=program(tree, "sortitiond"))
        os.environ["TEST_SCALE_WORKER"] = program(workers, "scale_worker")
        with Workers(replicas.addresses, "--workers=2", "--check") as running:
            await_true("2 streams", lambda: sum(replicas.all_streams()) == 2)
            time.sleep(SECONDS)
            if drain_first:
                replicas.stop(0)
                time.sleep(SECONDS)
            return running.stop()


def main(revisions):
    jobs = os.environ.get("JOBS", "2")
    wrong = 0
    for revision in revisions:
        tree = check_out(revision)
        build(tree, jobs)
        for name, found in (
            ("its workers, this server", lambda: work([root], tree)),
            ("these workers, its server", lambda: work([tree], root)),
            ("rolling upgrade under these workers", lambda: work([tree, root], root, drain_first=True)),
        ):
            result = found()
            good = result["tokens"] > 0 and result["failed"] == 0 and result["different"] == 0
            wrong += not good
            print(f"{revision}: {name}: {result['tokens']} tokens, {result['failed']} failed, "
                  f"{result['different']} different: {'good' if good else 'WRONG'}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
