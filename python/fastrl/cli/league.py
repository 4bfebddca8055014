"""The command ``fastrl league``: who beats whom among defenders and attackers of CAGE Challenge 2."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from fastrl.cli.arguments import (
    Arg,
    Count,
    Name,
    Picture,
    at_least,
    check_folders,
    command,
    import_from_here,
    present,
)
from fastrl.runs.curves import SUFFIXES
from fastrl.utils.progress import Progress, load_torch


@command("{prog} runs/a runs/b --attackers bline meander reds/seed0.safetensors --figure league.png")
def league(
    arguments: list[str],
    defenders: Annotated[
        Sequence[Name],
        Arg(
            "runs of cage2, or of blue in cage2-game, checkpoint files, or agents: my_agent:Agent", "DEFENDER"
        ),
    ],
    *,
    attackers: Annotated[
        Sequence[Name],
        Arg("bline, meander, sleep, and runs of red in cage2-game or checkpoint files", "ATTACKER"),
    ] = ("bline", "meander"),
    episodes: Annotated[int, at_least(2, 100_000), Arg("episodes of each pair")] = 500,
    episode_length: Annotated[Count, Arg("steps of an episode")] = 100,
    ruleset: Annotated[Literal["main", "leaderboard", "plusplus"], Arg("of the games")] = "main",
    json: Annotated[Path | None, Arg("also write everything that was found, as JSON", "FILE")] = None,
    figure: Annotated[Picture | None, Arg(f"also draw the table, {' or '.join(SUFFIXES)}", "FILE")] = None,
) -> int:
    """Plays each defender of CAGE Challenge 2 against each attacker: a table of the defenders' returns, ratings of both
    by Nash averaging, and for each defender the opponents to train it against, with priorities by what they cost it
    (prioritised fictitious self-play)."""
    check_folders(json, figure)
    for name in defenders:
        import_from_here(name)
    load_torch(arguments)
    from fastrl.tasks.cage2_game.league import league as play_league

    with Progress("playing", len(defenders) * len(attackers)) as progress:
        found = play_league(
            defenders,
            attackers,
            episodes=episodes,
            ruleset=ruleset,
            episode_length=episode_length,
            advance=progress.advance,
        )
    present(
        found,
        json,
        figure,
        pictures="fastrl.tasks.cage2_game.league_figure",
        said=f"{episodes} episodes of each pair",
    )
    return 0
