"""Checks of the prose of README and documentation: the length of sentences, words that are written twice.

Beside it `proselint` checks the choice of words, and `codespell` spelling and the words of `.ci/words.txt`. Code,
tables, links and formulas are left out.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# A sentence with more words has to be read twice.
MOST_WORDS = 45
# Pages that programs write, whose facts stand in long rows.
WRITTEN = ("docs/benchmarks/measured.md",)
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**/*.md")


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """The prose of a page: paragraphs and items of lists, with the number of their first line."""
    blank = re.sub(
        r"^( *)(```|:::).*?^\1\2[`:]*$", lambda block: "\n" * block[0].count("\n"), text, flags=re.M | re.S
    )
    first = 0
    lines: list[str] = []
    for number, line in enumerate([*blank.splitlines(), ""], 1):
        is_prose = bool(line.strip()) and not re.match(r"\s*(\||#|<|!\[|    )", line)
        starts_item = re.match(r"\s*(-|\d+\.) ", line)
        if lines and (not is_prose or starts_item):
            yield first, " ".join(lines)
            lines = []
        if is_prose:
            first = first if lines else number
            lines.append(line.strip())


def sentences(paragraph: str) -> list[str]:
    """The sentences of a paragraph; code counts as one word."""
    plain = re.sub(r"`[^`]*`", "CODE", paragraph)
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", plain)
    plain = re.sub(r"\b(e\.g|i\.e|et al|vs|cf)\.", r"\1", plain)
    return re.split(r"(?<=[.!?:;])\s+(?=[A-Z0-9*\"'(]|fastrl )", plain.lstrip("- "))


def problems(path: Path) -> Iterator[str]:
    """One line for each problem of a page."""
    for number, paragraph in paragraphs(path.read_text(encoding="utf-8")):
        for sentence in sentences(paragraph):
            where = f"{path.relative_to(ROOT)}:{number}"
            count = len(re.findall(r"[\w'-]+", sentence))
            if count > MOST_WORDS:
                yield f"{where}: a sentence of {count} words, the most are {MOST_WORDS}: {sentence[:60]}..."
            for twice in re.findall(r"\b([a-z]+) \1\b", sentence):
                if twice != "that":
                    yield f"{where}: {twice} {twice}: {sentence[:60]}..."


def main() -> int:
    """Prints the problems of all pages; 1 if there are any."""
    pages = [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]
    found = [
        line for path in pages if path not in {ROOT / page for page in WRITTEN} for line in problems(path)
    ]
    print("\n".join([*found, f"{len(pages)} pages, {len(found)} problems"]))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
