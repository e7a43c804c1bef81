#!/usr/bin/env python3
"""Prints what stands out in the tree, for whoever plans the next clean-up: `tools/house.py`. It never fails.

- folders with more than 12 files, files with more than 400 lines
- circles of imports between files of different folders of a crate
- names of public types in several files; siblings (files of one name) may share a type's name
"""

import collections
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAME = re.compile(r"^ *pub (?:struct|enum|union|trait|type) (\w+)", re.M)
USE = re.compile(r"^ *(pub(?:\([^)]*\))? )?use ([^;]+);", re.M)
PATH = re.compile(r"\b(?:crate|super)(?:::\w+)+")


def expand(tree):
    """The paths of a `use`: `a::{b, c as d}` is `a::b` and `a::c`."""
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
        """The file that defines `path`, as `module` writes it. Re-exports are followed."""
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
        """The files that `module` imports. Re-exports do not count: they only list what is there."""
        text = self.texts[self.modules[module]]
        paths = [path for is_pub, tree in USE.findall(text) if not is_pub for path in expand(tree)]
        return {self.find(module, path.split("::")) for path in paths + PATH.findall(text)} - {self.modules[module]}

    def circles(self):
        """Sets of files that reach each other, when they are of different folders."""
        edges, reached = {file: self.imports(module) for module, file in self.modules.items()}, {}
        for file in edges:
            reached[file], left = set(), [file]
            while left:
                new = edges.get(left.pop(), set()) - reached[file]
                reached[file] |= new
                left += new
        circles = {frozenset(other for other in reached[file] if file in reached.get(other, ())) for file in edges}
        parents = {file.parent for file in edges}  # a folder with tests alone is no home
        homes = {file: path if (path := file.with_suffix("")) in parents else file.parent for file in edges}
        return [circle for circle in circles if len({homes[file] for file in circle}) > 1]


def main():
    names = subprocess.run(["git", "ls-files", "*.rs", "*.py", "*.sh", "*.c", "*.md"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    texts = {pathlib.Path(name): (ROOT / name).read_text() for name in names.stdout.split() if (ROOT / name).is_file()}
    for folder, count in sorted(collections.Counter(file.parent for file in texts).items()):
        if count > 12:
            print(f"folder  {folder}: {count} files")
    for file, text in texts.items():
        if (lines := text.count("\n")) > 400:
            print(f"file    {file}: {lines} lines")
    source = {file: re.sub(r"//.*", "", text.split("#[cfg(test)]\nmod tests {")[0]) for file, text in texts.items()
              if file.suffix == ".rs" and "src" in file.parts and "tests" not in file.with_suffix("").parts}
    for root in sorted({pathlib.Path(*file.parts[: file.parts.index("src") + 1]) for file in source}):
        for circle in Crate(root, {file: text for file, text in source.items() if root in file.parents}).circles():
            print(f"circle  {root}:", *sorted(str(file.relative_to(root)) for file in circle))
    for name in sorted({name for text in source.values() for name in NAME.findall(text)}):
        where = [file for file, text in source.items() if name in NAME.findall(text)]
        if len({file.name for file in where}) > 1:
            print(f"name    {name}:", *where)


main()
