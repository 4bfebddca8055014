"""The command ``fastrl export``."""

from pathlib import Path

from fastrl.cli.arguments import at_least, import_from_here, path, seed
from fastrl.utils.command_line import ArgumentParser
from fastrl.utils.progress import load_torch


def export(prog: str, arguments: list[str]) -> int:
    """Writes a trained policy to a file that needs no PyTorch."""
    parser = ArgumentParser(
        prog=prog,
        usage=f"{prog} RUN --out policy.onnx [options]",
        description="Writes the policy of a run to an ONNX file, with everything that it does: normalisation, action"
        " masks, memory, frame stacks, and the way to actions of the environment.\nfastrl.runtime.load(FILE).act(obs)"
        " needs numpy and onnxruntime alone.",
        epilog=f"{prog} runs/cart --out cart.onnx --check",
    )
    parser.add_argument("run", type=path, metavar="RUN", help="a run directory, or a checkpoint file")
    parser.add_argument(
        "--out",
        type=path,
        required=True,
        metavar="FILE",
        help="the file: .onnx, or .npz for plain numpy arrays of a multi-layer perceptron, with code that acts with"
        " them printed",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="also play policy and export beside each other in the environment and compare their actions",
    )
    parser.add_argument(
        "--quantize",
        choices=("int8",),
        help="of networks with convolutions: 8 bits, calibrated in the run's evaluation environment, if the score falls"
        " by less than one standard error and size or latency improves; else the plain export is written, and what was"
        " measured is said",
    )
    parser.add_argument(
        "--episodes",
        type=at_least(1),
        default=10,
        metavar="INT",
        help="episodes of --check, and of each score of --quantize [10]",
    )
    parser.add_argument(
        "--seed", type=seed, default=0, metavar="INT", help="seed of the observations that are compared [0]"
    )
    parser.add_argument("--env", metavar="ID", help="the run's environment, which may import code then")
    parser.add_argument(
        "--trust", action="store_true", help="let the run import code, as its checkpoint says"
    )
    options = parser.parse_args(arguments)
    import_from_here(options.env, trust=options.trust)
    load_torch(arguments)
    from fastrl.exports.export import export as write

    out: Path = options.out
    found = write(
        options.run,
        out,
        check=options.check,
        quantize=options.quantize,
        episodes=options.episodes,
        seed=options.seed,
        trust=options.trust,
        env=options.env,
    )
    print(f"{out}: {out.stat().st_size / 1024:,.0f} KiB; {found}")
    if found.code:
        print(f"\n{found.code}")
    if found.quantization is not None:
        print(found.quantization)
    return 0
