"""Find a Chromium for the browser tests, or get one: Playwright's own download, else Debian's package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_DOWNLOAD_TIMEOUT_S = 300


def find_chromium() -> str | None:
    """Return the path of a Chromium: the one PODIUM_CHROMIUM names, the system's, or Playwright's own."""
    named = os.environ.get("PODIUM_CHROMIUM")
    if named:
        return named
    for name in _NAMES:
        path = shutil.which(name)
        if path:
            return path
    return _playwrights_own()


def _playwrights_own() -> str | None:
    from playwright.sync_api import sync_playwright  # only needed where the system has no browser

    with sync_playwright() as playwright:
        path = Path(playwright.chromium.executable_path)
    return str(path) if path.exists() else None


def get_chromium() -> str:
    """Return the path of a Chromium, installing one if there is none.

    Raises:
        SystemExit: None could be had; the message says what was tried.
    """
    found = find_chromium()
    if found:
        return found
    tried = [
        _run([sys.executable, "-m", "playwright", "install", "chromium"]),
    ]
    if os.geteuid() == 0 and shutil.which("apt-get") and find_chromium() is None:
        tried.append(_run(["apt-get", "update", "-qq"]))
        tried.append(_run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"]))
    found = find_chromium()
    if found:
        return found
    raise SystemExit("no Chromium for the browser tests could be had:\n" + "\n".join(tried))


def _run(command: list[str]) -> str:
    print("getting a Chromium:", " ".join(command), flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S, env=environment, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{' '.join(command)}: {error}"
    said = (done.stderr or done.stdout).strip().splitlines()
    return f"{' '.join(command)}: exit {done.returncode}" + (f", {said[-1]}" if said else "")


if __name__ == "__main__":
    print("Chromium:", get_chromium())
