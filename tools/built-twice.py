#!/usr/bin/env python3
"""Finds packages that cargo would build twice in `make test`: `tools/built-twice.py [FLAGS OF CARGO]`.
Cargo builds a package twice if a program, the Python package or a test needs other features of the
package. The packages that depend on such a package are then built twice, too."""

import subprocess
import sys


def packages(*flags):
    """Returns each package with its features, as cargo resolves them for a build with these flags."""
    command = ["cargo", "tree", "--locked", "--prefix", "none", "--no-dedupe", "--format", "{p} [{f}]", *flags]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    if said.returncode != 0:
        sys.exit(f"built-twice: `{' '.join(command)}` failed:\n{said.stderr}")
    return set(said.stdout.splitlines())


flags = sys.argv[1:]
tests = packages(*flags)
of_python = packages("-p", "phub-python", "--edges", "no-dev", *flags)
programs = packages("--edges", "no-dev", *flags)
tested = {line.split(" [")[0] for line in tests}
found = False
for name, wanted in (("programs", programs), ("the Python package", of_python)):
    for line in sorted(wanted - tests):
        package, features = line.split(" [")
        if package in tested:
            found = True
            beside = " and ".join(sorted(line.split(" [")[1].rstrip("]") for line in tests if line.split(" [")[0] == package))
            print(f"built-twice: {package} has the features `{features.rstrip(']')}` in {name}, and `{beside}` beside tests; "
                  f"name the missing features of {package} in Cargo.toml, as for getrandom", file=sys.stderr)
sys.exit(found)
