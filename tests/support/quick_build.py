"""Options of builds whose speed does not matter. Those of a release take several times as long to compile."""

# Dependencies of fastrl-core are compiled with the profile of tests already.
_UNOPTIMISED = (
    *("fastrl-core", "fastrl-binding", "fastrl-python", "ferry"),
    *("pyo3", "numpy", "ndarray", "matrixmultiply"),
)
CARGO = ("--profile=dev", *(f"--config=profile.dev.package.{crate}.opt-level=0" for crate in _UNOPTIMISED))
CYTHON = {"CFLAGS": "-O0"}
