#!/usr/bin/env python3
"""Checks the commands that the pages print: `tools/check-commands.py [DIRECTORY]`, after `make test` has built the programs.

It checks each command in an `sh` block, and each command of this project in backticks. Programs in DIRECTORY (default:
target/release) parse the arguments of their commands, and quick commands run. Makefile targets, crates, tests and scripts must
exist. A block with a program of another project needs a line `<!-- not run: why -->` before it; the commands of this project in
it are checked nevertheless.
"""

import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- not run: \S.*? -->\n+)?^```sh\n(.*?)^```", re.M | re.S)
ANY_BLOCK = re.compile(r"^```.*?^```", re.M | re.S)
INLINE = re.compile(r"`((?:phub-(?:server|probe|peers|disturb) |make |cargo |sh tools/|python3 tools/)[^`]+)`")
UNCLEAR = re.compile(r"\.\.\.|[\[{|]|\b(VALUE|TEXT|COMMAND)\b")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
QUICK = ("topology", "token", "certificate")
OTHERS = "{} is no program of ours: write <!-- not run: why --> before the block"
PROGRAMS = ("phub-server", "phub-probe", "phub-peers", "phub-disturb", "phub-chaos")


def tracked():
    run = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return [file for file in run.stdout.split() if (ROOT / file).exists()]


FILES = tracked()
MAKE = (ROOT / "Makefile").read_text()
MANIFESTS = "".join((ROOT / file).read_text() for file in FILES if file.endswith("Cargo.toml"))


def simple_commands(line):
    """Yields the commands of a line of shell, each a list of words without assignments and redirections."""
    words = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    words.whitespace_split = True
    command, redirected = [], False
    for word in words:
        if set(word) <= set("|&;"):
            yield command
            command = []
        elif redirected or set(word) <= set("<>"):
            redirected = not redirected
        elif command or not (ASSIGNMENT.match(word) or word == "sudo"):
            command.append(word)
    yield command


def program(name, args, programs):
    """Returns the fault in the arguments of a call of this project's program. The program runs with --help added: it parses all
    arguments before it prints the help."""
    quick = args[:1] and args[0] in QUICK
    with tempfile.TemporaryDirectory() as folder:
        command = [programs / name, *args] + ([] if quick else ["--help"])
        settings = {"PATH": os.environ["PATH"], "HOME": folder, "PHUB_TOKEN": "0123456789abcdef0123456789abcdef"}
        run = subprocess.run(command, cwd=folder, env=settings, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    return run.stderr.strip().splitlines()[0] if run.returncode else None


def cargo(args, programs):
    """Returns the fault of cargo's arguments, or None. A fault is a crate, test or program that does not exist."""
    own = (args + ["--"]).index("--")
    for flag, value in zip(args[:own], args[1:own]):
        if flag in ("-p", "--bin", "--bench") and f'name = "{value}"' not in MANIFESTS:
            return f"no Cargo.toml has the name {value}"
        if flag in ("--test", "--example"):
            folder = f"/{flag[2:]}s/{value}"
            paths = (folder + ".rs", folder + "/main.rs")
            if f'name = "{value}"' not in MANIFESTS and not any(("/" + file).endswith(paths) for file in FILES):
                return f"no {flag[2:]} {value}"
        if flag == "--bin" and args[0] == "run" and value in PROGRAMS:
            return program(value, args[own + 1 :], programs)
    return None


def make(args):
    for word in args:
        name = word.split("=")[0]
        found = re.search(rf"\b{name}\b", MAKE) if "=" in word else re.search(rf"^{re.escape(name)}:", MAKE, re.M)
        if not found:
            return f"the Makefile has no {name}"
    return None


def script(path, args):
    """Returns the fault in the call of a script of this project, or None."""
    if path not in FILES:
        return f"no file {path}"
    folder = str(pathlib.Path(path).parent) + "/"
    beside = "".join((ROOT / file).read_text() for file in FILES if file.startswith(folder) and file.endswith((".sh", ".py")))
    missing = [word for word in args if word.startswith("--") and word not in beside]
    return f"no script beside {path} has {missing[0]}" if missing else None


def wrong(command, programs):
    """Returns the fault of a command, or None."""
    name, args = command[0], command[1:]
    if name in PROGRAMS:
        return program(name, args, programs)
    if name in ("python", "python3") and args[:2] == ["-m", "phub"]:
        return program("phub-server", args[2:], programs)
    if name == "cargo":
        return cargo(args, programs)
    if name == "make":
        return make(args)
    if name in ("sh", "bash", "python3") and args:
        return script(args[0], args[1:])
    if name.startswith("tools/"):
        return script(name, args)
    if name == "cd":
        return None if (ROOT / args[0]).is_dir() else f"no folder {args[0]}"
    return None if name in ("export", "git") else OTHERS.format(name)


def commands_of(text):
    """Yields the lines of shell of a page. With each line comes the text of a fault that is allowed there, or
    None. A marked block may have programs of other projects, and a sentence may have a flag without its
    value."""
    for mark, block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            if line.strip() and not line.startswith("#"):
                yield line, "is no program of ours" if mark else None
    for line in INLINE.findall(ANY_BLOCK.sub("", text)):
        if not UNCLEAR.search(line):
            yield " ".join(line.split()), "a value is required"


def faults_of(page, programs):
    """Returns the number of commands on a page, and the list of their faults."""
    commands, faults = 0, []
    for line, allowed in commands_of((ROOT / page).read_text()):
        for command in filter(None, simple_commands(line)):
            fault = wrong(command, programs)
            commands += 1
            if fault and not (allowed and allowed in fault):
                faults.append(f"{page}: {line.strip()}\n    {fault}")
    return commands, faults


def main():
    programs = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "target/release").resolve()
    missing = [name for name in ("phub-server", "phub-probe") if not (programs / name).exists()]
    if missing:
        sys.exit(f"{programs} has no {missing[0]}: make test builds it")
    pages = [file for file in FILES if re.fullmatch(r"[A-Z]+\.md|docs/(?!decisions/).*\.md", file) and file != "CHANGELOG.md"]
    found = [faults_of(page, programs) for page in pages]
    faults = [fault for _, some in found for fault in some]
    if faults:
        sys.exit("\n".join(faults))
    print(f"{sum(commands for commands, _ in found)} commands of {len(pages)} pages are right")


main()
