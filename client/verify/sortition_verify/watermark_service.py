"""Answers whether a text bears a watermark: over HTTP, with a page for people, or for one file.

    python -m sortition_verify watermark --keys=FILE [--tokenizer=FILE] --serve=127.0.0.1:8090
    python -m sortition_verify watermark --keys=FILE [--tokenizer=FILE] TEXT

POST /detect takes {"tokens": [ids...]} or, with a tokenizer, {"text": "..."}. The answer is {"p_value", "tokens",
"keys": [{"id", "tokens", "score", "p_value"}...]}; `p_value` allows for the number of keys. Errors are {"error"} with
status 400, 404, 411 or 413. No answer has a key, and no text is kept.

A tokenizer is a file of Hugging Face's `tokenizers`, which must be installed for it. It must be the model's own. A text
cut out of a longer one can begin with other tokens than the model drew: these few are not found, and the rest is.
"""

import argparse
import http.server
import json
import sys
import threading
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from sortition_verify.watermark import Key, detect, joint_p_value, read_keys

MOST_BYTES = 4 << 20  # of a request
SECONDS = 20  # of silence, after which a connection is closed
MOST_AT_ONCE = 8

Tokenize = Callable[[str], List[int]]

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Watermark detector</title>
<style>body{font:16px sans-serif;max-width:46em;margin:2em auto;padding:0 1em}textarea{width:100%;height:14em}
td,th{padding:.2em 1em .2em 0;text-align:left}</style>
<h1>Watermark detector</h1>
<p>Paste WHAT. The answer is the probability that a text without a mark looks as marked as this one.</p>
<textarea id="given" aria-label="text"></textarea><p><button id="ask">Look for a mark</button></p>
<p><output id="verdict"></output></p><table id="keys"></table>
<script>
const at = (id) => document.getElementById(id);
const isIds = (text) => /^[\\s\\d,\\[\\]]+$/.test(text);
at("ask").onclick = async () => {
  const text = at("given").value;
  const body = isIds(text) ? { tokens: (text.match(/\\d+/g) || []).map(Number) } : { text };
  at("keys").replaceChildren();
  const answer = await (await fetch("detect", { method: "POST", body: JSON.stringify(body) })).json();
  if (answer.error) { at("verdict").textContent = answer.error; return; }
  at("verdict").textContent = `p-value ${answer.p_value.toPrecision(3)}, from ${answer.tokens} tokens` +
    (answer.tokens < 200 ? ": fewer than 200 say little" : "");
  for (const row of [["key", "tokens", "score", "p-value"], ...answer.keys.map((key) => Object.values(key))]) {
    const line = at("keys").insertRow();
    for (const value of row) line.insertCell().textContent = typeof value === "number" ? +value.toPrecision(4) : value;
  }
};
</script></html>
"""


class BadRequest(Exception):
    """Tells the caller of a mistake in the request."""


class Detector:
    """Answers requests. Thread-safe."""

    def __init__(self, keys: Sequence[Key], tokenize: Optional[Tokenize] = None) -> None:
        self._keys, self._tokenize = list(keys), tokenize

    @property
    def page(self) -> str:
        return PAGE.replace("WHAT", "a text, or its token ids" if self._tokenize else "the token ids of a text")

    def answer(self, request: Any) -> Dict[str, Any]:
        """The answer to a request. Raises BadRequest, which names the field."""
        if not isinstance(request, dict) or not set(request) <= {"tokens", "text"}:
            raise BadRequest("a request is an object with tokens or text")
        if ("tokens" in request) == ("text" in request):
            raise BadRequest("either tokens or text")
        tokens = request["tokens"] if "tokens" in request else self._tokens_of(request["text"])
        if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
            raise BadRequest("tokens: a list of integers")
        try:
            found = detect(tokens, self._keys)
        except (ValueError, OverflowError) as error:
            raise BadRequest(f"tokens: {error}") from error
        rows = [{"id": one.key_id, "tokens": one.tokens, "score": one.score, "p_value": one.p_value} for one in found]
        return {"p_value": joint_p_value(found), "tokens": max(one.tokens for one in found), "keys": rows}

    def _tokens_of(self, text: Any) -> List[int]:
        if self._tokenize is None:
            raise BadRequest("text: there is no tokenizer here (--tokenizer); send tokens")
        if not isinstance(text, str):
            raise BadRequest("text: a string")
        return self._tokenize(text)


def load_tokenizer(path: str) -> Tokenize:
    """Reads a tokenizer.json. Special tokens are not added: a text has none of them."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(path)
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection, for one request."""

    timeout = SECONDS
    server: "DetectorServer"

    def do_GET(self) -> None:
        if self.path != "/":
            return self.fail(404, "GET / or POST /detect")
        return self.reply(200, "text/html; charset=utf-8", self.server.detector.page.encode())

    def do_POST(self) -> None:
        if self.path != "/detect":
            return self.fail(404, "GET / or POST /detect")
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            return self.fail(411, "Content-Length is required")
        if int(length) > MOST_BYTES:
            return self.fail(413, f"at most {MOST_BYTES} bytes")
        try:
            answer = self.server.detector.answer(json.loads(self.rfile.read(int(length))))
        except (BadRequest, ValueError, RecursionError) as error:
            return self.fail(400, str(error))
        return self.reply(200, "application/json", json.dumps(answer).encode())

    def fail(self, status: int, what: str) -> None:
        self.reply(status, "application/json", json.dumps({"error": what}).encode())

    def reply(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Writes no log: a line could hold a part of a text."""


class DetectorServer(http.server.ThreadingHTTPServer):
    """Serves at most MOST_AT_ONCE connections at once; further ones wait."""

    daemon_threads = True

    def __init__(self, address: Tuple[str, int], detector: Detector) -> None:
        self.detector = detector
        self._free = threading.BoundedSemaphore(MOST_AT_ONCE)
        super().__init__(address, Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._free.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()


def main(words: List[str]) -> int:
    parser = argparse.ArgumentParser(prog="sortition_verify watermark", description="Looks for watermarks in a text.")
    parser.add_argument("text", nargs="?", help="a file, or - for standard input: token ids, or text with --tokenizer")
    parser.add_argument("--keys", required=True, help="a file of lines: ID KEY [CONTEXT_WIDTH]")
    parser.add_argument("--tokenizer", help="the model's tokenizer.json")
    parser.add_argument("--serve", metavar="HOST:PORT", help="answer over HTTP; the caller stands TLS before it")
    asked = parser.parse_args(words)
    if bool(asked.text) == bool(asked.serve):
        parser.error("either a file or --serve")
    try:
        tokenize = load_tokenizer(asked.tokenizer) if asked.tokenizer else None
    except ImportError:
        parser.error("--tokenizer needs the Python package `tokenizers`")
    try:
        detector = Detector(read_keys(asked.keys), tokenize)
    except (OSError, ValueError) as error:
        parser.error(f"--keys={asked.keys}: {error}")
    if asked.serve:
        host, _, port = asked.serve.rpartition(":")
        with DetectorServer((host.strip("[]"), int(port)), detector) as server:
            print(f"http://{host}:{server.server_address[1]}/", flush=True)
            server.serve_forever()
    with sys.stdin if asked.text == "-" else open(asked.text, encoding="utf-8") as file:
        text = file.read()
    try:
        given = {"text": text} if tokenize else {"tokens": [int(word) for word in text.replace(",", " ").split()]}
        print(json.dumps(detector.answer(given)))
    except (BadRequest, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0
