#!/usr/bin/env python3
"""Writes two files about the contents of a release: `bom.py TARGET DIRECTORY`. One is a bill of materials in CycloneDX's JSON,
the other has the texts of the licences.

Both files name the crates that cargo links into the wheel and the programs, and Rust's standard library. Crates of tests, builds
and macros are not shipped, and not named. The script fails for a crate without a licence. `bom.py --check FILE` validates a bill
by CycloneDX's schema."""

import json
import os
import pathlib
import re
import subprocess
import sys
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[2]
# tools/dist/wheel.sh builds with the same arguments.
SHIPPED = ["-p", "phub-cli", "-p", "benches", "-p", "phub-python"]
LOCKED = re.compile(r'name = "(.+)"\nversion = "(.+)"\n(?:source = ".+"\n)?(?:checksum = "(.+)"\n)?')
TEXTS = re.compile(r"(un)?licen[cs]e|copying|notice|copyright", re.IGNORECASE)


def said(*command):
    """Returns the output of a command."""
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def shipped(target):
    """Returns cargo's description of each linked crate, with its hash in Cargo.lock, and the crates that each crate needs."""
    printed = said("cargo", "tree", "--locked", "--edges", "normal,no-proc-macro", *SHIPPED, "--target", target, "--prefix",
                   "depth", "--no-dedupe", "--format", " {p} ")
    edges, path = {}, []
    for depth, name, version in re.findall(r"^(\d+) (\S+) v(\S+) ", printed, re.MULTILINE):
        path[int(depth):] = [(name, version)]
        edges.setdefault(path[-1], set())
        if len(path) > 1:
            edges[path[-2]].add(path[-1])
    hashes = {(name, version): of or None for name, version, of in LOCKED.findall((ROOT / "Cargo.lock").read_text())}
    known = json.loads(said("cargo", "metadata", "--locked", "--format-version", "1"))["packages"]
    crates = {(each["name"], each["version"]): each | {"sha256": hashes[each["name"], each["version"]]} for each in known}
    return {each: crates[each] for each in sorted(edges)}, edges


def standard_library():
    """Returns a description of the standard library, in the form of cargo's descriptions."""
    version = re.search(r"release: (\S+)", said(os.environ.get("RUSTC", "rustc"), "-vV"))[1]
    return {"name": "std", "version": version, "license": "MIT OR Apache-2.0", "sha256": None, "source": None,
            "repository": "https://github.com/rust-lang/rust"}


def reference(crate):
    """Returns the package URL of a crate that is from the registry. A crate of this project gets a name that no registry knows,
    because the registry has other people's crates with the same names."""
    kind = "pkg:cargo/" if crate["source"] else "rust:" if crate["name"] == "std" else "phub:"
    return f"{kind}{crate['name']}@{crate['version'].replace('+', '%2B')}"


def component(crate):
    """Returns a crate as a component of CycloneDX. In cargo, a slash between licences is an older spelling of OR."""
    described = {"type": "library", "bom-ref": reference(crate), "name": crate["name"], "version": crate["version"],
                 "licenses": [{"expression": re.sub(r"\s*/\s*", " OR ", crate["license"])}]}
    if crate["source"]:
        described["purl"] = reference(crate)
        described["hashes"] = [{"alg": "SHA-256", "content": crate["sha256"]}]
    if crate.get("repository"):
        described["externalReferences"] = [{"type": "vcs", "url": crate["repository"]}]
    return described


def bill(crates, edges, target):
    """Returns the bill of materials, which is the same for the same commit and target."""
    version = next(version for name, version in crates if name == "phub-cli")
    commit, when = said("git", "log", "-1", "--format=%H %cI").split()
    product = {"type": "application", "bom-ref": "phub", "name": "phub", "version": version,
               "licenses": [{"expression": "Apache-2.0"}],
               "properties": [{"name": "commit", "value": commit}, {"name": "target", "value": target}]}
    std = standard_library()
    needs = [{"ref": reference(crates[each]), "dependsOn": sorted(reference(crates[of]) for of in edges[each])} for each in crates]
    tops = [reference(each) for each in crates.values() if each["name"] in SHIPPED] + [reference(std)]
    return {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
            "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, commit + target)}",
            "metadata": {"timestamp": when, "component": product},
            "components": [component(each) for each in [*crates.values(), std]],
            "dependencies": [{"ref": "phub", "dependsOn": sorted(tops)}, *needs]}


def texts(crate):
    """Returns the texts of licences that a crate has next to its manifest."""
    folder = pathlib.Path(crate["manifest_path"]).parent
    files = [each for each in sorted(folder.iterdir()) if each.is_file() and TEXTS.match(each.name)]
    return [each.read_text(encoding="utf-8", errors="replace").strip() for each in files]


def licences(crates):
    """Returns the text of the licences: a table of the crates, and then each licence once, below the names of its crates."""
    ours = (ROOT / "LICENSE").read_text().strip()
    owners, said_by = {}, {}
    for crate in crates.values():
        found = [ours] if crate["source"] is None else texts(crate)
        if not found and "Apache-2.0" in crate["license"]:
            found = [ours]  # the text of Apache-2.0 has no name of an author, so this project's copy is the same
        if not found:
            sys.exit(f"dist: the crate {crate['name']} {crate['version']} ({crate['license']}) has no file with its licence: "
                     "find the text, and say in tools/dist/bom.py where")
        for text in found:
            same = " ".join(text.split())
            said_by.setdefault(same, text)
            owners.setdefault(same, []).append(f"{crate['name']} {crate['version']}")
    std = standard_library()
    owners[" ".join(ours.split())].append(f"Rust's standard library {std['version']}")
    lines = ["Parameter Hub is under the Apache License 2.0. Programs and the wheel contain these crates:", ""]
    lines += [f"{each['name']} {each['version']}: {component(each)['licenses'][0]['expression']}"
              for each in [*crates.values(), std]]
    for same, of in sorted(owners.items(), key=lambda each: -len(each[1])):
        lines += ["", "=" * 100, ", ".join(of), "-" * 100, "", said_by[same]]
    return "\n".join(lines) + "\n"


def check(path):
    """Ends the script with the first fault of a bill, if CycloneDX's schema finds one."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(pathlib.Path(path).read_text())
    if fault:
        sys.exit(f"dist: {path} is no bill of CycloneDX 1.6: {str(fault.data)[:400]}")


if __name__ == "__main__":
    if sys.argv[1] == "--check":
        check(sys.argv[2])
    else:
        its_target, directory = sys.argv[1], pathlib.Path(sys.argv[2])
        its_crates, its_edges = shipped(its_target)
        made = bill(its_crates, its_edges, its_target)
        name = f"phub-{made['metadata']['component']['version']}-{its_target.split('-')[0]}"
        (directory / f"{name}.cdx.json").write_text(json.dumps(made, indent=1) + "\n")
        (directory / f"{name}-licences.txt").write_text(licences(its_crates))
        print(f"dist: {name}.cdx.json and {name}-licences.txt: {len(its_crates)} crates")
