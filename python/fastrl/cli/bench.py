"""The command ``fastrl bench``: measures the simulator, the pixel pipeline and the collectors on this machine."""

import argparse
import dataclasses
from collections.abc import Mapping
from typing import Any

from fastrl.cli.arguments import at_least, import_from_here, path, positive
from fastrl.utils.command_line import ArgumentParser, add_options, read_arguments
from fastrl.utils.config import ConfigError, build, check, nearest
from fastrl.utils.env_options import read_options
from fastrl.utils.output import plain_console
from fastrl.utils.progress import Progress, load_torch
from fastrl.utils.tables import show


def bench(prog: str, arguments: list[str]) -> int:
    """Measures the simulator, the pixel pipeline or the collectors."""
    if arguments and arguments[0] == "collect":
        return _bench_collect(f"{prog} collect", arguments[1:])
    if arguments and arguments[0] == "pixels":
        return _bench_pixels(f"{prog} pixels", arguments[1:])
    if arguments and not arguments[0].startswith("-"):
        if arguments[0] != "cage2":
            names = ("cage2", "pixels", "collect")
            raise ConfigError(f"cannot measure {arguments[0]}; did you mean {nearest(arguments[0], names)}?")
        arguments = arguments[1:]
    return _bench_cage2(prog, arguments)


def _bench_cage2(prog: str, arguments: list[str]) -> int:
    """Measures the steps per second of the simulator of CAGE 2."""
    from fastrl.benchmarks.cage2 import SIZES, measure, speed_table
    from fastrl.utils.files import to_json

    parser = ArgumentParser(
        prog=prog,
        usage=f"{prog} [cage2] [options]\n       {prog} pixels [options], see {prog} pixels --help"
        f"\n       {prog} collect [options], see {prog} collect --help",
        description="Measures the steps per second of the simulator of CAGE Challenge 2, on one thread and on all"
        " cores. pixels measures the transport of experience from games to a learner, collect the collectors.",
    )
    parser.add_argument(
        "--seconds", type=positive, default=1.0, metavar="FLOAT", help="seconds of each measurement [1]"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON and nothing else")
    options = parser.parse_args(arguments)
    # Threads share environments, so a single one needs no second thread.
    cases = [(num_envs, threads) for num_envs in SIZES for threads in ((1, 0) if num_envs > 1 else (1,))]
    speeds = []
    with Progress("measuring", len(cases)) as progress:
        for num_envs, threads in cases:
            progress.describe(
                f"measuring {num_envs:,} environments, {'all cores' if threads == 0 else '1 thread'}"
            )
            speeds.append(measure(num_envs, threads, options.seconds))
            progress.advance()
    if options.json:
        print(to_json([dataclasses.asdict(speed) for speed in speeds], indent=2))
    else:
        show(plain_console(), speed_table(speeds))
    return 0


def _bench_pixels(prog: str, arguments: list[str]) -> int:
    """Compares transports of experience from actors to a learner."""
    load_torch(arguments)
    from fastrl.benchmarks.pixels import WAYS, compare, flow_table
    from fastrl.tasks.pixels.settings import BENCH
    from fastrl.tasks.pixels.task import TASK
    from fastrl.utils.files import to_json

    parser = ArgumentParser(
        prog=prog,
        usage=f"{prog} [options]",
        description="Compares four transports of experience from actors to a learner, in turns: fastrl.queue,"
        " multiprocessing.Queue, one buffer with a lock, and none.",
        epilog="Every setting of fastrl train pixels can be given. The defaults are those [in brackets], except for\n"
        f"{_settings_of(BENCH)}\n"
        "That is a cheap game, random actions and a small learner, so that mostly the transport is"
        " measured. With another --env, replay and learner keep this size, and all other settings are those of"
        " that environment's preset.",
    )
    parser.add_argument(
        "--seconds", type=positive, default=5.0, metavar="FLOAT", help="seconds of each measurement [5]"
    )
    parser.add_argument(
        "--rounds",
        type=at_least(1),
        default=3,
        metavar="INT",
        help="how often each of the four is measured [3]",
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON and nothing else")
    config_type = TASK.settings_type(TASK.run.algorithm)
    add_options(parser, config_type)
    options = parser.parse_args(arguments)
    layers = [check(config_type, BENCH, "bench"), read_arguments(config_type, options)]
    env_id = build(config_type, *layers).env.id
    import_from_here(env_id)
    if env_id != BENCH["env"]["id"]:
        layers[0] = {key: value for key, value in layers[0].items() if not key.startswith("env.")}
        layers = [TASK.preset_values(config_type, name) for name in TASK.default_presets(env_id)] + layers
    settings = build(config_type, *layers)
    try:
        with Progress("measuring", options.rounds * len(WAYS)) as progress:
            flows = compare(settings, options.seconds, options.rounds, progress)
    except (ValueError, ImportError, TypeError) as error:
        raise ConfigError(str(error)) from error
    if options.json:
        print(to_json([dataclasses.asdict(flow) for flow in flows], indent=2))
    else:
        show(plain_console(), flow_table(flows, settings))
    return 0


def _settings_of(tree: Mapping[str, Mapping[str, Any]]) -> str:
    """The options that give these settings."""
    pairs = (f"--{table}.{name}={_text(value)}" for table, own in tree.items() for name, value in own.items())
    return " ".join(pairs)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bench_collect(prog: str, arguments: list[str]) -> int:
    """Compares collectors on an environment."""
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
        description="Compares collectors on one environment, each with several numbers of workers, and measures the"
        " costs that the executor avoids: barriers, pickled weights, rebuilt environments. Whole episodes are"
        " collected, without learning.",
        epilog="environments: fastrl/Cage2-v0; fastrl/Uneven-v0, whose steps sleep for uneven times (or compute, with"
        " --env-options busy=true); fastrl/CybORG-v0, where CybORG is installed; any of Gymnasium's;"
        " module:factory",
    )
    parser.add_argument(
        "--env",
        default="fastrl/Uneven-v0",
        metavar="ID",
        help="environment, see below [fastrl/Uneven-v0]",
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
        help=f"collectors [{','.join(METHODS)}]",
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
        help="hidden layers of a network with random weights that chooses the actions [random actions]",
    )
    parser.add_argument(
        "--seconds", type=positive, default=5.0, metavar="FLOAT", help="seconds of each measurement [5]"
    )
    parser.add_argument(
        "--rounds",
        type=at_least(1),
        default=1,
        metavar="INT",
        help="measurements of each case, in turns [1]",
    )
    parser.add_argument(
        "--max-steps",
        type=at_least(1),
        default=1000,
        metavar="INT",
        help="steps after which an episode is cut off [1000]",
    )
    parser.add_argument(
        "--no-prices",
        action="store_true",
        help="do not measure barriers, pickled weights and rebuilt environments",
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
    # Small weights cost nothing, so costs are measured with a large network.
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
