"""The command ``fastrl bench collect``."""

import argparse
import dataclasses

from fastrl.cli.arguments import at_least, import_from_here, path, positive
from fastrl.utils.command_line import ArgumentParser
from fastrl.utils.config import ConfigError, nearest
from fastrl.utils.env_options import read_options
from fastrl.utils.output import plain_console
from fastrl.utils.progress import Progress, load_torch
from fastrl.utils.tables import show


def bench_collect(prog: str, arguments: list[str]) -> int:
    """Compares ways of collecting experience on an environment."""
    load_torch(arguments)
    from fastrl.benchmarks.collect import (
        LARGE,
        METHODS,
        BenchError,
        Setting,
        cases_for,
        compare,
        draw,
        make_plan,
        price_cases,
        price_table,
        speed_table,
    )
    from fastrl.envs.spec import EnvSpec
    from fastrl.utils.files import to_json, write_atomically

    parser = ArgumentParser(
        prog=prog,
        description="Compares ways of collecting experience on one environment, each with several numbers of workers,"
        " and measures what the executor avoids: barriers, pickled weights, environments built again."
        " Whole episodes are collected; nothing is learnt.",
        epilog="environments: fastrl/Cage2-v0; fastrl/Uneven-v0, whose steps sleep for uneven times (or compute, with"
        " --env-options busy=true); fastrl/CybORG-v0, where CybORG is installed; any of Gymnasium's;"
        " module:factory",
    )
    parser.add_argument(
        "--env",
        default="fastrl/Uneven-v0",
        metavar="ID",
        help="the environment, see below [fastrl/Uneven-v0]",
    )
    parser.add_argument(
        "--env-options",
        metavar="KEY=VALUE",
        nargs="+",
        default=[],
        help="keyword arguments of the environment",
    )
    parser.add_argument(
        "--workers", default="1,2,4,8", metavar="N,N,...", help="numbers of workers [1,2,4,8]"
    )
    parser.add_argument(
        "--methods",
        default=",".join(METHODS),
        metavar="NAME,...",
        help=f"ways to collect [{','.join(METHODS)}]",
    )
    parser.add_argument(
        "--envs-per-worker",
        type=at_least(1),
        default=1,
        metavar="INT",
        help="sync: environments that each worker steps together [1]",
    )
    parser.add_argument(
        "--network",
        metavar="N,N,...",
        help="act by a network of random weights with these hidden layers [random actions]",
    )
    parser.add_argument(
        "--seconds", type=positive, default=5.0, metavar="FLOAT", help="seconds of each measurement [5]"
    )
    parser.add_argument(
        "--rounds",
        type=at_least(1),
        default=1,
        metavar="INT",
        help="how often each case is measured, in turns [1]",
    )
    parser.add_argument(
        "--max-steps",
        type=at_least(1),
        default=1000,
        metavar="INT",
        help="longer episodes are cut off [1000]",
    )
    parser.add_argument(
        "--no-prices",
        action="store_true",
        help="do not measure barriers, pickled weights and environments built again",
    )
    parser.add_argument(
        "--out", type=path, metavar="DIR", help="write bench-collect.json and bench-collect.png there [none]"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON and nothing else")
    options = parser.parse_args(arguments)
    workers = _numbers("--workers", options.workers)
    methods = [name.strip() for name in options.methods.split(",")]
    for name in methods:
        if name not in METHODS:
            raise ConfigError(
                f"--methods: unknown collector {name!r}; did you mean {nearest(name, METHODS)}?"
            )
    setting = Setting(
        env=EnvSpec(options.env, read_options(options.env_options)),
        hidden=None if options.network is None else _numbers("--network", options.network),
        max_steps=options.max_steps,
        seconds=options.seconds,
        envs_per_worker=options.envs_per_worker,
    )
    import_from_here(options.env)
    make_plan(setting, max(workers))
    out = options.out
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)

    console = plain_console(quiet=options.json)
    cases = cases_for(methods, workers)
    prices = [] if options.no_prices else price_cases(max(workers))
    # Weights that are worth talking about.
    large = setting if setting.hidden is not None else dataclasses.replace(setting, hidden=LARGE)
    with Progress("measuring", options.rounds * (len(cases) + len(prices))) as progress:
        results, missing = compare(setting, cases, options.rounds, progress)
        priced, unpriced = compare(large, prices, options.rounds, progress)
    for name, why in (missing | unpriced).items():
        show(console, f"{name} left out: {why}")
    if not results:
        raise BenchError("; ".join(f"{name}: {why}" for name, why in missing.items()))
    show(console, speed_table(results, setting))
    if any(result.case.label == "executor" for result in priced):
        console.print()
        show(console, price_table(priced, large))
    tree = {
        "env": options.env,
        "options": dict(setting.env.options),
        "seconds": options.seconds,
        "rounds": options.rounds,
        "network": setting.hidden,
        "results": [result.to_tree() for result in results],
        "prices": {"network": large.hidden, "results": [result.to_tree() for result in priced]},
        "left_out": missing | unpriced,
    }
    text = to_json(tree, indent=2)
    if out is not None:
        write_atomically(out / "bench-collect.json", text.encode())
        draw(results, setting, out / "bench-collect.png")
        console.print(
            f"\nwritten: {out / 'bench-collect.json'}, {out / 'bench-collect.png'}", highlight=False
        )
    if options.json:
        print(text)
    return 0


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(at_least(1)(part) for part in text.split(","))
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"{option}: {error}") from None
