"""Chromium, driven over its debugging pipe: pages of one file, scripts in them, pictures of them."""

import base64
import json
import os
import shutil
import subprocess
import tempfile

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# Runs a script in a page and waits until one of its outputs says something.
READ_OUTPUTS = """
(async () => {
  const outputs = [...document.querySelectorAll("output")], said = () => outputs.some((one) => one.textContent);
  const spoken = new Promise((resolve) => new MutationObserver(() => said() && resolve()).observe(
    document.body, { subtree: true, childList: true, characterData: true }));
  %s
  if (!said()) await spoken;
  return Object.fromEntries(outputs.map((one) => [one.id, one.textContent]));
})()"""


class Browser:
    """A process of Chromium. Messages are JSON that ends with a zero byte. A context manager."""

    def __init__(self, width=1120, height=1010):
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # children may end later

        def place():  # Chromium reads descriptor 3 and writes descriptor 4
            high = [os.dup2(commands, 33), os.dup2(answers, 34)]
            for number, end in enumerate(high, 3):
                os.dup2(end, number)

        self._process = subprocess.Popen(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
             "--disable-component-update", "--disable-background-networking", "--no-first-run",
             "--remote-debugging-pipe", f"--window-size={width},{height}", f"--user-data-dir={self._profile.name}"],
            preexec_fn=place, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(commands)
        os.close(answers)
        self._number = 0
        self._read = b""
        self._events = []

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        try:
            self.call("Browser.close")
        except (OSError, RuntimeError):  # it does not answer
            self._process.kill()
        self._process.wait()
        os.close(self._commands)
        os.close(self._answers)
        self._profile.cleanup()

    def call(self, method, session=None, **parameters):
        """The result of a method of the debugging protocol. Raises RuntimeError for its error."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") != self._number:
                self._events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            else:
                return answer["result"]

    def open(self, url):
        """Opens a page and waits until it is loaded. Returns its session."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable", session)
        self.call("Runtime.enable", session)
        seen = len(self._events)  # pages that were opened before have their events among these
        self.call("Page.navigate", session, url=url)
        while not any(event.get("method") == "Page.loadEventFired" and event.get("sessionId") == session
                      for event in self._events[seen:]):
            self._events.append(self._next())
        return session

    def evaluate(self, session, expression):
        """The value of an expression, or of the promise that it is. Raises RuntimeError for an exception of the
        page."""
        done = self.call("Runtime.evaluate", session, expression=expression, awaitPromise=True, returnByValue=True)
        thrown = [done.get("exceptionDetails")] + [event.get("params") for event in self._events if event.get(
            "method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled")]
        for details in filter(None, thrown):
            raise RuntimeError(json.dumps(details)[:2000])
        return done["result"].get("value")

    def picture(self, session):
        """The page as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", session)["data"])

    def _next(self):
        parts = [self._read]
        while b"\0" not in parts[-1]:
            part = os.read(self._answers, 1 << 20)
            if not part:
                raise RuntimeError("Chromium has ended")
            parts.append(part)
        text, self._read = b"".join(parts).split(b"\0", 1)
        return json.loads(text)
