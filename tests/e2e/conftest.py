"""A browser for the pages, started once per module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.e2e.chromium import FLAGS, find_chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real Chromium without a window."""
    path = find_chromium()
    if path is None:
        pytest.fail("there is no Chromium: run python tests/e2e/chromium.py to get one, or set PODIUM_CHROMIUM")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield chromium
        chromium.close()
