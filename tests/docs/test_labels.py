"""Nothing refers to a list that a reader does not have: faults are said in words, not by a label such as X07."""

import re

import pytest

from tests.docs.prose import CODE, PAGES, ROOT, comments_and_docstrings, defined_names

LABEL = re.compile(r"\b[A-F]\d{1,2}\b")
# In a name everything is joined by underscores and in lower case; one digit is common there (`f1`, `a0`).
IN_A_NAME = re.compile(r"(?<![a-z0-9])[a-f]\d{2}(?![a-z0-9])", re.IGNORECASE)
NUMBERED = re.compile(r"\b(?:issue|case|bar|finding|item)s? #?[A-F]?\d+\b", re.IGNORECASE)


def labels_in(texts, *patterns):
    return [f"{line}: {found.group()}" for line, text in texts for p in patterns for found in p.finditer(text)]


def test_code_has_no_labels():
    found = [(path, labels_in(comments_and_docstrings(path), LABEL, NUMBERED)) for path in CODE]
    found += [(path, labels_in(defined_names(path), IN_A_NAME)) for path in CODE]
    assert [f"{path.relative_to(ROOT)}:{label}" for path, labels in found for label in labels] == []


def test_pages_have_no_labels():
    found = [
        (path, labels_in(enumerate(path.read_text(encoding="utf-8").splitlines(), 1), LABEL, NUMBERED))
        for path in PAGES
    ]
    assert [f"{path.relative_to(ROOT)}:{label}" for path, labels in found for label in labels] == []


@pytest.mark.parametrize(
    "source",
    [
        "x = 1  # {}: the fault\n",
        'def test():\n    """{}: the fault."""\n',
        'class A:\n    x = 1\n    """{}, below an attribute."""\n',
        "def test_{}():\n    pass\n",
        "p = parametrize('x', [1], ids=['{}-reads'])\n",
    ],
)
@pytest.mark.parametrize("label", ["B13", "C05"])
def test_a_label_is_found(tmp_path, source, label):
    path = tmp_path / "module.py"
    path.write_text(source.format(label))
    found = labels_in(comments_and_docstrings(path), LABEL) + labels_in(defined_names(path), IN_A_NAME)
    assert len(found) == 1


def test_data_is_no_label(tmp_path):
    path = tmp_path / "module.py"
    path.write_text('x = {"dtick": "D2"}\ny = 0xB1\nz = "#E69F00"\n')
    assert labels_in(comments_and_docstrings(path), LABEL, NUMBERED) == []
    assert labels_in(defined_names(path), IN_A_NAME) == []
