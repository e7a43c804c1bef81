#!/usr/bin/env python3
"""Writes docs/tests.md, the test files by directory: `tools/list-tests.py`. With --check it fails if the page is stale.

`tools/list-tests.py WORD` prints the files with this word in their path or in the first sentence of their head. A head is `//!`
in Rust, the docstring in Python, the first comment in a shell script.
"""

import itertools
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/tests.md"
RUST = re.compile(r"(^|/)tests/|/tests\.rs$")
OTHER = re.compile(
    r"/test_\w+\.py$|/truth/idioms/[a-z]\w*\.py$|^tests/browser/(page|perfetto_check)\.py$"
    r"|^tools/rxe/checks/.*\.sh$|^tools/(dist|figures)/check\S*\.sh$"
)
TEST = re.compile(r"#\[(tokio::)?test\]|proptest!")
LIBRARY = re.compile(r"^fabric/src/conformance/(arrivals|closing|ports|sleeping)\.rs$|^fuzz/src/(?!lib\b|\w+/mod\b)")
SETTING = re.compile(r"# (guest|build|seconds|lose)\b.*:|#$")
HEADS = {
    ".rs": (re.compile(r"(?:\s*//!.*\n)+"), "//!"),
    ".py": (re.compile(r'(?:#!.*\n)?r?""".*?"""', re.S), '"""'),
    ".sh": (re.compile(r"(?:#.*\n)+"), "#"),
}
SENTENCE = re.compile(r".*?[.](?= [A-Z`]|$)|.*")
TOP = """# List of tests

`tools/list-tests.py` makes this page from the tree. The head of each file says what the file shows: `tools/list-tests.py relink`
prints the first sentence of each file that has this word in its path or in that sentence. Unit tests at the end of a product
file are not listed. [testing.md](testing.md) says how to run tests.

| directory | test files |
| --- | --- |
"""


def first_sentence(path):
    pattern, mark = HEADS[path.suffix]
    head = pattern.match(path.read_text())
    lines = head[0].splitlines() if head else []
    if mark == "#":
        lines = itertools.takewhile(lambda line: not SETTING.match(line), lines)
    lines = (line.strip().removeprefix(mark).removesuffix('"""') for line in lines if line[:2] != "#!")
    text = " ".join(" ".join(lines).split())
    text = re.sub(r"\[(`[^`]+`)\]", r"\1", text)
    if not text:
        sys.exit(f"{path}: no head that says what the file shows")
    return SENTENCE.match(text)[0].replace("|", "\\|")


def is_test(file):
    if file.endswith(".rs"):
        return LIBRARY.search(file) or RUST.search(file) and TEST.search((ROOT / file).read_text())
    return OTHER.search(file)


def tests():
    """Returns the first sentence of each test file, by path."""
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    paths = sorted(file for file in files.stdout.split() if (ROOT / file).exists() and is_test(file))
    return {path: first_sentence(ROOT / path) for path in paths}


def page(paths):
    """Returns the page: a row for each directory of a package, with the files in it and below it."""
    folders = {}
    for path in map(pathlib.PurePath, paths):
        depth = next((at for at, part in enumerate(path.parts) if part in ("src", "tests")), len(path.parts) - 2)
        depth += path.parts[0] == "tests"
        folder = pathlib.PurePath(*path.parts[: min(depth + 1, len(path.parts) - 1)])
        folders.setdefault(folder, []).append(f"`{path.relative_to(folder).with_suffix('')}`")
    return TOP + "".join(f"| `{folder}` | {', '.join(names)} |\n" for folder, names in folders.items())


def main():
    found = tests()
    words = [word.lower() for word in sys.argv[1:] if word != "--check"]
    text = page(found)
    if words:
        rows = (f"{path}: {sentence}" for path, sentence in found.items())
        print("\n".join(row for row in rows if all(word in row.lower() for word in words)))
    elif "--check" not in sys.argv:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        sys.exit("docs/tests.md is stale: run tools/list-tests.py")


main()
