"""Options of builds whose speed does not matter. Those of a release take several times as long to compile."""

# The dependencies are compiled with the profile of tests already.
CARGO = (
    "--profile=dev",
    *(
        f"--config=profile.dev.package.{crate}.opt-level=0"
        for crate in ("fastrl-core", "fastrl-binding", "fastrl-python", "ferry")
    ),
)
CYTHON = {"CFLAGS": "-O0"}
