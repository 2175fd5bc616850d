"""The verifier's page in headless Chromium, for tests and for its picture."""

import html
import pathlib
import re
import shutil
import subprocess
import tempfile

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def run(text, *options, timeout=200):
    """Opens a page of this text and returns Chromium's output; raises RuntimeError for a message on its console."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "page.html"
        file.write_text(text, encoding="utf-8")
        ran = subprocess.run(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--disable-component-update", "--disable-background-networking", "--no-first-run",
             f"--user-data-dir={folder}/profile", "--enable-logging=stderr", *options, f"file://{file}"],
            capture_output=True, text=True, timeout=timeout, check=True)
    said = re.findall(r"CONSOLE.*", ran.stderr)
    if said:
        raise RuntimeError("\n".join(said[:5]))
    return ran.stdout


def browse(text, script, timeout=200):
    """The texts of the page's <output> elements by id, after a script has run in it."""
    document = run(text.replace("</body>", f"<script>{script}</script></body>"), "--virtual-time-budget=100000",
                   "--dump-dom", timeout=timeout)
    return {name: html.unescape(said) for name, said in
            re.findall(r'<output id="(\w+)"[^>]*>([^<]*)</output>', document)}
