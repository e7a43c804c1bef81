#!/usr/bin/env python3
"""Checks the lists of docs/adding.md against the tree: `tools/lists.py`. It fails when a list is wrong; `check-docs.py` runs it.

A section of that page lists the files to change when something new of one kind is added, such as a codec. It names an existing
example, and a pattern that finds the example. Each product file that the pattern finds must be in the list, or among the files
that only use the example. For each entry of the list, the pattern must find a file. An entry that ends with a slash is a folder.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = "docs/adding.md"
# Files in which an example may occur although the list does not name them: pages, tests and tools. A listed file must always
# have the example.
FREE = re.compile(r"^docs/|^[^/]*\.md$|(^|/)(tests|examples|tools)/|/tests\.rs$")
SECTION = re.compile(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", re.M | re.S)
PATTERN = re.compile(r"^This pattern finds the files: `([^`]+)`", re.M)
USERS = re.compile(r"^These files only use the example: (.*)\.$", re.M)
ROW = re.compile(r"^- (`.*?`): ", re.M)
QUOTED = re.compile(r"`([^`]+)`")


def is_in(file, entries):
    """Returns whether one of the entries names the file, or a folder that contains the file."""
    return any(file == entry or (entry.endswith("/") and file.startswith(entry)) for entry in entries)


def found(pattern, files):
    """Returns the names of the files that match the pattern."""
    pattern = re.compile(pattern)
    return [name for name, text in files.items() if name != PAGE and pattern.search(text)]


def wrong(section, files):
    """Returns the number of entries of a section, and its faults."""
    pattern, users = PATTERN.search(section), USERS.search(section)
    if not pattern:
        return 0, ["has no line 'This pattern finds the files: `...`'"]
    users = QUOTED.findall(users[1]) if users else []
    entries = [entry for row in ROW.findall(section) for entry in QUOTED.findall(row)]
    seen = found(pattern[1], files)
    complaints = [
        f"{file} has the example ({pattern[1]}), but is not in the list: "
        "add it to the list, or to the files that only use the example"
        for file in seen
        if not is_in(file, entries + users) and not FREE.search(file)
    ]
    for entry in entries + users:
        if not any(is_in(file, [entry]) for file in seen):
            complaints.append(f"{entry} is listed, but no file of this name in the tree has the example ({pattern[1]})")
    complaints += [f"{entry} is listed twice" for entry in {e for e in entries + users if (entries + users).count(e) > 1}]
    return len(entries), complaints


def main():
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.split("\n")
    files = {name: (ROOT / name).read_text(errors="replace") for name in names if (ROOT / name).is_file()}
    complaints, sections = [], SECTION.findall(files[PAGE])
    for title, section in sections:
        length, errors = wrong(section, files)
        print(f"{length:>3} files: {title}")
        complaints += [f"{PAGE}: {title}: {each}" for each in errors]
    if not sections:
        complaints.append(f"{PAGE} has no list")
    if complaints:
        sys.exit("\n".join(complaints))


if __name__ == "__main__":
    main()
