"""The command ``fastrl export``."""

from pathlib import Path
from typing import Annotated, Literal

from fastrl.cli.arguments import Arg, Count, RunEnv, Seed, TrustRuns, command, import_from_here
from fastrl.utils.progress import load_torch


@command("{prog} runs/cart --out cart.onnx --check", usage="{prog} RUN --out policy.onnx [options]")
def export(
    arguments: list[str],
    run: Annotated[Path, Arg("a run directory, or a checkpoint file", "RUN")],
    *,
    out: Annotated[
        Path,
        Arg(
            "the file: .onnx, or .npz for plain numpy arrays of a multi-layer perceptron, with code that acts with"
            " them printed",
            "FILE",
        ),
    ],
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
    import_from_here(env, trust=trust)
    load_torch(arguments)
    from fastrl.exports.export import export as write

    found = write(
        run, out, check=check, quantize=quantize, episodes=episodes, seed=seed, trust=trust, env=env
    )
    print(f"{out}: {out.stat().st_size / 1024:,.0f} KiB; {found}")
    if found.code:
        print(f"\n{found.code}")
    if found.quantization is not None:
        print(found.quantization)
    return 0
