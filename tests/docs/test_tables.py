"""Tables of metrics and options on the pages are the library's lists."""

import pytest

from tests.docs.prose import ROOT
from tests.docs.tables import TABLES, with_tables


@pytest.mark.parametrize("name", TABLES)
def test_a_pages_tables_are_the_lists(name):
    """Run `python -m tests.docs.tables` after a change of a list."""
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert with_tables(text, TABLES[name]()) == (text, [])


def test_a_changed_row_and_a_table_without_a_place_are_found():
    tables = {"staleness": "| key | meaning |\n|---|---|\n| `mean` | age |", "more": "| a |"}
    page = "Text.\n\n<!-- staleness -->\n\n| key | meaning |\n|---|---|\n| `mean` | years |\n\nText.\n"
    renewed, missing = with_tables(page, tables)
    assert renewed == page.replace("years", "age")
    assert missing == ["more"]
    assert with_tables(renewed, tables) == (renewed, ["more"])
