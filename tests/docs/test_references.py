"""What code and pages refer to is there: equations and sections of docs/mathematics.md, documents, files, anchors."""

import itertools
import re

from markdown_it import MarkdownIt

from tests.docs.prose import CODE, PAGES, ROOT, comments_and_docstrings

MATHEMATICS = ROOT / "docs" / "mathematics.md"
# 1.1 to 10.6: the numbers that code and other texts rely on. They never move.
EQUATIONS = {1: 1, 2: 4, 3: 8, 4: 4, 5: 6, 6: 5, 7: 9, 8: 2, 9: 0, 10: 6}

NUMBER = r"\d+(?:\.\d+)?"
# "MATH 5.1", "MATH 7.6, 7.8 or 7.9", "MATH 2 and 3", over the end of a line too.
CITATION = re.compile(rf"\bMATH[\s#]+(?:section[\s#]+)?({NUMBER}(?:(?:,|[\s#]+(?:and|or|to))[\s#]+{NUMBER})*)")
IN_BRACKETS = re.compile(r"\((\d{1,2}\.\d{1,2}(?:, \d{1,2}\.\d{1,2})*)\)")
DOCUMENT = re.compile(r"[\w./-]*\w\.md\b")
FILE = re.compile(r"\b(?:tests|examples|benchmarks|rlhf_algos|algorithms|envs|requirements)/[\w/.-]+\.\w+\b")
LINK = re.compile(r"\]\(([^)\s]+)\)")
# Documents that are written, not read: a report's table.
WRITTEN = "-final-values.md"


def anchors(path):
    return set(re.findall(r'<a id="([^"]+)">', path.read_text(encoding="utf-8")))


def name(path):
    return str(path.relative_to(ROOT))


def target(number):
    return f"eq-{number}" if "." in number else f"section-{number}"


def cited(text):
    return [target(n) for found in CITATION.finditer(text) for n in re.findall(NUMBER, found.group(1))]


def test_every_equation_and_section_has_its_anchor_once_and_in_order():
    found = re.findall(r'<a id="((?:eq|section)-[^"]+)">', MATHEMATICS.read_text())
    expected = []
    for section, count in EQUATIONS.items():
        expected += [f"section-{section}", *(f"eq-{section}.{number}" for number in range(1, count + 1))]
    assert found == expected


def test_displayed_equations_carry_the_number_of_the_anchor_above_them():
    blocks = MATHEMATICS.read_text().split("\n\n")
    numbered = [(before, block) for before, block in itertools.pairwise(blocks) if "\\tag{" in block]
    assert len(numbered) > 20
    for before, block in numbered:
        (number,) = re.findall(r"\\tag\{([\d.]+)\}", block)
        assert before == f'<a id="eq-{number}"></a>'
        assert block.startswith("$$ ") and block.rstrip().endswith(" $$")


def test_formulas_reach_the_reader_as_they_were_written():
    """Markdown must read no underscore as emphasis and no backslash as an escape where it knows no mathematics."""
    text = MATHEMATICS.read_text(encoding="utf-8")
    formulas = re.findall(r"\$\$.+?\$\$|(?<!\$)\$[^$]+\$(?!\$)", text, re.DOTALL)
    shown = [
        part.content if part.type != "softbreak" else "\n"
        for token in MarkdownIt().enable("table").parse(text)
        if token.type == "inline"
        for part in token.children
    ]
    page = "".join(shown)
    assert len(formulas) > 150
    assert [formula for formula in formulas if formula not in page] == []


def test_cited_mathematics_is_there():
    there = anchors(MATHEMATICS)
    found = [(path, number) for path in [*CODE, *PAGES] for number in cited(path.read_text(encoding="utf-8"))]
    assert len(found) > 80
    assert [f"{name(path)}: {number}" for path, number in found if number not in there] == []


def test_equation_numbers_in_brackets_are_there():
    """The formulas' own files cite them so: (5.6)."""
    there = anchors(MATHEMATICS)
    found = [
        (path, number)
        for folder in ("objectives", "corrections")
        for path in (ROOT / "rlhf_algos" / folder).glob("*.py")
        for _, text in comments_and_docstrings(path)
        for numbers in IN_BRACKETS.findall(text)
        for number in numbers.split(", ")
    ]
    assert len(found) > 30
    assert [f"{name(path)}: ({number})" for path, number in found if target(number) not in there] == []


def test_citations_are_found_and_wrong_ones_are_wrong():
    word = "MATH"
    text = f"({word} 5.1) {word} 7.6, 7.8 or\n    7.9, {word} 2 and 3; {word} section 4, # {word}\n    # 8.1"
    assert cited(text) == [
        *("eq-5.1", "eq-7.6", "eq-7.8", "eq-7.9", "section-2", "section-3", "section-4", "eq-8.1"),
    ]
    assert set(cited(f"{word} 5.7, {word} 11")) & anchors(MATHEMATICS) == set()


def test_named_documents_are_there():
    missing = []
    for path in [*CODE, *PAGES]:
        text = re.sub(r"https?://\S+", "", path.read_text(encoding="utf-8"))
        places = (path.parent, ROOT, ROOT / "docs", ROOT / "rlhf_algos" / "models" / "tiny_moe")
        for document in DOCUMENT.findall(text):
            if not document.endswith(WRITTEN) and not any((place / document).exists() for place in places):
                missing.append(f"{name(path)}: {document}")
    assert missing == []


def test_named_files_are_there():
    missing = []
    for path in [*CODE, *PAGES]:
        said = [path.read_text(encoding="utf-8")] if path in PAGES else [t for _, t in comments_and_docstrings(path)]
        named = FILE.findall(re.sub(r"https?://\S+", "", "\n".join(said)))
        missing += [f"{name(path)}: {file}" for file in named if not (ROOT / file).exists()]
    assert missing == []


def test_links_lead_somewhere():
    dead = []
    for path in PAGES:
        for link in LINK.findall(path.read_text(encoding="utf-8")):
            file, _, anchor = link.partition("#")
            there = (path.parent / file).resolve() if file else path
            if "://" not in link and not (there.exists() and (not anchor or anchor in targets_in(there))):
                dead.append(f"{name(path)}: {link}")
    assert dead == []


def targets_in(page):
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return anchors(page) | {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
