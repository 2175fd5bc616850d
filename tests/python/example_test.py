"""Programs of the documentation run as they stand: the example workers, the README's snippet."""

import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

from google.protobuf import json_format
from sortition.v1.sampling_pb2 import SampleRequest, StreamRequest

from rows import serve

SOURCE = pathlib.Path(os.environ["TEST_SOURCE_DIR"])


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 0, command
    return done.stdout.split()


class ExampleTest(unittest.TestCase):
    def test_workers_draw_the_same_tokens(self):
        python = (sys.executable, str(SOURCE / "client/examples/example_worker.py"))
        alone = run(*python)
        self.assertEqual(len(alone), 20)
        with serve() as server:
            self.assertEqual(run(*python, server.serving["listen"]), alone)
        self.assertEqual(run(os.environ["TEST_EXAMPLE_WORKER"]), alone)

    def test_snippets_of_the_documentation(self):
        for page in ("README.md", "docs/python.md", "docs/rl.md", "docs/seed.md"):
            snippets = re.findall(r"```python\n(.*?)```", (SOURCE / page).read_text(encoding="utf-8"), re.DOTALL)
            self.assertTrue(snippets, page)
            for number, snippet in enumerate(snippets):
                with self.subTest(f"{page} {number}"):
                    subprocess.run((sys.executable, "-"), input=snippet, text=True, check=True, timeout=60,
                                   stdout=subprocess.DEVNULL)

    def test_messages_for_generic_tools_equal_the_contract(self):
        pages = "".join((SOURCE / page).read_text(encoding="utf-8") for page in ("README.md", "docs/without-client.md"))
        call = r"grpcurl -plaintext -d '(.*?)'[\s\\]+\S+ sortition.v1.SamplingService/(\w+)"
        bodies = re.findall(call, pages, re.DOTALL)
        self.assertEqual([method for _, method in bodies], ["Sample", "Stream"])
        sample = json_format.ParseDict(json.loads(bodies[0][0]), SampleRequest())
        self.assertEqual(len(sample.logits), 4 * sample.vocabulary_size)
        kinds = []
        body = bodies[1][0].strip()
        while body:
            message, end = json.JSONDecoder().raw_decode(body)
            kinds.append(json_format.ParseDict(message, StreamRequest()).WhichOneof("kind"))
            body = body[end:].strip()
        self.assertEqual(kinds, ["hello", "open", "step"])


if __name__ == "__main__":
    unittest.main()
