"""Tables of the pages that are lists of the library: `python -m tests.docs.tables` writes them anew.

A table stands below a comment with its name, `<!-- staleness -->`.
"""

import re

from rlhf_algos.algorithms import ALGORITHMS, algorithm_class
from rlhf_algos.algorithms.declarations import OPTIONS
from rlhf_algos.metrics import METRICS
from tests.docs.prose import ROOT


def metric_tables():
    """The tables of docs/metrics.md by name: metrics by where they stand in a result."""
    places = dict.fromkeys(metric.place for metric in METRICS)
    return {
        place or "result": table(
            ("key", "meaning", "form"),
            [(f"`{m.name}`", m.meaning, m.form.name) for m in METRICS if m.place == place],
        )
        for place in places
    }


def option_tables():
    """The tables of docs/options.md by name: shared options by section, an algorithm's own by its name."""
    sections = dict.fromkeys(option.section for option in OPTIONS)
    tables = {section: option_table(o for o in OPTIONS if o.section == section) for section in sections}
    own = {name: vars(type(algorithm_class(name).get_default_config())).get("OPTIONS", ()) for name in ALGORITHMS}
    return tables | {name: option_table(options) for name, options in own.items()}


def option_table(options):
    rows = [(f"`{o.keyword}`", o.kind.words, f"`{o.default!r}`", o.meaning) for o in options]
    return table(("option", "must be", "default", "meaning"), rows)


TABLES = {"metrics.md": metric_tables, "options.md": option_tables}


def table(head, rows):
    """A table of Markdown."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [f"| {' | '.join(line)} |" for line in (head, *cells)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def with_tables(text, tables):
    """The page's text with its tables as the lists say, and the names of the tables that it has no place for."""
    missing = []
    for name, content in tables.items():
        mark = f"<!-- {name} -->"
        if text.count(mark) != 1:
            missing.append(name)
            continue
        before, after = text.split(mark)
        after = re.sub(r"\A\n+(\|[^\n]*\n)*\n*", "", after)
        text = f"{before}{mark}\n\n{content}\n\n{after}".rstrip() + "\n"
    return text, missing


def main():
    for name, tables in TABLES.items():
        page = ROOT / "docs" / name
        page.write_text(with_tables(page.read_text(encoding="utf-8"), tables())[0], encoding="utf-8")


if __name__ == "__main__":
    main()
