"""The board in chromium, from a web server's subfolder and from a file: it fits, is whole, and nothing complains."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from publishing.board.builders import episodes, measured
from report.test_page import HOSTILE
from safevla_bench.publishing.board.site import render_site, write_folder

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
LONG = "a-policy-with-a-very-long-name/and_several-parts:" * 3
PAGES = ("index.html", "method.html")
LOOK = """<!doctype html><pre id="seen">nothing</pre><script>
const pages = %s, widths = [390, 1280], seen = [];
const show = (page, width) => new Promise(done => {
  const frame = document.createElement("iframe");
  frame.width = width; frame.height = 900; frame.src = "deep/down/" + page;
  frame.onload = async () => {
    const inside = frame.contentDocument;
    const links = [...new Set([...inside.querySelectorAll("a[href]")].map(a => a.href.split("#")[0]))];
    const dead = (await Promise.all(links.map(async url => (await fetch(url)).ok ? null : url))).filter(Boolean);
    done({page, width, scroll: inside.scrollingElement.scrollWidth, dead, ran: !!frame.contentWindow.ran,
          styled: frame.contentWindow.getComputedStyle(inside.body).display === "block"
                  && inside.styleSheets.length === 1});
  };
  document.body.append(frame);
});
(async () => {
  for (const page of pages) for (const width of widths) seen.push(await show(page, width));
  document.getElementById("seen").textContent = JSON.stringify(seen);
})();
</script>"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("web")
    results = measured(episodes(LONG, "1011"), episodes(HOSTILE, "1001"), episodes("b", "0000"), privileged=["b"])
    write_folder(render_site(results, title="A board"), root / "deep" / "down")
    (root / "look.html").write_text(LOOK % json.dumps(PAGES))
    return root


def chromium(tmp_path, *arguments: str) -> tuple[str, list[str]]:
    """The page after it has run, and what the console said."""
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--enable-logging=stderr", "--v=0",
             f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=60000", "--dump-dom"]  # fmt: skip
    result = subprocess.run(
        [str(CHROMIUM), *flags, *arguments], capture_output=True, text=True, timeout=120, check=True
    )
    return result.stdout, [line for line in result.stderr.splitlines() if "CONSOLE" in line]


def test_it_fits_and_its_links_lead_somewhere(folder, tmp_path):
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        dom, complaints = chromium(tmp_path, f"http://127.0.0.1:{server.server_port}/look.html")
        server.shutdown()
    seen = json.loads(html.unescape(re.search(r'<pre id="seen">(.*?)</pre>', dom, re.DOTALL)[1]))
    assert len(seen) == 2 * len(PAGES)
    for page in seen:
        assert page["scroll"] <= page["width"], page
        assert (page["dead"], page["ran"], page["styled"]) == ([], False, True), page
    assert complaints == []


def test_it_opens_from_a_file_without_complaint(folder, tmp_path):
    dom, complaints = chromium(tmp_path, (folder / "deep" / "down" / "index.html").as_uri())
    assert "</main>" in dom
    assert "onerror=alert(1)&gt;" in dom  # the hostile name is there, as text
    assert complaints == []
