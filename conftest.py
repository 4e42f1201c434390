"""Runs the examples in the documentation: Python blocks in Markdown pages, and doctests in docstrings.

On a page `serve(script)` is at hand, mostly in a comment that readers do not see: from there on, clients of the
Anthropic SDK talk to a local double that answers by the script.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack, chdir
from doctest import ELLIPSIS
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import anthropic
from hypothesis import settings
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser
from sybil.parsers.rest import DocTestParser

from convmodel.testing import MessagesServer

# A slow machine is no fault, and a failure must come again.
settings.register_profile("checks", derandomize=True, deadline=None, database=None)
settings.load_profile("checks")

NOWHERE = "http://127.0.0.1:9"  # no page reaches the real service


def set_up(namespace: dict[str, Any]) -> None:
    """Give a page an empty folder of its own, and `serve`."""
    page = namespace["_page"] = ExitStack()
    page.enter_context(chdir(page.enter_context(TemporaryDirectory())))
    page.enter_context(patch.dict("os.environ", ANTHROPIC_BASE_URL=NOWHERE, ANTHROPIC_API_KEY="any"))

    def serve(script: Iterable[Any], **options: Any) -> MessagesServer:
        server = page.enter_context(MessagesServer(script, **options))
        page.enter_context(patch.dict("os.environ", ANTHROPIC_BASE_URL=server.url))
        return server

    namespace["serve"] = serve


def tear_down(namespace: dict[str, Any]) -> None:
    """Close what the page has opened."""
    for value in namespace.values():
        if isinstance(value, anthropic.Anthropic):
            value.close()
    namespace["_page"].close()


pages = Sybil(
    [PythonCodeBlockParser(doctest_optionflags=ELLIPSIS)],
    patterns=["README.md", "docs/*.md", "docs/*/*.md"],
    setup=set_up,
    teardown=tear_down,
)
docstrings = Sybil([DocTestParser(ELLIPSIS)], patterns=["convmodel/*.py", "convmodel/*/*.py"])
pytest_collect_file = (pages + docstrings).pytest()
