"""Licence texts of the Rust crates that the wheel's compiled module contains: ``licenses/rust-crates.txt``.

``python build_backend/third_party.py`` writes the file, ``--check`` fails if that would change it. Both read Cargo.lock
and the sources that cargo downloaded. The other files in ``licenses/`` are edited by hand.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WRITTEN = ROOT / "licenses" / "rust-crates.txt"
LINKED_INTO = "fastrl-python"
PLATFORMS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu")
# If a crate offers several, the first of these is taken. All of them require only their text.
ACCEPTED = ("MIT", "BSD-2-Clause", "BSD-3-Clause", "ISC", "Zlib", "0BSD", "Unicode-3.0")
HEAD = """\
Rust crates that are contained in the compiled module fastrl._native._rust, each with the licence under which it is
distributed here, and below them the texts of these licences.
"""


def main() -> str | None:
    text = rendered(linked_crates())
    if sys.argv[1:] == ["--check"]:
        there = WRITTEN.read_text(encoding="utf-8") if WRITTEN.exists() else ""
        return None if there == text else f"{WRITTEN} does not match Cargo.lock: run {Path(__file__).name}"
    WRITTEN.write_text(text, encoding="utf-8")
    return None


def linked_crates() -> list[dict[str, Any]]:
    """Cargo's records of the crates that are linked into the module, sorted by name, without those that only builds,
    macros or tests use."""
    tree = ["cargo", "tree", "--locked", "--package", LINKED_INTO, "--edges", "normal,no-proc-macro"]
    names = set()
    for platform in PLATFORMS:
        lines = printed(*tree, "--target", platform, "--prefix", "none", "--format", "{p}").splitlines()
        names |= {tuple(line.split()[:2]) for line in lines}
    packages = json.loads(printed("cargo", "metadata", "--locked", "--format-version", "1"))["packages"]
    found = [package for package in packages if (package["name"], f"v{package['version']}") in names]
    return sorted(
        (package for package in found if package["source"] is not None),
        key=lambda package: (package["name"], package["version"]),
    )


def printed(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def licence(package: dict[str, Any]) -> tuple[str, str]:
    """The licence under which a crate is used, and its text.

    Raises:
        SystemExit: none of its licences is accepted, or the text is missing; a person must decide.
    """
    name = f"{package['name']} {package['version']}"
    offered = re.split(r" OR |/", package["license"] or "")
    taken = next((one for one in ACCEPTED if one in offered), None)
    if taken is None:
        raise SystemExit(f"{name}: none of the licences {package['license']!r} is in {ACCEPTED}")
    folder = Path(package["manifest_path"]).parent
    stems = [f"LICENSE-{taken}", *(["LICENSE"] if len(offered) == 1 else [])]
    for stem in stems:
        for file in (folder / f"{stem}{suffix}" for suffix in ("", ".md", ".txt")):
            if file.exists():
                return taken, file.read_text(encoding="utf-8").replace("\r\n", "\n").strip("\n")
    raise SystemExit(f"{name}: no file {' or '.join(stems)} in it")


def rendered(packages: list[dict[str, Any]]) -> str:
    """The list of crates and the licence texts; texts that differ only in line breaks are printed once."""
    lines = []
    texts: dict[str, str] = {}
    crates = defaultdict(list)
    for package in packages:
        taken, text = licence(package)
        words = " ".join(text.split())
        texts.setdefault(words, text)
        crates[words].append(package["name"])
        lines.append(f"{package['name']} {package['version']}: {taken}\n")
    parts = [f"{'-' * 80}\n{', '.join(names)}\n\n{texts[words]}\n" for words, names in crates.items()]
    return "\n".join([HEAD, "".join(lines), *parts])


if __name__ == "__main__":
    sys.exit(main())
