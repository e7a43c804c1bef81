#!/usr/bin/env python3
"""Finds code that the compiler miscompiles, because it loses a comparison that is used twice: `tools/miscompiled.py`.

The script compiles the smallest program that shows the fault (docs/decisions/0022-a-miscompiled-count.md). If the compiler gets
the program right, the script names the compiler and ends. Otherwise it checks this tree and its dependencies in the release
profile. It compares every function before and after the faulty pass: a comparison that the pass has removed must have no use
left. If any has a use left, the exit status is 1.

Arguments go to cargo, for example `--workspace --all-targets`. The compiler is RUSTC, or rustc.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "docs/decisions/0022-a-miscompiled-count.rs"
PASS = "SimplifyComparisonIntegral"
COMPARISON = re.compile(r"^(_\d+) = (?:Eq|Ne|Lt|Le|Gt|Ge)\(")


def compiles_right(rustc):
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "program"
        subprocess.run([rustc, "--edition", "2024", "-O", PROGRAM, "-o", program], check=True)
        said = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    if said not in ("taken, 0 left\n", "taken, 1 left\n"):
        sys.exit(f"{PROGRAM} printed {said!r}, which is neither right nor the known fault")
    return said == "taken, 0 left\n"


def statements(file):
    """Returns the statements of a function. A copy and a move of an operand count as equal."""
    return [line.strip().replace("move _", "copy _") for line in file.read_text().splitlines()]


def lost(before, after):
    """Returns the lines that still use a comparison that the pass has removed."""
    kept = {line for line in after if COMPARISON.match(line)}
    removed = {match[1] for line in before if line not in kept and (match := COMPARISON.match(line))}
    uses = [re.compile(rf"(?:copy |&|&mut |&raw const |&raw mut )\(*{local}\b") for local in removed]
    return [line for line in after if any(use.search(line) for use in uses)]


def search(arguments):
    """Returns the number of functions, and for each miscompiled function the lines that use a removed comparison."""
    target = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "miscompiled"
    mir = target / "mir"
    cargo = [os.environ.get("CARGO", "cargo")]
    # Cargo keeps the results of other crates. The files of this project are removed, so that no result of a deleted
    # function is left.
    metadata = subprocess.run([*cargo, "metadata", "--no-deps", "--format-version=1"], cwd=ROOT, check=True,
                              stdout=subprocess.PIPE)
    members = json.loads(metadata.stdout)["packages"]
    packages = [word for member in members for word in ("-p", member["name"])]
    subprocess.run([*cargo, "clean", "--quiet", "--release", "--target-dir", target, *packages], cwd=ROOT, check=True)
    crates = {crate["name"].replace("-", "_") for member in members for crate in member["targets"]}
    for crate in crates:
        for file in mir.glob(f"{crate}.*"):
            file.unlink()

    flags = ["always-encode-mir=yes", f"dump-mir={PASS}", f"dump-mir-dir={mir}", "dump-mir-exclude-pass-number=yes"]
    # Options for developers of the compiler. With RUSTC_BOOTSTRAP a released compiler accepts them.
    environment = {"RUSTC_BOOTSTRAP": "1", "RUSTFLAGS": " ".join("-Z" + flag for flag in flags)}
    command = [*cargo, "check", "--quiet", "--release", "--target-dir", target, *arguments]
    subprocess.run(command, cwd=ROOT, env=os.environ | environment, check=True)

    looked_at, ours, found = 0, 0, {}
    for after in mir.glob(f"*.{PASS}.after.mir"):
        before = after.with_name(after.name.replace(".after.", ".before."))
        looked_at += 1
        ours += after.name.split(".")[0] in crates
        if uses := lost(statements(before), statements(after)):
            found[after.name.removesuffix(f".{PASS}.after.mir")] = uses
    if ours == 0:
        sys.exit(f"the compiler wrote no function of this tree to {mir}, so nothing was searched; remove {target}")
    return looked_at, found


def main():
    rustc = os.environ.get("RUSTC", "rustc")
    try:
        version = subprocess.run([rustc, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"cannot start the compiler {rustc!r}: {error}; set RUSTC to a compiler that works, or install Rust")
    if compiles_right(rustc):
        print(f"{version} compiles {PROGRAM.name} right")
        return
    print(f"{version} miscompiles {PROGRAM.name}: searching this tree, which takes a minute", flush=True)
    looked_at, found = search(sys.argv[1:])
    for function, uses in found.items():
        print(f"{function} is miscompiled:", *uses, sep="\n    ")
    if found:
        advice = "write these functions without a bool that is both counted and returned"
        sys.exit(f"{advice}: docs/decisions/0022-a-miscompiled-count.md")
    print(f"none of {looked_at} functions of this tree and its dependencies is miscompiled")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"failed, see above: {' '.join(map(str, error.cmd))}")
