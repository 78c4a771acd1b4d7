"""A real browser for tests of pages: headless Chromium, which may load nothing but the file."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# Debian's package; another one may be named.
CHROMIUM = os.environ.get("OPSCOPE_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
_QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


def browser_is_missing() -> str | None:
    """Return why tests in a browser cannot run here."""
    if find_spec("playwright") is None:
        return "playwright is not installed"
    return None if CHROMIUM else "Chromium is not installed (Debian: apt-get install chromium)"


@dataclass
class Opened:
    """A page in the browser, and what it complained of or asked for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    refused: list[tuple[str, str | None]] = field(default_factory=list)

    def show(self, view: str) -> None:
        """Go to a view and wait until it is drawn."""
        self.page.click(f"#tab-{view}")
        self.page.wait_for_function(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def dismiss(self, dialog: Any) -> None:
        """Close a dialog, and note it as a complaint."""
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def evaluate(self, script: str, argument: object = None) -> Any:
        return self.page.evaluate(script, argument)

    def values(self, selector: str) -> list[float | None]:
        """Return the numbers behind some figures."""
        texts = self.page.eval_on_selector_all(selector, "all => all.map(one => one.dataset.value)")
        return [None if text in ("", None) else float(text) for text in texts]


@contextmanager
def chromium() -> Iterator[Any]:
    """Start the browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(_QUIET))
        yield browser
        browser.close()


@contextmanager
def opened(
    browser: Any, path: Path, *, width: int = 1400, scheme: str = "light", ready: int = 30_000
) -> Iterator[Opened]:
    """Open a file."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    found = Opened(context.new_page())
    found.page.on("console", lambda message: found.complaints.append(f"{message.type}: {message.text}"))
    found.page.on("pageerror", lambda error: found.complaints.append(f"error: {error}"))
    found.page.on("dialog", found.dismiss)
    found.page.on("request", lambda request: found.requests.append(request.url))
    found.page.on("requestfailed", lambda request: found.refused.append((request.url, request.failure)))
    found.page.set_default_timeout(10_000)
    found.page.goto(path.as_uri())
    found.page.wait_for_selector("#app[aria-busy=false]", timeout=ready)
    yield found
    context.close()
