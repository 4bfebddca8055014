"""PEP 517 backend: builds the Cython extensions into the package, then lets maturin build the rest.

maturin compiles the Rust crate and writes wheels, tags, metadata and sdists. It does not compile Cython, so each hook
that builds something importable first compiles every ``cython/NAME.pyx`` to
``python/fastrl/_native/NAME.<abi>.so``; pyproject.toml's ``tool.maturin.include`` carries those files into the wheel.

Run as a script, it builds the Cython extensions alone: ``python build_backend/fastrl_backend.py``, with
``--sanitize FOLDER`` as ``FOLDER/fastrl/_native/NAME.<abi>.so`` that stop at memory errors and undefined behaviour
(GCC).
"""

from __future__ import annotations

import argparse
import os
import shlex
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import maturin

ROOT = Path(__file__).resolve().parent.parent
CYTHON = ROOT / "cython"
SOURCES = ROOT / "python"
PACKAGE = SOURCES / "fastrl"
NATIVE = PACKAGE / "_native"
SCRATCH = ROOT / "target" / "cython"
RUST_MODULE = "_rust"

# -ffp-contract=off: a fused multiply-add rounds once instead of twice, and results would depend on the CPU.
FLAGS = ("-O3", "-g0", "-ffp-contract=off")
# The whole group `undefined` would double the time of compilation.
SANITIZERS = ("-fsanitize=address,bounds,shift,signed-integer-overflow", "-fno-sanitize-recover=all")

ConfigSettings = Mapping[str, Any] | None

get_requires_for_build_wheel = maturin.get_requires_for_build_wheel
get_requires_for_build_editable = maturin.get_requires_for_build_editable
get_requires_for_build_sdist = maturin.get_requires_for_build_sdist
prepare_metadata_for_build_wheel = maturin.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = maturin.prepare_metadata_for_build_editable
build_sdist = maturin.build_sdist


def build_wheel(
    wheel_directory: str, config_settings: ConfigSettings = None, metadata_directory: str | None = None
) -> str:
    purge_foreign_modules()
    build_cython()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: ConfigSettings = None, metadata_directory: str | None = None
) -> str:
    build_cython()
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


def cython_sources() -> list[Path]:
    """All files ``cython/*.pyx``.

    Raises:
        RuntimeError: a name begins with ``_rust``: maturin would take the compiled file for an old build of the Rust
            module and silently leave it out of the wheel.
    """
    sources = sorted(CYTHON.glob("*.pyx"))
    for source in sources:
        if source.stem.startswith(RUST_MODULE):
            raise RuntimeError(
                f"{source}: a Cython module's name may not begin with {RUST_MODULE!r}; rename it"
            )
    return sources


def purge_foreign_modules() -> None:
    """Deletes compiled modules of another Python version or architecture, and those whose source no longer exists.

    The wheel takes every ``.so`` in the package, so it would contain them.
    """
    # setuptools, too, takes the suffix for another architecture from there.
    suffix = os.environ.get("SETUPTOOLS_EXT_SUFFIX") or sysconfig.get_config_var("EXT_SUFFIX")
    ours = {f"{name}{suffix}" for name in [RUST_MODULE, *(source.stem for source in cython_sources())]}
    for module in PACKAGE.rglob("*.so"):
        if module.parent != NATIVE or module.name not in ours:
            print(f"fastrl_backend: removing {module.relative_to(ROOT)}, which does not belong to this build")
            module.unlink()


def build_cython(
    into: Path = SOURCES,
    scratch: Path = SCRATCH,
    flags: Sequence[str] = FLAGS,
    link_flags: Sequence[str] = (),
) -> None:
    """Compiles every ``cython/NAME.pyx`` that is newer than its module into ``into/fastrl/_native/``.

    Flags of the environment variable CFLAGS come last, so that they override ``flags``.
    """
    sources = cython_sources()
    if not sources:
        return
    import numpy
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    own_flags = shlex.split(os.environ.get("CFLAGS", ""))
    extensions = [
        Extension(
            f"fastrl._native.{source.stem}",
            [str(source.relative_to(ROOT))],
            include_dirs=[numpy.get_include()],
            define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
            extra_compile_args=[*flags, *own_flags],
            extra_link_args=list(link_flags),
            depends=[__file__],
        )
        for source in sources
    ]
    distribution = Distribution(
        {"ext_modules": cythonize(extensions, build_dir=str(scratch), language_level=3)}
    )
    command = distribution.get_command_obj("build_ext")
    command.build_lib = str(into)
    command.build_temp = str(scratch)
    command.parallel = True  # one compiler for each CPU
    command.ensure_finalized()
    command.run()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--sanitize", metavar="FOLDER", type=Path)
    into = parser.parse_args().sanitize
    if into is None:
        build_cython()
    else:
        build_cython(into, into / "build", ("-O1", "-g", "-ffp-contract=off", *SANITIZERS), SANITIZERS)
