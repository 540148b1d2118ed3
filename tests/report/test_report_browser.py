"""The page in a real browser (chromium, headless, every name unresolvable); skipped where there is none."""

import json
import re
import shutil
import subprocess

import pytest

from mpd_agl.report import build_page, read_run
from tests.report import runfolder as made

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-default-apps", "--disable-extensions"),
    *("--enable-logging=stderr", "--host-resolver-rules=MAP * ~NOTFOUND"),
)
EVIL = "<script>document.title='owned'</script><img src=http://example.com/x onerror=\"document.title='owned'\">"


def browse(page, folder):
    """The document after loading, the console's lines, the addresses asked for."""
    html = folder / "page.html"
    html.write_bytes(page)
    log = folder / "net.json"
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}", f"--log-net-log={log}", "--dump-dom"]
    done = subprocess.run([*command, html.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    events = [e.get("params", {}) for e in json.loads(log.read_text())["events"]]
    # the browser itself asks for updates (and gets nothing): those have no page as their initiator
    asked = [e["url"] for e in events if "url" in e and e.get("initiator", "not an origin") != "not an origin"]
    return done.stdout, console, [url for url in asked if not url.startswith(("file:", "data:"))]


def test_in_a_browser(tmp_path):
    run = read_run(made.write(tmp_path / "a", made.record(EVIL)))
    page = build_page([run])
    document, console, asked = browse(page, tmp_path)
    assert console == []
    assert asked == []
    assert "<title>owned" not in document
    assert not re.search(r"<(script|img)\b", document)
    assert EVIL.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") in document
    assert document.count('role="img"') == page.count(b'role="img"') == 19
    for section in re.findall(r'<section id="r1-[a-z]+" data-figures="\d+">.*?</section>', document, re.DOTALL):
        promised = int(re.search(r'data-figures="(\d+)"', section)[1])
        assert section.count("<figure>") == section.count("</svg>") == promised


def test_a_request_would_be_seen(tmp_path):
    _, console, asked = browse(b"<img src=http://example.com/x><script>console.error('seen')</script>", tmp_path)
    assert asked == ["http://example.com/x"]
    assert any("seen" in line for line in console)
