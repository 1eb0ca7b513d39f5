"""The style sheet of the report: both themes, narrow and wide screens, paper."""

from __future__ import annotations

from rlsim.report.figures.style import text_color
from rlsim.report.page.palette import DARK, LIGHT, Theme, heat, tones

LABEL_STEPS = (320, 440, 560, 700, 860)
"""Widths of a chart in CSS pixels from which on a label that needs so much is shown."""

_LAYOUT = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main,header,footer{max-width:62rem;margin:0 auto;padding:0 1.5rem}
header{padding-top:3.5rem}
footer{padding-top:1.5rem;padding-bottom:3rem;color:var(--dim);font-size:.875rem}
p{margin:.5rem 0;max-width:46rem;overflow-wrap:anywhere}
a{color:var(--accent);text-underline-offset:.15em}
a:focus-visible,summary:focus-visible,.scroll:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
h1{font-size:1.9rem;line-height:1.2;letter-spacing:-.015em;margin:.15rem 0 1rem;overflow-wrap:anywhere}
h2{font-size:1.35rem;line-height:1.25;letter-spacing:-.01em;margin:0 0 .5rem}
h3,figcaption{font-size:1rem;font-weight:600;line-height:1.35;margin:0 0 .15rem;overflow-wrap:anywhere}
.eyebrow{font-size:.8125rem;letter-spacing:.06em;text-transform:uppercase;color:var(--accent);font-weight:600;margin:0}
.headline{font-size:1.25rem;line-height:1.45;margin:0 0 .75rem;max-width:50rem;overflow-wrap:anywhere}
.dim,.about{color:var(--dim)}
.about{font-size:.875rem}
section{padding:2rem 0 .5rem;margin-top:2rem;border-top:1px solid var(--rule)}
nav ul{list-style:none;margin:1.25rem 0 0;padding:0;display:flex;flex-wrap:wrap;gap:.25rem 1.25rem;font-size:.9rem}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(11rem,1fr));gap:.75rem;margin:1.5rem 0 0}
.figures div{background:var(--panel);border-radius:6px;padding:.8rem 1rem}
.figures dt{font-size:.8125rem;color:var(--dim)}
.figures dd{margin:0;font-size:1.4rem;font-weight:600;letter-spacing:-.01em;font-variant-numeric:tabular-nums;
overflow-wrap:anywhere}
.figures dd span{display:block;font-size:.8125rem;font-weight:400;letter-spacing:0;color:var(--dim)}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,24rem),1fr));gap:0 3rem}
figure{margin:1.5rem 0 2rem;container-type:inline-size;break-inside:avoid;min-width:0}
figure>p,.note{font-size:.875rem;color:var(--dim);margin:.15rem 0 .5rem}
svg.chart{display:block;width:100%;overflow:visible;margin:.6rem 0 .4rem}
svg.defs{position:absolute;width:0;height:0}
svg text{fill:var(--ink);font-size:13px;font-family:inherit;font-variant-numeric:tabular-nums;
stroke:var(--paper);stroke-width:4px;stroke-linejoin:round;paint-order:stroke}
svg .dim{fill:var(--dim)}
svg .small{font-size:12px}
svg .strong{font-weight:600}
.grid{stroke:var(--rule);stroke-width:1}
.rule{stroke:var(--dim);stroke-width:1;stroke-dasharray:4 3}
.spread{stroke:var(--dim);stroke-width:1;opacity:.45}
.limit{stroke:var(--ink);stroke-width:2}
.track{fill:var(--panel)}
.gap{stroke:var(--paper);stroke-width:1.5}
.whisker{stroke:var(--ink);stroke-width:1.5}
.halo{stroke:var(--paper);stroke-width:4.5}
.point{fill:var(--accent);stroke:var(--paper);stroke-width:1.5}
.point.hollow{fill:var(--paper);stroke:var(--ink)}
.point.best{fill:none;stroke:var(--ink);stroke-width:2}
.curve{fill:none;stroke-width:2;vector-effect:non-scaling-stroke;stroke-linejoin:round}
.curve.dash1{stroke-dasharray:7 4}
.mark{stroke:var(--paper);stroke-width:1.3;fill:none;opacity:.6}
.mark.dot{fill:var(--paper);stroke:none}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;margin:.25rem 0 .5rem;padding:0;font-size:.875rem}
.legend li{display:flex;align-items:center;gap:.4rem;overflow-wrap:anywhere;min-width:0}
.legend svg{flex:none}
details{margin:.4rem 0}
summary{cursor:pointer;font-size:.875rem;color:var(--accent);width:max-content;max-width:100%}
.scroll{overflow-x:auto;margin:.5rem 0 1rem}
table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums;line-height:1.4}
caption{text-align:left;color:var(--dim);padding:0 0 .35rem}
th,td{text-align:left;padding:.35rem .8rem;border-bottom:1px solid var(--rule);vertical-align:top;
overflow-wrap:break-word;max-width:28rem;min-width:3rem}
th{font-weight:600}
thead th{border-bottom-color:var(--dim);vertical-align:bottom}
th:first-child,td:first-child{padding-left:0}
.num{text-align:right;white-space:nowrap}
.num i{font-style:normal;color:var(--dim)}
.heat td,.heat th{text-align:center;border:1px solid var(--paper);padding:.45rem .7rem;white-space:nowrap}
.heat th{font-weight:400;color:var(--dim)}
.heat th:first-child{white-space:normal;text-align:left;max-width:8rem;overflow-wrap:break-word}
.heat .none{color:var(--dim)}
.heat b{font-weight:600}
.list{padding-left:1.4rem;margin:.5rem 0;max-width:48rem}
.list li{margin:.45rem 0;overflow-wrap:anywhere}
.list li::marker{color:var(--dim)}
.warn{border-left:3px solid var(--bad);padding:.1rem 0 .1rem 1rem;margin:1rem 0}
.grade{display:flex;gap:1.1rem;align-items:center;margin:.75rem 0 1rem}
.grade b{flex:none;font-size:1.9rem;line-height:3.4rem;width:3.4rem;text-align:center;border:2px solid var(--accent);
border-radius:8px}
.grade p{margin:0}
code{font:.875em ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere}
@media(max-width:40rem){header{padding-top:1.75rem}main,header,footer{padding-left:1rem;padding-right:1rem}
h1{font-size:1.5rem}.headline{font-size:1.1rem}.figures{grid-template-columns:repeat(auto-fit,minmax(8.5rem,1fr))}
.figures dd{font-size:1.2rem}}
@media print{@page{margin:15mm}body{font-size:10.5pt}header{padding-top:0}nav,summary{display:none}
details:not([open]){display:none}section{break-before:auto;margin-top:1rem;padding-top:1rem}h2,figcaption{break-after:avoid}
.scroll{overflow:visible}tr,.figures div{break-inside:avoid}a{color:inherit;text-decoration:none}
main,header,footer{max-width:none;padding-left:0;padding-right:0}
svg,.figures div,.heat td,.legend{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""


def stylesheet() -> str:
    """The whole style sheet. It holds nothing of the results."""
    light, dark = _variables(LIGHT), _variables(DARK)
    themes = (
        f":root{{color-scheme:light dark;{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
    )
    names = tones(LIGHT)
    fills = "".join(
        f".f-{name}{{fill:var(--{name})}}.s-{name}{{stroke:var(--{name})}}svg .on-{name}{{fill:var(--on-{name});"
        f"stroke:var(--{name})}}"
        for name in names
    )
    cells = "".join(f".heat .h{i}{{background:var(--h{i})}}" for i in range(len(heat(LIGHT))))
    labels = "".join(f"@container(max-width:{width - 0.02}px){{.from{width}{{display:none}}}}" for width in LABEL_STEPS)
    return f"{themes}{_LAYOUT.strip()}\n{fills}\n{cells}\n{labels}\n"


def _variables(theme: Theme) -> str:
    colors = tones(theme)
    named = {**vars(theme), **colors, **{f"on-{name}": text_color(color) for name, color in colors.items()}}
    named |= {f"h{i}": color for i, color in enumerate(heat(theme))}
    return "".join(
        f"--{name.replace('_', '-') if name in vars(theme) else name}:{value};" for name, value in named.items()
    )
