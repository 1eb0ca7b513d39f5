"""A figure as SVG inside a page: no style attribute, no link, colours of text and paper from the page's theme."""

from __future__ import annotations

import io
import re
from xml.etree import ElementTree

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rlsim.errors import readable
from rlsim.report.figures.style import BACKGROUND, GREY, INK, picture_style

NAMESPACE, LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
THEMED = {INK.lower(): "ink", GREY.lower(): "dim", BACKGROUND.lower(): "rule"}
"""Colours that follow the theme, by the variable of the style sheet."""
MOST_MARKS = 400
"""Points of a series that are drawn one by one; more of them become a picture of dots."""
CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
"""What XML does not allow, and what turns the direction of text."""
DROPPED = ("metadata", "style", "title")


def inline_svg(figure: Figure, key: str, description: str) -> Markup:
    """The figure as an SVG element whose ids begin with ``key``: the same text for the same content."""
    for line in figure.findobj(Line2D):
        if isinstance(line, Line2D) and line.get_linestyle() == "None" and len(line.get_xdata()) > MOST_MARKS:  # type: ignore[arg-type]
            line.set_rasterized(True)
    out = io.StringIO()
    with picture_style(), matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "rlsim"}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None}, dpi=110)
    root = ElementTree.fromstring(CONTROLS.sub("\ufffd", out.getvalue()))
    _clean(root, key, {each.get("id", ""): f"{key}-{i}" for i, each in enumerate(root.iter())})
    for name in ("width", "height", "version", "id"):
        root.attrib.pop(name, None)
    root.attrib |= {"class": "chart", "role": "img", "aria-label": readable(description)}
    ElementTree.register_namespace("", NAMESPACE.strip("{}"))
    text = ElementTree.tostring(root, encoding="unicode", short_empty_elements=True)
    return Markup(re.sub(r">\s+<", "><", text))


def _clean(element: ElementTree.Element, key: str, ids: dict[str, str]) -> None:
    """Attributes instead of styles, ids of the page's own, nothing but what is drawn."""
    for child in list(element):
        if child.tag.removeprefix(NAMESPACE) in DROPPED:
            element.remove(child)
        else:
            _clean(child, key, ids)
    _restyle(element, ids)
    if "d" in element.attrib:
        element.set("d", re.sub(r"(\.\d\d)\d+", r"\1", element.attrib["d"]).strip())
    link = element.attrib.pop(LINK, None)
    if link is not None:
        element.set("href", f"#{ids[link[1:]]}" if link.startswith("#") else link)
    if "clip-path" in element.attrib:
        element.set("clip-path", _referring(element.attrib["clip-path"], ids))
    found = element.attrib.pop("id", None)
    inside = element.tag.removeprefix(NAMESPACE) in ("path", "clipPath")
    if (
        found is not None
        and inside
        and not re.match(r"(patch|text|line2d|axes|figure|matplotlib|xtick|ytick|legend)", found)
    ):
        element.set("id", ids[found])


def _restyle(element: ElementTree.Element, ids: dict[str, str]) -> None:
    """Attributes and classes in the place of the style."""
    classes = []
    for rule in filter(None, element.attrib.pop("style", "").split(";")):
        name, _, value = (part.strip() for part in rule.partition(":"))
        themed = THEMED.get(value.lower())
        if themed:
            classes.append(f"{name[0]}-{themed}")
        elif name == "font":
            element.set("font-size", re.sub(r"^.*?([\d.]+)px.*$", r"\1", value))
            if "bold" in value or "700" in value:
                element.set("font-weight", "bold")
        elif name != "font-family":
            element.set(name, _referring(value, ids))
    coloured = "fill" in element.attrib or any(name.startswith("f-") for name in classes)
    if element.tag == f"{NAMESPACE}text" and not coloured:
        classes.append("f-ink")
    if element.tag == f"{NAMESPACE}path" and element.get("fill") == "#ffffff":
        classes.append("f-paper")
        del element.attrib["fill"]
    if element.get("stroke") == "#ffffff":
        classes.append("s-paper")
        del element.attrib["stroke"]
    if classes:
        element.set("class", " ".join(classes))


def _referring(value: str, ids: dict[str, str]) -> str:
    return re.sub(r"url\(#([^)]*)\)", lambda match: f"url(#{ids.get(match[1], '')})", value)
