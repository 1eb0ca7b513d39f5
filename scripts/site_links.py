"""MkDocs hook: links from the documentation to files of the repository beside it become their names.

A link to a file that does not exist stays, so that ``mkdocs build --strict`` refuses it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_OUTWARD = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Rewrite one page; called by MkDocs."""
    docs = Path(config["docs_dir"]).resolve()

    def named(found: re.Match[str]) -> str:
        target = (docs / page.file.src_uri).parent.joinpath(found[2]).resolve()
        if target.is_relative_to(docs) or not target.exists():
            return found[0]
        return f"{found[1]} (`{target.relative_to(docs.parent)}`)"

    return _OUTWARD.sub(named, markdown)
