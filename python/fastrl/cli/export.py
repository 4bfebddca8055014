"""The command ``fastrl export``."""

from pathlib import Path
from typing import Annotated, Any, Literal

from fastrl.cli.arguments import Arg, Count, RunEnv, Seed, TrustRuns, command, import_from_here
from fastrl.utils.errors import UserError
from fastrl.utils.progress import load_torch


@command(
    "{prog} runs/cart --out cart.onnx --check\n{prog} runs/cage4 --cage4-submission submission.py",
    usage="{prog} RUN --out policy.onnx [options]\n       {prog} RUN --cage4-submission submission.py [options]",
)
def export(
    arguments: list[str],
    run: Annotated[Path, Arg("a run directory, or a checkpoint file", "RUN")],
    *,
    out: Annotated[
        Path | None,
        Arg(
            "the file: .onnx, or .npz for plain numpy arrays of a multi-layer perceptron, with code that acts with"
            " them printed",
            "FILE",
        ),
    ] = None,
    cage4_submission: Annotated[
        Path | None,
        Arg(
            "in place of --out: a new Python file that plays a run of fastrl train cage4 in the real CybORG, as the"
            " challenge's evaluation takes it",
            "FILE",
        ),
    ] = None,
    check: Annotated[
        bool,
        Arg("also play policy and export beside each other in the environment and compare their actions"),
    ] = False,
    quantize: Annotated[
        Literal["int8"] | None,
        Arg(
            "write a network with convolutions in 8 bits, calibrated in the run's evaluation environment, if its score"
            " falls by less than one standard error and its size or latency improves; otherwise the plain export is"
            " written. What was measured is printed"
        ),
    ] = None,
    episodes: Annotated[Count, Arg("episodes of --check, and of each score of --quantize")] = 10,
    seed: Annotated[Seed, Arg("seed of the observations that are compared")] = 0,
    env: RunEnv = None,
    trust: TrustRuns = False,
) -> int:
    """Writes the policy of a run to an ONNX file, with everything that it does: normalisation, action masks, memory,
    frame stacks, and the way to actions of the environment.

    fastrl.runtime.load(FILE).act(obs) needs numpy and onnxruntime alone.
    """
    path = out or cage4_submission
    if path is None or (out and cage4_submission):
        raise UserError("expected either --out FILE or --cage4-submission FILE")
    if cage4_submission and quantize:
        raise UserError("--quantize: a submission to CAGE Challenge 4 has float32 weights")
    import_from_here(env, trust=trust)
    load_torch(arguments)
    from fastrl.exports.cage4_submission import export_submission
    from fastrl.exports.export import export as write

    options: dict[str, Any] = {
        "check": check,
        "episodes": episodes,
        "seed": seed,
        "trust": trust,
        "env": env,
    }
    if cage4_submission:
        found = export_submission(run, path, **options)
    else:
        found = write(run, path, quantize=quantize, **options)
    print(f"{path}: {path.stat().st_size / 1024:,.0f} KiB; {found}")
    if found.code:
        print(f"\n{found.code}")
    if found.quantization is not None:
        print(found.quantization)
    return 0
