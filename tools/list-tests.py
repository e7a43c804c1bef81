#!/usr/bin/env python3
"""Writes docs/tests.md, the list of the test files: `tools/list-tests.py`. With --check it fails if the page is stale.

A row has the first sentence of the file's head: `//!` in Rust, the docstring in Python, the first comment in a shell script.
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

`tools/list-tests.py` makes this page from the first sentence of each file; edit the file, and run it. Unit tests at the end of
a product file are not listed. [testing.md](testing.md) says how to run tests.
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


def list_tests():
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    folders = {}
    for file in sorted(file for file in files.stdout.split() if (ROOT / file).exists() and is_test(file)):
        path = pathlib.Path(file)
        folder = path.parts[0] if path.parts[0] not in ("tools", "worker-shim") else "/".join(path.parts[:2])
        folders.setdefault(folder, []).append((path.relative_to(folder), first_sentence(ROOT / file)))
    out = [TOP]
    for folder, rows in folders.items():
        out.append(f"\n## {folder}\n\n| file | what it shows |\n| --- | --- |\n")
        out += [f"| `{name}` | {text} |\n" for name, text in rows]
    return "".join(out)


def main():
    text = list_tests()
    if "--check" not in sys.argv:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        sys.exit("docs/tests.md is stale: run tools/list-tests.py")


main()
