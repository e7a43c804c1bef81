#!/usr/bin/env python3
"""Prints the outliers of the source tree, for whoever plans the next clean-up: `tools/house.py`.

`tools/house.py --check` prints only the parts of the coordinator that are too large, and the circles of imports of
coordinator and hub. It fails if there are any.

- types of the coordinator with more than 12 fields or 25 methods of their own, and functions of more than 60 lines
- folders with more than 12 files, files with more than 400 lines
- circles of imports between files of different folders of a crate
- names of public types that several files define; files of the same name may share a type's name
"""

import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAME = re.compile(r"^ *pub (?:struct|enum|union|trait|type) (\w+)", re.M)
BLOCK = re.compile(r"( *)(?:pub(?:\([^)]*\))? )?(?:const |unsafe )*(struct|impl|fn)\b(?:<.*?>)? ?(\w+)")
FIELD = re.compile(r"    (?:pub(?:\([^)]*\))? )?\w+: ")
# The crates whose types and functions have limits.
BOUNDED = {"coordinator"}
# The crates that have no circles of imports between folders.
UNTANGLED = {"coordinator", "phub-server"}
MOST_FIELDS, MOST_METHODS, MOST_LINES = 12, 25, 60
USE = re.compile(r"^ *(pub(?:\([^)]*\))? )?use ([^;]+);", re.M)
PATH = re.compile(r"\b(?:crate|super)(?:::\w+)+")


def expand(tree):
    """Returns the paths of a `use`: `a::{b, c as d}` is `a::b` and `a::c`."""
    if not (brace := re.search(r"\{([^{}]*)\}", tree)):
        return [re.sub(r" as \w+|\s", "", tree)]
    parts = [part.strip() for part in brace[1].split(",") if part.strip()]
    return [path for part in parts for path in expand(tree[: brace.start()] + part + tree[brace.end() :])]


class Crate:
    def __init__(self, root, texts):
        self.texts, self.modules, self.exports = texts, {}, {}
        for file, text in texts.items():
            parts = file.relative_to(root).with_suffix("").parts
            module = parts[:-1] if parts[-1] in ("lib", "main", "mod") else parts
            uses = [path.split("::") for is_pub, tree in USE.findall(text) if is_pub for path in expand(tree)]
            self.modules[module], self.exports[module] = file, {path[-1]: path[:-1] for path in uses}

    def find(self, module, path, depth=0):
        """Returns the file that defines `path`, a path in the source of `module`. Follows re-exports."""
        here = () if path[0] == "crate" else module
        for step in path:
            if step == "super":
                here = here[:-1]
            elif here + (step,) in self.modules:
                here += (step,)
            elif step not in ("crate", "self"):
                source = self.exports.get(here, {}).get(step)
                return self.find(here, [*source, step], depth + 1) if source and depth < 9 else self.modules.get(here)
        return self.modules.get(here)

    def imports(self, module):
        """Returns the files that `module` imports. Re-exports do not count, because they only list names of other modules."""
        text = self.texts[self.modules[module]]
        paths = [path for is_pub, tree in USE.findall(text) if not is_pub for path in expand(tree)]
        return {self.find(module, path.split("::")) for path in paths + PATH.findall(text)} - {self.modules[module]}

    def circles(self):
        """Returns the circles: sets of files in different folders that import each other, directly or not."""
        edges, reached = {file: self.imports(module) for module, file in self.modules.items()}, {}
        for file in edges:
            reached[file], left = set(), [file]
            while left:
                new = edges.get(left.pop(), set()) - reached[file]
                reached[file] |= new
                left += new
        circles = {frozenset(other for other in reached[file] if file in reached.get(other, ())) for file in edges}
        parents = {file.parent for file in edges}  # without folders that only have tests
        homes = {file: path if (path := file.with_suffix("")) in parents else file.parent for file in edges}
        return [circle for circle in circles if len({homes[file] for file in circle}) > 1]


def blocks(text):
    """Yields kind, name and lines of the structs, impls and functions of a file. Relies on rustfmt's layout."""
    lines = text.split("\n")
    for first, line in enumerate(lines):
        if (block := BLOCK.match(line)) and not line.endswith(("}", ";")):
            yield block[2], block[3], lines[first : lines.index(f"{block[1]}}}", first) + 1]


def too_large(texts):
    """Lists the parts of one crate that are too large."""
    methods = collections.Counter()
    for file, text in texts.items():
        for kind, name, lines in blocks(text):
            if kind == "impl" and " for " not in lines[0]:
                methods[name] += sum(bool((of := BLOCK.match(line)) and of[2] == "fn" and len(of[1]) == 4) for line in lines)
            if kind == "struct" and (count := sum(bool(FIELD.match(line)) for line in lines)) > MOST_FIELDS:
                yield f"type    {file}: {name} has {count} fields"
            if kind == "fn" and len(lines) > MOST_LINES:
                yield f"fn      {file}: {name} has {len(lines)} lines"
    yield from (f"type    {name} has {count} methods" for name, count in methods.items() if count > MOST_METHODS)


def main():
    names = subprocess.run(["git", "ls-files", "*.rs", "*.py", "*.sh", "*.c", "*.md"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    texts = {pathlib.Path(name): (ROOT / name).read_text() for name in names.stdout.split() if (ROOT / name).is_file()}
    source = {file: re.sub(r"//.*", "", text.split("#[cfg(test)]\nmod tests {")[0]) for file, text in texts.items()
              if file.suffix == ".rs" and "src" in file.parts and "tests" not in file.with_suffix("").parts}
    large = [line for crate in sorted(BOUNDED)
             for line in too_large({file: text for file, text in source.items() if file.parts[0] == crate})]
    circles = []
    for root in sorted({pathlib.Path(*file.parts[: file.parts.index("src") + 1]) for file in source}):
        for circle in Crate(root, {file: text for file, text in source.items() if root in file.parents}).circles():
            line = " ".join([f"circle  {root}:", *sorted(str(file.relative_to(root)) for file in circle)])
            (large if root.parts[0] in UNTANGLED else circles).append(line)
    for line in large:
        print(line)
    if "--check" in sys.argv[1:]:
        sys.exit("split large types into parts, and break circles: pass in what a file needs" if large else 0)
    for folder, count in sorted(collections.Counter(file.parent for file in texts).items()):
        if count > 12:
            print(f"folder  {folder}: {count} files")
    for file, text in texts.items():
        if (lines := text.count("\n")) > 400:
            print(f"file    {file}: {lines} lines")
    for circle in circles:
        print(circle)
    for name in sorted({name for text in source.values() for name in NAME.findall(text)}):
        where = [file for file, text in source.items() if name in NAME.findall(text)]
        if len({file.name for file in where}) > 1:
            print(f"name    {name}:", *where)


main()
