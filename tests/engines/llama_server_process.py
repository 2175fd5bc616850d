"""llama-server as a process, for tests and benchmarks."""

import json
import os
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

from sortitiond_process import free_port


class LlamaServer:
    """llama-server with a model; a context manager. `setting` is SORTITION_LLAMA."""

    def __init__(self, model, setting, *arguments, slots, library=None):
        self._port = free_port()
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8")
        variables = {**os.environ, "SORTITION_LLAMA": setting,
                     "SORTITION_LLAMA_LIBRARY": library or os.environ["TEST_LLAMA_SERVER_LIBRARY"]}
        self._process = subprocess.Popen(
            [os.environ["TEST_LLAMA_SERVER"], "--model", model, "--host", "127.0.0.1", "--port", str(self._port),
             "--parallel", str(slots), "--ctx-size", str(slots * 128), "--no-kv-unified", "--threads", "1",
             "--no-warmup", *arguments], stdout=self._log, stderr=self._log, env=variables)

    def __enter__(self):
        end = time.monotonic() + 120
        while time.monotonic() < end and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/health", timeout=5):
                    return self
            except OSError:
                time.sleep(0.1)
        log = self.log()
        self.__exit__()
        raise AssertionError(log[-4000:])

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        self._log.close()

    def log(self):
        self._log.seek(0)
        return self._log.read()

    def open(self, **options):
        body = {"return_tokens": True, "cache_prompt": False, "ignore_eos": True, **options}
        return urllib.request.urlopen(urllib.request.Request(
            f"http://127.0.0.1:{self._port}/completion", json.dumps(body).encode(),
            {"Content-Type": "application/json"}), timeout=120)

    def answer(self, **options):
        """Returns (HTTP status, answer)."""
        try:
            with self.open(**options) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def tokens(self, **options):
        status, answer = self.answer(**options)
        if status != 200:
            raise AssertionError(answer)
        return answer["tokens"]
