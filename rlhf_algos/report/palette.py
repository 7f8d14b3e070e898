"""How a group looks in every chart: colour, dash and marker."""

from __future__ import annotations

from dataclasses import dataclass

# Okabe and Ito's colours, which people with any common colour blindness can tell apart. The dark page has brighter
# ones of the same hues.
LIGHT = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DARK = ("#4DA3E0", "#F07A2B", "#2FBF93", "#E39AC7", "#F0C33C", "#A6DAFF")

# Plotly's name and Matplotlib's.
_DASHES = (("solid", "-"), ("dash", "--"), ("dashdot", "-."), ("dot", ":"))
_MARKERS = (
    ("circle", "o"),
    ("square", "s"),
    ("diamond", "D"),
    ("triangle-up", "^"),
    ("triangle-down", "v"),
    ("cross", "P"),
    ("x", "X"),
)


@dataclass(frozen=True)
class Look:
    """A group's look in Plotly's and in Matplotlib's words; `color` is an index into `LIGHT` and `DARK`."""

    color: int
    dash: str
    marker: str
    linestyle: str
    matplotlib_marker: str


def look_of(group: int) -> Look:
    """The look of the group at an index: colours first, then dashes."""
    dash, linestyle = _DASHES[group // len(LIGHT) % len(_DASHES)]
    marker, matplotlib_marker = _MARKERS[group % len(_MARKERS)]
    return Look(group % len(LIGHT), dash, marker, linestyle, matplotlib_marker)
