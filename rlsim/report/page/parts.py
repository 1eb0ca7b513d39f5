"""What a page consists of: parts with sections of texts, lists, tables and pictures; their words: pictures.yaml.

A picture is SVG inside the page: no style attribute, no link, colours of text and paper from the page's theme.
"""

import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rlsim.errors import readable
from rlsim.files.yaml import lists_beside
from rlsim.report import format as fmt
from rlsim.report.figures.bars import TIP, BarRow, bars_figure
from rlsim.report.figures.style import BACKGROUND, GREY, INK, picture_style
from rlsim.report.table import Table, cell
from rlsim.results import Interval

NAMESPACE, LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
THEMED = {INK.lower(): "ink", GREY.lower(): "dim", BACKGROUND.lower(): "rule"}
"""Colours that follow the theme, by the variable of the style sheet."""
MOST_MARKS = 400
"""Points of a series that are drawn one by one; more of them become a picture of dots."""
CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
"""What XML does not allow, and what turns the direction of text."""
DROPPED = ("metadata", "style", "title")
REFERENCE = re.compile(r"""(?:url\(|href=")#([^)"]+)""")
"""A reference to an id inside a picture."""


def inline_svg(figure: Figure, key: str, description: str) -> Markup:
    """The figure as an SVG element whose ids begin with ``key``: the same text for the same content."""
    for line in figure.findobj(Line2D):
        if isinstance(line, Line2D) and line.get_linestyle() == "None" and len(line.get_xdata()) > MOST_MARKS:  # type: ignore[arg-type]
            line.set_rasterized(True)
    out = io.StringIO()
    # Text stays text, to be searched and copied; a fixed salt gives the same ids, and so the same bytes, each time.
    with picture_style(), matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "rlsim"}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None}, dpi=110)
    # Names come from files of anybody; control characters would make the XML invalid.
    drawn = CONTROLS.sub("\ufffd", out.getvalue())
    root = ElementTree.fromstring(drawn)
    # Ids must be unique in the page, which holds several pictures.
    _clean(root, {name: f"{key}-{i}" for i, name in enumerate(dict.fromkeys(REFERENCE.findall(drawn)))})
    # Without a size of its own the picture takes the width of the page.
    for name in ("width", "height", "version", "id"):
        root.attrib.pop(name, None)
    root.attrib |= {"class": "chart", "role": "img", "aria-label": readable(description)}
    ElementTree.register_namespace("", NAMESPACE.strip("{}"))
    text = ElementTree.tostring(root, encoding="unicode", short_empty_elements=True)
    # White space between elements has no meaning, and a good part of the size.
    return Markup(re.sub(r">\s+<", "><", text))


def _clean(element: ElementTree.Element, ids: dict[str, str]) -> None:
    """Attributes instead of styles, ids of the page's own where something refers to them, nothing but what is drawn."""
    for child in list(element):
        if child.tag.removeprefix(NAMESPACE) in DROPPED:
            element.remove(child)
        else:
            _clean(child, ids)
    _restyle(element, ids)
    if "d" in element.attrib:
        # Two decimals are less than a pixel; matplotlib writes six.
        element.set("d", re.sub(r"(\.\d\d)\d+", r"\1", element.attrib["d"]).strip())
    link = element.attrib.pop(LINK, None)
    if link is not None:
        element.set("href", f"#{ids[link[1:]]}" if link.startswith("#") else link)
    if "clip-path" in element.attrib:
        element.set("clip-path", _referring(element.attrib["clip-path"], ids))
    found = element.attrib.pop("id", "")
    if found.startswith(TIP):
        tooltip = ElementTree.Element(f"{NAMESPACE}title")
        tooltip.text = readable(found.removeprefix(TIP))
        # SVG wants a title to be the first child.
        element.insert(0, tooltip)
    elif found in ids:
        element.set("id", ids[found])


def _restyle(element: ElementTree.Element, ids: dict[str, str]) -> None:
    """Attributes and classes in the place of the style."""
    classes = []
    for rule in filter(None, element.attrib.pop("style", "").split(";")):
        name, _, value = (part.strip() for part in rule.partition(":"))
        themed = THEMED.get(value.lower())
        if themed:
            # Classes f-* and s-* of the style sheet: fill and stroke by theme.
            classes.append(f"{name[0]}-{themed}")
        elif name == "font":
            element.set("font-size", re.sub(r"^.*?([\d.]+)px.*$", r"\1", value))
            if "bold" in value or "700" in value:
                element.set("font-weight", "bold")
        elif name != "font-family":
            element.set(name, _referring(value, ids))
    coloured = "fill" in element.attrib or any(name.startswith("f-") for name in classes)
    # Matplotlib leaves out black, the default of SVG, which a dark theme would hide.
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


WORDS = lists_beside(__file__, "pictures.yaml")
"""Titles of sections; title, note, unit and rule of pictures; caption, heads and sides of their numbers."""
MOST_ROWS = 24
"""Rows of a picture; the table below it has more."""


@dataclass(frozen=True)
class Text:
    """A paragraph; code: a command behind it."""

    words: str
    code: str = ""


@dataclass(frozen=True)
class Entries:
    """A numbered list; with a title it is a warning."""

    entries: Sequence[str]
    title: str = ""


@dataclass(frozen=True)
class Picture:
    """A figure with its heading, a note, and its numbers as a table."""

    key: str
    title: str
    note: str
    picture: Markup
    numbers: Table | None


Block = Text | Entries | Table | Picture
Sections = Mapping[str, Sequence[Block]]
"""What stands below the title of each section; those with nothing are left out."""
KeyFigure = tuple[str, str, str]
"""A number to read first: its name, the number, and what belongs to it (its interval)."""


@dataclass(frozen=True)
class Part:
    """Content of the page for one kind of results. kind: as people call it; about: what was asked, in a line each."""

    kind: str
    name: str
    headline: str
    figures: Sequence[KeyFigure]
    sections: Sections
    about: Sequence[str] = ()


def table(key: str, rows: Iterable[Sequence[str | Interval]], columns: Iterable[str] = ()) -> Table:
    """The table ``key`` with further ``columns``, of texts and of means with their intervals."""
    words = WORDS[key]
    cells = [
        [cell(value, fmt.decimals_for(abs(value.mean))) if isinstance(value, Interval) else value for value in row]
        for row in rows
    ]
    return Table(words["caption"], "", [*words["heads"], *columns], cells, words.get("align", "<>"))


def picture(
    key: str,
    drawn: Figure | Sequence[BarRow],
    numbers: Table | None = None,
    colors: Mapping[str, str] | None = None,
    **phrases: str,
) -> Picture:
    """The picture ``key`` inside the page, a figure or rows of bars; colors: what they mean.

    phrases: what its words leave open, and the unit where they name none.
    """
    words = WORDS[key.rstrip("-0123456789")]
    title, note = (words[name].format_map(phrases) for name in ("title", "note"))
    if not isinstance(drawn, Figure):
        drawn = bars_figure(drawn, words.get("unit") or phrases["unit"], colors, words.get("rule"))
    return Picture(key, title, note, inline_svg(drawn, key, readable(f"{title}. {note}")), numbers)


def ranged(name: str, value: Interval, show: Callable[[float], str], unit: str = "") -> KeyFigure:
    """A number with its interval."""
    mean, low, high = (show(each) for each in (value.mean, value.low, value.high))
    return name, f"{mean} {unit}".strip(), f"{low} to {high} {unit}".strip()


def speedup(name: str, value: Interval) -> KeyFigure:
    """A speed-up with its interval."""
    return ranged(name, value, "{:.2f}x".format)


def listed(entries: Iterable[str], title: str = "") -> list[Block]:
    """A numbered list, where there is anything to list."""
    return [Entries(shown, title)] if (shown := list(entries)) else []


def assumed(assumptions: Sequence[str], warnings: Sequence[str]) -> list[Block]:
    """Warnings and assumptions of an answer, as lists; nothing for those that are empty."""
    return [*listed(warnings, "Warnings"), *listed(assumptions)]


def counted(reasons: Iterable[str], what: str) -> list[Block]:
    """A list of the reasons, each with its number of rows or cells, the most frequent first."""
    found = Counter(reasons).most_common()
    return listed(f"{n:,} {what}{'' if n == 1 else 's'}: {reason}" for reason, n in found)
