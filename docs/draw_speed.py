"""Draws what the documentation says of speed from the results in docs/benchmarks/data: python docs/draw_speed.py

Writes docs/benchmarks/measured.md with its charts, docs/images/speed.svg, and the README's paragraph about speed.
`python benches/measure.py docs/benchmarks/data` measures the results.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from fastrl.utils.files import write_atomically

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benches"))
import report
from results import Benchmark, ResultError, Spread, read_all

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "docs" / "benchmarks"
CHART = ROOT / "docs" / "images" / "speed.svg"
README = ROOT / "README.md"
PARAGRAPH = re.compile(r"(?<=<!-- Written by docs/draw_speed.py -->\n\n).*?(?=\n\n)", re.DOTALL)


@dataclass(frozen=True)
class Comparison:
    """Two contenders of a case of a result, and their names in words."""

    what: str
    beside: str
    result: str  # topic and name
    case: str
    ours: str
    other: str

    def ratio(self, results: Sequence[Benchmark]) -> Spread:
        """Ratio of our speed to the other one's.

        Raises:
            ResultError: it was not measured.
        """
        for result in results:
            if f"{result.topic} {result.name}" == self.result:
                for case in result.cases:
                    if case.name == self.case and {self.ours, self.other} <= set(case.rates):
                        return result.ratio(case, self.ours, self.other)
        raise ResultError(f"the results lack {self.result}, {self.case}: {self.ours} beside {self.other}")


CAGE2 = Comparison(
    "CAGE Challenge 2, 4,096 games",
    "CybORG",
    "envs cage2",
    "CAGE Challenge 2, B_line",
    "fastrl, 4,096 at a time",
    "CybORG",
)
CAGE4 = Comparison(
    "CAGE Challenge 4, 1,024 games",
    "CybORG",
    "cage4_cyborg beside_cyborg",
    "fsm",
    "fastrl, fast, 1,024 at a time",
    "CybORG",
)
HIGHWAY = Comparison(
    "highway-fast-v0, one environment",
    "highway-env",
    "envs highway",
    "highway-fast-v0",
    "fastrl, gymnasium.make",
    "highway-env",
)
HIGHWAYS = Comparison(
    "highway-fast-v0, 64 environments",
    "highway-env",
    "envs highway",
    "highway-fast-v0",
    "fastrl, gymnasium.make_vec, 64",
    "highway-env",
)
PPO = Comparison(
    "PPO on CAGE Challenge 2",
    "Stable-Baselines3",
    "ppo ppo_beside_stable_baselines3[relu]",
    "2x64 relu",
    "fastrl",
    "Stable-Baselines3",
)
BARS = (
    CAGE2,
    CAGE4,
    HIGHWAYS,
    HIGHWAY,
    Comparison(
        "highway-fast-v0, 64 environments",
        "EnvPool",
        "traffic highways[fast-highway-fast-v0]",
        "highway-fast-v0",
        "fastrl, gymnasium.make_vec, 64",
        "EnvPool, 64",
    ),
    Comparison(
        "ring road with 22 vehicles, 1,024 rings",
        "libsumo alone",
        "traffic rings",
        "ring-v0, 22 vehicles",
        "fastrl, 1024",
        "libsumo alone, the simulation",
    ),
    Comparison(
        "cooperative driving, 15 agents",
        "VMAS (another road task)",
        "traffic cooperation",
        "coop-highway-v0, 15 agents",
        "fastrl, 64, idle",
        "VMAS, 64, road_traffic",
    ),
    Comparison(
        "queue between processes, 64 bytes",
        "faster-fifo, packed batches",
        "queue records",
        "64 B, 1 producer, processes",
        "fastrl, in batches",
        "faster-fifo, packed",
    ),
    Comparison(
        "prioritized replay, sample and update",
        "cpprb",
        "replay sampling",
        "prioritized with updates, 1,000,000 stored",
        "fastrl",
        "cpprb",
    ),
    Comparison(
        "Python environments in processes",
        "AsyncVectorEnv",
        "envs processes",
        "CartPole-v1, 8 environments",
        "fastrl ProcessVectorEnv, 2 workers",
        "gymnasium AsyncVectorEnv(shared_memory=True)",
    ),
    PPO,
    *(
        Comparison(
            "SAC on Pendulum, 64x64, one core",
            peer,
            "sac pendulum",
            "Pendulum-v1, 64 x 64, minibatches of 100",
            "fastrl",
            peer,
        )
        for peer in ("RLtools", "Stable-Baselines3")
    ),
)


def times(ratio: float) -> str:
    """A ratio with two significant digits: ``39,000``, ``5.1``."""
    digits = 2 - len(f"{int(ratio)}")
    return f"{round(ratio, digits):,.0f}" if ratio >= 10 else f"{ratio:.1f}"


def paragraph(results: Sequence[Benchmark]) -> str:
    """The README's first paragraph.

    Raises:
        ResultError: something of it was not measured.
    """
    ppo, cage2, cage4, one, many = (
        times(each.ratio(results).median) for each in (PPO, CAGE2, CAGE4, HIGHWAY, HIGHWAYS)
    )
    words = (
        f"fastrl trains reinforcement-learning agents as fast as one machine allows. Its PPO learns {ppo} times as fast"
        f" as that of Stable-Baselines3; its simulators run {cage2} times (CAGE Challenge 2), {cage4} times (CAGE"
        f" Challenge 4) and {one} to {many} times (highway-env) as fast as the originals."
    )
    return textwrap.fill(words, 120, break_on_hyphens=False)


def draw(results: Sequence[Benchmark]) -> Figure:
    """Ratios of speed on a logarithmic axis with their quartiles, the largest at the top; those that were measured."""
    found = []
    for each in BARS:
        try:
            found.append((each.ratio(results), each))
        except ResultError as error:
            print(f"left out of the chart: {error}", file=sys.stderr)
    ratios = sorted(found, key=lambda pair: pair[0].median)
    spreads = [spread for spread, _ in ratios]
    figure = Figure(figsize=(8.2, 0.42 * len(ratios) + 0.9), layout="constrained")
    axes = figure.subplots()
    places = range(len(ratios))
    medians = [spread.median for spread in spreads]
    whiskers = [
        [spread.median - spread.low for spread in spreads],
        [spread.high - spread.median for spread in spreads],
    ]
    axes.barh(
        places, medians, height=0.62, color="#2274a5", xerr=whiskers, ecolor="#101010", error_kw={"lw": 1.2}
    )
    axes.set_yticks(places, [f"{each.what}\nbeside {each.beside}" for _, each in ratios], fontsize=8)
    for place, spread in zip(places, spreads, strict=True):
        axes.text(spread.high * 1.15, place, f"{times(spread.median)} ×", va="center")
    axes.set(xscale="log", xlim=(min(1, 0.5 * min(medians)), 10 * max(medians)))
    axes.set_xlabel("times as fast as the peer (logarithmic); median and quartiles of the rounds")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure


def save(figure: Figure, path: Path) -> None:
    """An SVG that is the same in each run."""
    with mpl.rc_context({"svg.hashsalt": "fastrl", "svg.fonttype": "path"}):
        figure.savefig(path, metadata={"Date": None, "Creator": None}, facecolor="white")


def main() -> None:
    """Writes page, charts and paragraph."""
    results = read_all(BENCHMARKS / "data")
    written = report.write(BENCHMARKS / "data", BENCHMARKS)
    save(draw(results), CHART)
    text = PARAGRAPH.sub(paragraph(results), README.read_text(encoding="utf-8"))
    write_atomically(README, text.encode())
    print(*written, CHART, README, sep="\n")


if __name__ == "__main__":
    try:
        main()
    except ResultError as error:
        sys.exit(f"draw_speed.py: error: {error}")
