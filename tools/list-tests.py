#!/usr/bin/env python3
"""Prints the test files and what they show: `tools/list-tests.py [WORD...]`. With --check it prints nothing.

A line has a path and the first sentence of the file's head. With words, only lines that have all words are printed. A head is
`//!` in Rust, the docstring in Python, the first comment in a shell script. A test file without a head is an error. Unit tests at
the end of a product file are not listed.
"""

import itertools
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
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
    return SENTENCE.match(text)[0]


def is_test(file):
    if file.endswith(".rs"):
        return LIBRARY.search(file) or RUST.search(file) and TEST.search((ROOT / file).read_text())
    return OTHER.search(file)


def tests():
    """Returns the first sentence of each test file, by path."""
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    paths = sorted(file for file in files.stdout.split() if (ROOT / file).exists() and is_test(file))
    return {path: first_sentence(ROOT / path) for path in paths}


def main():
    words = [word.lower() for word in sys.argv[1:]]
    rows = [f"{path}: {sentence}" for path, sentence in tests().items()]
    if words != ["--check"]:
        print("\n".join(row for row in rows if all(word in row.lower() for word in words)))


main()
