"""The crates of Cargo.lock against known vulnerabilities, withdrawn releases and foreign sources.

``python .ci/audit.py`` compares every locked crate with `.ci/advisories.toml`, a dated extract of the RustSec
database, and asks the registry, through cargo, whether each locked version is still offered (not yanked).
``python .ci/audit.py --update FOLDER`` writes the extract again from a checkout of the database.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EXTRACT = ROOT / ".ci" / "advisories.toml"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--update", metavar="FOLDER", type=Path)
    folder = parser.parse_args().update
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text(encoding="utf-8"))["package"]
    if folder is not None:
        EXTRACT.write_text(extracted(folder, {package["name"] for package in lock}), encoding="utf-8")
    extract = tomllib.loads(EXTRACT.read_text(encoding="utf-8"))
    crates = [package for package in lock if "source" in package]
    problems = [*foreign(crates), *vulnerable(crates, extract), *yanked(crates)]
    for problem in problems:
        print(problem, file=sys.stderr)
    age = (datetime.datetime.now(datetime.UTC).date() - extract["date"]).days
    print(
        f"{len(crates)} crates, {len(extract['advisory'])} advisories, {age} days old; {len(problems)} problems"
    )
    return 1 if problems else 0


def foreign(crates: list[dict[str, Any]]) -> list[str]:
    """Crates that do not come from the one registry, or whose content is not pinned by a checksum."""
    (registry, *others) = sorted(
        {crate["source"] for crate in crates}, key=lambda name: "crates.io" not in name
    )
    return [
        f"{crate['name']} {crate['version']}: from {crate['source']}, not by checksum from {registry}"
        for crate in crates
        if crate["source"] in others or "checksum" not in crate
    ]


def vulnerable(crates: list[dict[str, Any]], extract: dict[str, Any]) -> list[str]:
    """Advisories that concern a locked version, and crates that the extract was not made for."""
    problems = [
        f"{crate['name']}: not in {EXTRACT.name}; write it again with --update"
        for crate in crates
        if crate["name"] not in extract["crates"]
    ]
    for advisory in extract["advisory"]:
        for crate in crates:
            safe = [*advisory["patched"], *advisory["unaffected"]]
            if crate["name"] == advisory["package"] and not any(fits(crate["version"], one) for one in safe):
                problems.append(f"{crate['name']} {crate['version']}: {advisory['id']}, safe are {safe}")
    return problems


def fits(version: str, requirement: str) -> bool:
    """True if a version fulfils a requirement as cargo writes them, such as ``>= 1.2, < 2`` or ``^0.3.1``."""
    have = numbers(version)
    for part in requirement.split(","):
        words = re.fullmatch(r"\s*(>=|<=|>|<|=|\^|~|)\s*([\w.+-]+)\s*", part)
        if words is None:
            raise ValueError(f"not a requirement: {part!r}")
        operator, text = words.groups()
        given = len(text.split("-")[0].split("."))
        want = numbers(text)
        if operator in ("^", ""):
            kept = next((at for at, number in enumerate(want[:given]) if number), given - 1) + 1
        else:
            kept = min(given, 2)
        if not {
            ">=": have >= want,
            "<=": have <= want,
            ">": have > want,
            "<": have < want,
            "=": have[:given] == want[:given],
        }.get(operator, have >= want and have[:kept] == want[:kept]):
            return False
    return True


def numbers(version: str) -> tuple[int, int, int]:
    """Major, minor and patch; 0 where there is none. A pre-release counts as its release."""
    given = [int(number) for number in re.split(r"[-+]", version)[0].split(".")]
    major, minor, patch = (*given, 0, 0)[:3]
    return major, minor, patch


def yanked(crates: list[dict[str, Any]]) -> list[str]:
    """Cargo's message if a locked version has been withdrawn, so that a new lock file could not name it."""
    with tempfile.TemporaryDirectory() as folder:
        lines = [
            '[package]\nname = "audit"\nversion = "0.0.0"\nedition = "2024"\n[workspace]\n[dependencies]'
        ]
        for at, crate in enumerate(crates):
            version = crate["version"].partition("+")[0]
            lines.append(
                f'c{at} = {{ package = "{crate["name"]}", version = "={version}", default-features = false }}'
            )
        Path(folder, "Cargo.toml").write_text("\n".join(lines), encoding="utf-8")
        Path(folder, "src").mkdir()
        Path(folder, "src", "lib.rs").touch()
        command = ["cargo", "generate-lockfile", "--quiet"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return [] if done.returncode == 0 else [f"a locked version is no longer offered:\n{done.stderr}"]


def extracted(database: Path, names: set[str]) -> str:
    """The advisories for some crates, as TOML: what, when, and which versions are safe. No prose is copied."""
    date = subprocess.run(
        ["git", "-C", database, "log", "-1", "--format=%cs"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()
    lines = ["# Extract of the RustSec advisory database, written by audit.py --update.", f"date = {date}"]
    lines += ["crates = [", *(f'    "{name}",' for name in sorted(names)), "]"]
    for file in sorted(path for name in names for path in (database / "crates" / name).glob("*.md")):
        text = file.read_text(encoding="utf-8").partition("```toml\n")[2].partition("```")[0]
        record = tomllib.loads(text)
        if "withdrawn" not in record["advisory"]:
            lines += ["", "[[advisory]]"]
            lines += [f'{key} = "{record["advisory"][key]}"' for key in ("id", "package", "date")]
            versions = record["versions"]
            lines += [
                f"{key} = {versions.get(key, [])}".replace("'", '"') for key in ("patched", "unaffected")
            ]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
