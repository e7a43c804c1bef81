#!/usr/bin/env python3
"""Checks the pages against the tree: `tools/check-docs.py`. `make check` runs it; it fails when a page is wrong.

- Every link leads to a file of the tree, and to a heading of it. Every path in backticks exists.
- docs/path-of-a-chunk.md lists the files on the path of a chunk, and the totals are the sums.
- docs/path-of-a-join.md lists the functions on the path of a join: each is in its file, and the totals are right.
- docs/README.md links to each page of docs. A page has at most 2,500 words, unless it is a page of reference.
- Each test file has a head that says what the file shows (tools/list-tests.py).
- docs/adding.md lists the files that a new optimizer, codec, term, transport or check touches (tools/lists.py).
- docs/features.md names tests that exist.
- docs/grafana-dashboard.json uses metrics that docs/metrics.md lists.
- docs/papers.md names files and tests that exist, and the counts of its states are right.
- docs/decisions/README.md has each number once, and a link to each decision. A record has a status, a date, and the usual
  headings.
"""

import fnmatch
import itertools
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORDS = 2500
LOOKED_UP = ("docs/papers.md", "docs/protocol/control-port.md", "docs/protocol/data-path.md")
PATH = re.compile(r"`([\w.{},*/-]+)`")
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
ROW = re.compile(r"^- `([^`]+)`(?: \((\d+)\))?: ", re.M)
TOTALS = re.compile(r"\*\*(\d+) files, (\d+) questions\*\*")
DECISION = re.compile(r"^- (\d[\d, ]*): (.*)$", re.M)
RECORD = re.compile(r"# (\d+)\. (.*)\n\nStatus: (accepted|superseded by \d+)\. Date: (\d{4}-\d\d-\d\d)\.\n")
PARTS = ["Context", "Decision", "Why", "What it costs", "What was measured", "What would change it"]
STEP = re.compile(r"^- \d: `([^`]+)` `([^`]+)`: ", re.M)
PAPER = re.compile(r"^- ([A-Z]\d+)\b(.*?) \*(\w+)\*(.*(?:\n  .*)*)", re.M)
STATES = ("done", "different", "missing")
TEST = re.compile(r"#\[(?:tokio::)?test\b.*\](?:\s*(?:#\[.*\]|//.*))*\s*(?:async )?fn (\w+)|^ *def (test_\w+)", re.M)
# A section in the form of docs/papers.md, with a wrong count, number, state, file and test, to test the check.
WRONG_PAPER = "\n## A\n**0 done, 0 different, 0 missing.**\n- A2, 1: x *perhaps*; `no/file.rs`, `no_test`, `no/file.svg`"


def expand(path):
    """Expands `a/{b,c}.rs` to `a/b.rs` and `a/c.rs`."""
    parts = [part.split(",") for part in re.split(r"[{}]", path)[1::2]]
    return [re.sub(r"\{[^{}]*\}", "%s", path) % words for words in itertools.product(*parts)] if parts else [path]


def headings(page):
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def wrong_paths(page, tracked, tops):
    """Yields the paths in backticks that do not exist. A path may leave out its first folders, and the `.rs` at its end."""
    for path in itertools.chain(*map(expand, PATH.findall(page.read_text()))):
        if "/" in path and (path.split("/")[0] in tops or path.endswith((".rs", ".sh", ".py", ".md"))):
            path = path.rstrip("/")
            if not any(fnmatch.filter(tracked, pattern) for pattern in (path, path + ".rs", "*/" + path)):
                yield path


def wrong_links(page):
    for link, heading in LINK.findall(page.read_text()):
        target = page.parent / link if link else page
        if link.startswith("http"):
            continue
        if not target.exists() or (heading and heading not in headings(target)):
            yield f"{link}#{heading}" if heading else link


def index(pages):
    """Yields the faults of the index of docs: pages to which it has no link, and pages that are too long."""
    links = {(ROOT / "docs" / link).resolve() for link, _ in LINK.findall((ROOT / "docs/README.md").read_text())}
    for page in pages:
        name = str(page.relative_to(ROOT))
        count = sum(bool(re.search(r"\w", word)) for word in page.read_text().split())
        if page.resolve() not in links and name != "docs/README.md" and page.parent.name != "decisions":
            yield f"{name}: docs/README.md has no link to it"
        if count > WORDS and name not in LOOKED_UP:
            yield f"{name}: {count} words; a page has at most {WORDS}: split it by task, or cut"


def path_of_a_chunk():
    """Yields the faults of the list of files on the path of a chunk."""
    section = (ROOT / "docs/path-of-a-chunk.md").read_text().split("\n## The files\n")[1].split("\n## ")[0]
    rows = ROW.findall(section)
    totals = (str(len(rows)), str(sum(int(questions or 0) for _, questions in rows)))
    print(f"the path of a chunk: {totals[0]} files, {totals[1]} questions for other modes")
    if TOTALS.findall(section) != [totals]:
        yield f"the totals of the path of a chunk must be **{totals[0]} files, {totals[1]} questions**"


def path_of_a_join():
    """Yields the faults of the list of functions on the path of a join."""
    text = (ROOT / "docs/path-of-a-join.md").read_text()
    steps = STEP.findall(text)
    for file, function in steps:
        path = ROOT / file
        if not path.exists() or not re.search(rf"\bfn {function}\b", path.read_text()):
            yield f"{file} has no function {function}"
    totals = f"**{len(steps)} steps in {len({file for file, _ in steps})} files**"
    if totals not in text:
        yield f"the totals of the path of a join must be {totals}"


def features(tracked):
    """Yields the tests in docs/features.md that do not exist."""
    for name in re.findall(r"`([\w./-]+\.(?:rs|py|sh))`", (ROOT / "docs/features.md").read_text()):
        if not any(path == name or path.endswith("/" + name) for path in tracked):
            yield f"no test {name}"


def papers(text, tracked, tests):
    """Yields the faults of the lines of docs/papers.md: their numbers, states, counts of states, files and tests."""
    for section in text.split("\n## ")[1:]:
        rows = PAPER.findall(section)
        states = [state for _, _, state, _ in rows]
        counts = "**" + ", ".join(f"{states.count(state)} {state}" for state in STATES) + ".**"
        if counts not in section.replace("\n", " ") or len(rows) != sum(map(states.count, STATES)):
            yield f"the head of {section.splitlines()[0]} must say {counts}, and each line must have one of these states"
        if [name[1:] for name, *_ in rows] != [str(number) for number in range(1, len(rows) + 1)]:
            yield f"the lines of {section.splitlines()[0]} must have the numbers from 1 on"
        for name, *_, where in rows:
            words = re.findall(r"`([^`\s]*[/_][^`\s]*)`", where)
            yield from (f"{name}: no file or test {word}" for word in words if word not in tracked | tests)


def decisions():
    """Yields the faults of the lists of decisions, and of the records."""
    folder = ROOT / "docs/decisions"
    table = DECISION.findall((folder / "README.md").read_text())
    rows = {int(number): where for numbers, where in table for number in numbers.split(", ")}
    numbers = sorted(int(number) for numbers, _ in table for number in numbers.split(", "))
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"the lists must have each number from 1 on once, and have {numbers}"
    for file in sorted(folder.glob("[0-9]*.md")):
        record = RECORD.match(file.read_text())
        parts = re.findall(r"^## (.*)$", file.read_text(), re.M)
        if parts != [part for part in PARTS if part in parts] or "Decision" not in parts:
            yield f"the headings of {file.name} must be Decision and perhaps more of {PARTS}, in this order, and are {parts}"
        if not record:
            yield f"{file.name} must begin with its number and title, and a line 'Status: accepted. Date: 2026-11-20.'"
        elif (row := rows.pop(int(record[1]), None)) != f"[{record[2]}]({file.name})":
            yield f"{file.name} has the title {record[2]}, and its line in the list is {row}"
    for number, where in rows.items():
        if "](../design/" not in where and not where.startswith(("withdrawn", "never used")):
            yield f"decision {number} has no record, and its line must lead to a page of docs/design, or say why not"


def dashboard():
    """Yields the metrics of the dashboard that the page does not list."""
    listed = set(re.findall(r"^- `(phub_\w+)`: ", (ROOT / "docs/metrics.md").read_text(), re.M))
    for metric in sorted(set(re.findall(r"phub_\w+", (ROOT / "docs/grafana-dashboard.json").read_text())) - listed):
        yield f"docs/metrics.md does not list {metric}"


def main():
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    tracked = {str(path) for file in files for path in (pathlib.Path(file), *pathlib.Path(file).parents)}
    tops = {file.split("/")[0] for file in files}
    wrong = [f"docs/path-of-a-chunk.md: {what}" for what in path_of_a_chunk()]
    wrong += [f"docs/path-of-a-join.md: {what}" for what in path_of_a_join()]
    wrong += [f"docs/decisions: {what}" for what in decisions()]
    wrong += [f"docs/features.md: {what}" for what in features(tracked)]
    wrong += [f"docs/grafana-dashboard.json: {what}" for what in dashboard()]
    tests = {name for file in files if file.endswith((".rs", ".py")) and (ROOT / file).exists()
             for names in TEST.findall((ROOT / file).read_text()) for name in names}
    wrong += [f"docs/papers.md: {what}" for what in papers((ROOT / "docs/papers.md").read_text(), tracked, tests)]
    assert len(list(papers(WRONG_PAPER, tracked, tests))) == 5, "what is wrong with docs/papers.md is not found"
    for script in (["tools/list-tests.py", "--check"], ["tools/lists.py"]):
        wrong += subprocess.run([sys.executable, *script], cwd=ROOT, stderr=subprocess.PIPE, text=True).stderr.splitlines()
    pages = sorted(ROOT / file for file in files if file.endswith(".md") and (ROOT / file).exists())
    wrong += index([page for page in pages if page.is_relative_to(ROOT / "docs")])
    for page in pages:
        wrong += [f"{page.relative_to(ROOT)}: no file {path}" for path in wrong_paths(page, tracked, tops)]
        wrong += [f"{page.relative_to(ROOT)}: no page or heading {link}" for link in wrong_links(page)]
    if wrong:
        sys.exit("\n".join(wrong))


main()
