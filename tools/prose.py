#!/usr/bin/env python3
"""Checks that doc comments are understood at first reading: `tools/prose.py [--since COMMIT] [--by-crate] [FILE...]`.

The rules, for `///`, `//!` and Python's docstrings of public names:

- The doc of a type begins with a noun phrase, the doc of a function with a verb. The doc of a function that returns a bool may
  begin with "Whether". The doc of a test says what holds. The doc of a property of Python is a noun phrase.
- No doc begins with a preposition, a pronoun or a question word, but for the help of a flag.
- A sentence has at most 25 words.
- A word of the field stands instead of a word that only this project would use: timeout, release, notify, dedicated.
- "These", "others", "such", "so many", "it all" have a noun.

Each doc comment that fails is printed with its reasons. Fails if more than LIMIT percent of the doc comments do, and with
`--since` if any does that has lines added after COMMIT. `--self-test` tries the rules on examples; `make check` runs both.
"""

import ast
import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The largest percentage of doc comments that may fail. Never raise it.
LIMIT = 3.0
WORDS = 25

OPENERS = re.compile(
    r"(Of|By|With|Without|Where|When|What|Which|Who|Whom|Whose|Whoever|Why|How|These|Those|That|They|Their|It|Its|The same|The others"
    r"|As|And|But|Or|So|In|On|At|From|To|For|Behind|Beside|Above|Below|Before|After|Until|While|Into|Between|Over|Others|Likewise|Such|Also"
    r"|Like|If|This(?! \w+))\b(?! (module|file|test|program|example|crate|tool|script)\b)"
)
# The doc of a test may begin with a condition.
CONDITIONS = re.compile(r"(If|When|Where|While|After|Before|Until|With|Without|In|On|At|Over|Between|Below|Above|Behind)\b")
# The title of a page or a check may be a question.
TITLES = ("What is ", "How to ")
POINTERS = re.compile(
    r"(Others|It all|So many|The others)\b"
    r"|(These|Those|Such|This|That|The same|The other)(?= (is|are|was|were|has|have|had|do|does|can|cannot|may|must|would|will|go|come|get|lie|mean)\b)"
)
PHRASES = re.compile(
    r"\bso many\b(?! \w+ that\b)|\bin vain\b|\b(let|lets|letting) go of\b|\bh(old|olds|eld|olding) out for\b|\b(is|are|was) (told|heard)\b"
    r"|\bhears (of|from)\b|\bthe like of\b|\bthe others? ones?\b|\bones? wants\b|\bhubs? apart\b|\bapart hubs?\b|\bthe present of\b"
    r"|\bgrace period\b|\bthis one and the other\b|\bthese and those\b",
    re.I,
)
# Words that end in -s and are no verbs. The doc of a function must not begin with one.
PLURALS = set(
    "Arrivals Bytes Chunks Codecs Connections Cores Elements Entries Events Figures Gradients Hubs Is Its Keys Layers Machines Members "
    "Messages Nanoseconds NICs Numbers Pages Pairs Parts Peers Pieces Process Programs Pushes Queues Ranges Ranks Replies Requests Rows Samples "
    "Seconds Settings Shards Sizes Slots Spans Terms Threads Times Tokens Values Windows Words Workers As Was This Thus Less Always "
    "Across Plus Various Axis Unless Address Class Status Others Yes Ours".split()
) - {"Numbers", "Pushes", "Queues", "Pairs", "Parts", "Times", "Ranks"}
# Verbs with which the doc of a type must not begin: they are never nouns.
VERBS = set(
    "Adds Aborts Allocates Allows Asks Asserts Attaches Begins Brings Builds Carries Chooses Closes Compares Computes Connects Converts "
    "Creates Decides Decodes Describes Does Draws Encodes Encrypts Ensures Expects Finds Forgets Frees Gives Goes Has Holds Is Joins Keeps "
    "Kills Lets Listens Loads Makes Opens Parses Prepares Prevents Prints Proves Provides Publishes Puts Reads Receives Refuses Removes "
    "Returns Runs Says Seals Sends Serves Shows Simulates Sleeps Starts Stops Takes Tells Trains Tries Waits Wakes Wraps Writes".split()
)
ITEM = re.compile(
    r"\s*(?:pub(?:\([^)]*\))?\s+)?(?:(?:const|async|unsafe|extern(?:\s+\"[^\"]*\")?)\s+)*"
    r"(fn|struct|enum|trait|type|const|static|union|mod|macro_rules!)\b"
)
DOC = re.compile(r"\s*(///(?!/)|//!)\s?(.*)")

Doc = collections.namedtuple("Doc", "line end kind text")


def rust(source):
    """Yields the doc comments of a Rust file."""
    lines = source.splitlines()
    at = 0
    while at < len(lines):
        mark = DOC.match(lines[at]) if "//" in lines[at] else None
        if not mark:
            at += 1
            continue
        first, text = at, []
        while at < len(lines) and (more := DOC.match(lines[at])) and more[1] == mark[1]:
            text.append(more[2])
            at += 1
        yield Doc(first + 1, at, "module" if mark[1] == "//!" else item(lines, at), text)


def item(lines, at):
    """Returns the kind of the item below a doc comment: type, function, bool, test, help (of a flag), module or other."""
    attributes = []
    while at < len(lines) and re.match(r"\s*(#\[|//(?!/))", lines[at]):
        depth = 0
        while at < len(lines):
            depth += lines[at].count("[") - lines[at].count("]")
            attributes.append(lines[at])
            at += 1
            if depth <= 0:
                break
    found = ITEM.match(lines[at]) if at < len(lines) else None
    if any(re.match(r"\s*#\[(arg|command|clap)\b", each) for each in attributes):
        return "help"
    if not found:
        return "other"
    if found[1] == "mod":
        return "module"
    if found[1] != "fn":
        return "other" if found[1] == "macro_rules!" else "type"
    if any(re.match(r"\s*#\[((\w+::)*test\b|cfg_attr\(.*test\b|test_case|rstest)", each) for each in attributes):
        return "test"
    signature = re.split(r"[{;]", " ".join(lines[at : at + 14]), maxsplit=1)[0]
    return "bool" if re.search(r"->.*\bbool\b", signature) else "function"


def python(source):
    """Yields the docstrings of a Python file's public names."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) or not ast.get_docstring(node, False):
            continue
        name = getattr(node, "name", "")
        if name.startswith("_") and not name.startswith("__"):
            continue
        kind = "module" if isinstance(node, ast.Module) else "type"
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            named = [getattr(each, "func", each) for each in node.decorator_list]
            decorators = {getattr(each, "id", getattr(each, "attr", "")) for each in named}
            bare = getattr(node.returns, "id", "") == "bool"
            noun = decorators & {"property", "cached_property", "setter", "fixture", "contextmanager"}
            case = name.startswith("test") or "idiom" in decorators
            kind = "other" if noun else "test" if case else "bool" if bare else "function"
        text = node.body[0]
        yield Doc(text.lineno, text.end_lineno, kind, ast.get_docstring(node).splitlines())


def paragraphs(text):
    """Yields the paragraphs of a doc comment, and the items of its lists. Leaves out code, headings, tables and drawings."""
    fenced, part = False, []
    for line in [*text, ""]:
        bare = line.strip()
        if bare.startswith("```"):
            fenced = not fenced
            bare = ""
        elif fenced or re.match(r"#+ |\||\+--|[│┌└├─╭╰]", bare) or line.startswith("    ") and not part:
            bare = ""
        if not bare or re.match(r"([-*]|\d+\.) ", bare) or part and re.search(r"[.:]  $", part[-1]):
            if part:
                yield " ".join(part)
            part = []
        if bare:
            part.append(re.sub(r"^([-*]|\d+\.) ", "", bare))


def sentences(paragraph):
    """Splits a paragraph into sentences. Code and links count as one word."""
    plain = re.sub(r"``?[^`]+``?", "`x`", paragraph)
    plain = re.sub(r"\[([^\]]*)\](\([^)]*\))?", r"\1", plain)
    plain = re.sub(r"\b(e\.g|i\.e|al|cf|vs|no|Sec|Fig|Eq)\. ", r"\1 ", plain)
    return [each for each in re.split(r"(?<=[.!?])[)\"']?\s+(?=[A-Z`\"'(\d])", plain) if each]


def wrong(kind, text):
    """Returns the reasons why a doc comment fails; none if it passes."""
    reasons = []
    parts = list(paragraphs(text))
    if not parts:
        return reasons
    start = parts[0].lstrip("*\"'(")
    first = re.match(r"[A-Za-z]+", start)
    word = first[0] if first else ""
    free = kind == "help" or start.startswith(TITLES) or kind == "test" and CONDITIONS.match(start)
    if (bad := OPENERS.match(start)) and not free:
        reasons.append(f"begins with {bad[0]!r}, not with a {'verb' if kind in ('function', 'bool') else 'noun'}")
    elif word == "Whether" and kind in ("type", "module", "function"):
        reasons.append("begins with 'Whether', and is no bool")
    elif kind == "type" and word in VERBS:
        reasons.append(f"begins with the verb {word!r}, not with a noun")
    elif kind in ("function", "bool") and not verb(word) and not (kind == "bool" and word == "Whether"):
        reasons.append(f"begins with {word or start[:12]!r}, not with a verb")
    for part in parts:
        for sentence in sentences(part):
            count = len([each for each in sentence.split() if re.search(r"\w", each)])
            if count > WORDS:
                reasons.append(f"a sentence of {count} words: {sentence[:40]} ..")
            if bad := POINTERS.match(sentence):
                reasons.append(f"{bad[0]!r} without a noun")
        reasons += [f"{bad[0]!r}: name it, by a word of the field" for bad in PHRASES.finditer(re.sub(r"`[^`]*`", "`x`", part))]
    return reasons


def verb(word):
    return bool(re.fullmatch(r"[A-Z][a-z]+s", word)) and word not in PLURALS


def added(since):
    """Returns the numbers of the lines that were added since a commit, by file."""
    command = ["git", "diff", "-U0", since, "--", "*.rs", "*.py"]
    found, path = collections.defaultdict(set), None
    for line in subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        if line.startswith("+++ "):
            path = line[6:]
        elif lines := re.match(r"@@ .*\+(\d+)(?:,(\d+))? @@", line):
            found[path].update(range(int(lines[1]), int(lines[1]) + int(lines[2] or 1)))
    return found


def tracked():
    """Lists the Rust and Python files that git knows."""
    command = ["git", "ls-files", "*.rs", "*.py"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


RIGHT = [
    ("type", "A window of memory, which a worker writes."),
    ("type", "The chunks of one core."),
    ("function", "Returns the number of chunks."),
    ("function", "Numbers the chunks from 0."),
    ("bool", "Whether the rank is taken."),
    ("test", "A hub refuses a token that it did not make."),
    ("other", "The rank, from 0."),
    ("module", "What is wrong with a link, and how to see it."),
    ("function", "Writes the state: `a b c d e f g h i j k l m n o p q r s t u v w x y z`."),
    ("function", "Returns the hubs. These hubs answer."),
    ("function", "Writes a file.\n\n```\nOf all this nothing is read\n```"),
]
WRONG = [
    ("type", "Reads the file."),
    ("type", "What both ends send."),
    ("type", "Its chunks."),
    ("module", "How a worker joins."),
    ("function", "The number of chunks."),
    ("function", "Bytes of the window."),
    ("function", "Whether to wait, as a number."),
    ("function", "Returns the hubs. Others wait."),
    ("function", "Returns the hubs. These are ready."),
    ("function", "Asks so many hubs."),
    ("function", "Tries in vain."),
    ("other", "Of the peer."),
    ("other", "The hubs apart."),
    ("test", "A hub " + "and a hub " * 8 + "wait."),
]


def self_test():
    """Tests the rules by examples that must pass and examples that must fail. Returns the number of wrong answers."""
    failed = [f"refused: {kind}: {text} {why}" for kind, text in RIGHT if (why := wrong(kind, text.splitlines()))]
    failed += [f"accepted: {kind}: {text}" for kind, text in WRONG if not wrong(kind, text.splitlines())]
    rusty = "//! A file.\n\n/// A type.\n/// Of two lines.\npub struct A {\n    /// A field.\n    a: u8,\n}\n\n"
    rusty += "/// Whether.\n#[inline]\npub(crate) const fn b(\n) -> bool {}\n/// What holds.\n#[test]\nfn c() {}\n"
    kinds = [each.kind for each in rust(rusty + "/// Makes it.\nasync fn d() -> u8 {}\n")]
    if kinds != ["module", "type", "other", "bool", "test", "function"]:
        failed.append(f"Rust: {kinds}")
    snake = '"""A."""\nclass A:\n    """A."""\n    @property\n    def b(self):\n        """B."""\n    def _c(self):\n        """C."""\n'
    kinds = [each.kind for each in python(snake)]
    if kinds != ["module", "type", "other"]:
        failed.append(f"Python: {kinds}")
    print("\n".join(failed) or "The examples pass and fail as they must.")
    return len(failed)


def main():
    words = sys.argv[1:]
    if words == ["--self-test"]:
        return int(self_test() > 0)
    by_crate = "--by-crate" in words
    lines = None
    if "--since" in words:
        at = words.index("--since")
        lines = added(words[at + 1])
        del words[at : at + 2]
    totals, failed = collections.Counter(), collections.Counter()
    for path in [each for each in words if not each.startswith("--")] or tracked():
        if lines is not None and path not in lines or not (ROOT / path).exists():
            continue
        source = (ROOT / path).read_text()
        for doc in (rust if path.endswith(".rs") else python)(source):
            if lines is not None and lines[path].isdisjoint(range(doc.line, doc.end + 1)):
                continue
            crate = path.split("/")[0]
            totals[crate] += 1
            if reasons := wrong(doc.kind, doc.text):
                failed[crate] += 1
                if not by_crate:
                    print(f"{path}:{doc.line}: {'; '.join(reasons)}")
    if by_crate:
        for crate, total in sorted(totals.items()):
            print(f"{crate:16} {failed[crate]:5} of {total:5} {100 * failed[crate] / total:5.1f}%")
    share = 100 * failed.total() / max(1, totals.total())
    print(f"{failed.total()} of {totals.total()} doc comments fail: {share:.2f}%, at most {0 if lines is not None else LIMIT}%")
    return int(failed.total() > 0 if lines is not None else share > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
