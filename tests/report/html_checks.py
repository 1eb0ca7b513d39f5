"""A page taken apart, and what must hold of every one."""

import base64
import hashlib
import re
from collections.abc import Iterator
from html.parser import HTMLParser

VOID = {"meta"}
DOTS = "data:image/png;base64,"
REFERENCES = ("href", "clip-path")
ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "header", "main", "footer", "nav", "section", "div", "span"),
    *("h1", "h2", "h3", "p", "a", "b", "i", "ul", "ol", "li", "dl", "dt", "dd", "code", "figure", "figcaption"),
    *("details", "summary", "table", "caption", "thead", "tbody", "tr", "th", "td"),
    *("svg", "defs", "path", "rect", "g", "text", "tspan", "use", "clippath", "image"),
}
FORBIDDEN_ATTRIBUTES = re.compile(r"^(on.*|style|src|srcset|action|formaction|xlink:href|background|poster|data)$")


class Page(HTMLParser):
    """Elements in order, their texts, and whether tags match."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs)
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def named(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def said(self) -> str:
        """All that a reader sees, without the style sheet."""
        return " ".join(text for tag, text in self.texts if tag != "style")


def checked(text: str) -> Page:
    """The page, well formed and harmless: no element or attribute that runs, loads or links out of it."""
    text.encode("utf-8")
    page = Page(text)
    assert {name for name, _ in page.elements} <= ALLOWED
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in page.elements:
        assert not [name for name in attributes if FORBIDDEN_ATTRIBUTES.match(name)]
        for target in _targets(attributes):
            assert target in ids
    _policy(page)
    _described(page)
    return page


def _targets(attributes: dict[str, str]) -> Iterator[str]:
    for name in REFERENCES:
        value = attributes.get(name, "")
        if name == "href" and value and not value.startswith(DOTS):
            assert value.startswith("#")
            yield value[1:]
        elif name == "clip-path" and value:
            assert re.fullmatch(r"url\(#[a-z0-9-]+\)", value)
            yield value[5:-1]


def _policy(page: Page) -> None:
    (policy,) = [each["content"] for each in page.named("meta") if each.get("http-equiv") == "Content-Security-Policy"]
    (style,) = [text for tag, text in page.texts if tag == "style"]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["script-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["img-src"] == "data:"
    assert rules["style-src"] == f"'sha256-{digest}'"
    assert "url(" not in style and "@import" not in style


def _described(page: Page) -> None:
    """Every picture has a heading and a description."""
    charts = page.named("svg")
    assert charts and len(charts) == len(page.named("figcaption"))
    assert all(each["role"] == "img" and each["aria-label"] for each in charts)
