"""Settings of the games of CAGE Challenge 2, whatever is trained on them."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from fastrl.envs.cage2.env import ACTIONS, RED_AGENTS, action_indices, red_mix
from fastrl.envs.cage2.memory import Memory, Observe, Ruleset
from fastrl.tasks.preset_file import PresetFile
from fastrl.utils.config import ConfigError, Setting, section

if TYPE_CHECKING:
    from fastrl.envs.cage2.scenario import Cage2Scenario


def parse_red_agent(value: Any) -> str:
    """``"bline"``, ``"mix"``, ``"bline:0.5,meander:0.5"`` or a table of weights, in one spelling.

    Raises:
        ValueError: an unknown agent, or weights that are no weights.
    """
    if value == "mix":
        value = red_mix(value)
    if isinstance(value, str):
        pairs = [part.partition(":") for part in value.replace(" ", "").split(",")]
        weights = {name: weight if colon else "1" for name, colon, weight in pairs}
        repeated = len(weights) != len(pairs)
    else:
        weights, repeated = dict(value) if isinstance(value, Mapping) else {}, False
    try:
        shares = {name: float(weight) for name, weight in weights.items()}
    except (TypeError, ValueError):
        shares = {}
    good = all(math.isfinite(number) and number > 0 for number in shares.values())
    if not shares or repeated or not good or not shares.keys() <= set(RED_AGENTS):
        raise ValueError(
            f"should be mix, one of {', '.join(RED_AGENTS)}, or several with weights such as"
            " bline:0.5,meander:0.5"
        )
    if len(shares) == 1:
        return next(iter(shares))
    return ",".join(f"{name}:{number:g}" for name, number in shares.items())


def red_weights(red_agent: str) -> dict[str, float]:
    """Weights by name from a spelling that `parse_red_agent` gives."""
    pairs = (part.partition(":") for part in red_agent.split(","))
    return {name: float(weight or 1) for name, _, weight in pairs}


def _check_actions(actions: Any) -> Any:
    try:
        action_indices(actions)
    except ValueError:
        raise ValueError(f"should be different indices from 0 to {len(ACTIONS) - 1}") from None
    return actions


@section
class GameConfig:
    """The games of CAGE Challenge 2."""

    red_agent: Annotated[
        str,
        BeforeValidator(parse_red_agent),
        Field(
            description="bline, meander or sleep, or several with the weights by which each episode's is drawn; mix:"
            " bline and meander, half each"
        ),
        Setting(option="--red-agent"),
    ] = "bline:0.5,meander:0.5"
    ruleset: Annotated[
        Ruleset,
        Field(
            description="main: today's CybORG; leaderboard: the one that the leaderboard was scored on; plusplus: as"
            " CybORG++ has mended it"
        ),
        Setting(option="--ruleset"),
    ] = "main"
    episode_length: Annotated[int, Field(ge=1, le=1_000_000, description="steps of an episode")] = 100
    memory: Annotated[
        Memory,
        Field(
            description="what the defender observes of its own past, after the challenge's 52 bits: none; scan: which"
            " hosts were scanned; decoys: also which of its decoys stand; full: also when and how often it analysed,"
            " removed and restored and saw scans and exploits on each host, its last action, and the time"
        ),
    ] = "scan"
    observe: Annotated[
        Observe,
        Field(
            description="blue: what a defender can see; truth: after that the true state of the game, which no defender"
            " can see, for a bound"
        ),
    ] = "blue"
    actions: Annotated[
        Literal["effective"] | tuple[int, ...] | None,
        AfterValidator(_check_actions),
        Field(
            description="actions that the agent may choose: effective: those that can have an effect; a list of"
            " indices; none: all 145"
        ),
    ] = "effective"

    @property
    def env_id(self) -> str:
        return "fastrl/Cage2-v0"

    def action_facts(self) -> dict[str, Any]:
        """The actions that the defender may choose, among how many, as checkpoints have them."""
        return {"actions": list(action_indices(self.actions)), "num_actions": len(ACTIONS)}

    def options(self) -> dict[str, Any]:
        """Options of the environments, as they name them."""
        return {
            "ruleset": self.ruleset,
            "red_agent": red_weights(self.red_agent),
            "episode_length": self.episode_length,
            "memory": self.memory,
            "observe": self.observe,
            "actions": self.actions,
        }


NumGames = Annotated[
    int,
    Field(ge=1, le=1_000_000, description="games that are stepped together"),
    Setting(option="--num-envs"),
]


@section
class EnvConfig(GameConfig):
    """CAGE Challenge 2, see fastrl.envs.Cage2VectorEnv."""

    num_envs: NumGames = 256
    scenario: Annotated[
        Path | None,
        AfterValidator(lambda path: path and path.absolute()),
        Field(
            description="a scenario file in CybORG's YAML that is played in place of the challenge's network"
        ),
        Setting(option="--scenario"),
    ] = None
    rows: Annotated[
        int | None,
        Field(
            ge=2,
            le=32,
            description="with a scenario: the defender observes so many rows, one for each host, and acts on rows, as"
            " fastrl.envs.cage2.rows says, for networks of several sizes; none: bits of the hosts of one network",
        ),
        Setting(option="--rows"),
    ] = None

    @property
    def env_id(self) -> str:
        return super().env_id if self.rows is None else "fastrl/Cage2Rows-v0"

    def action_facts(self) -> dict[str, Any]:
        if self.rows is not None:
            from fastrl.envs.cage2.rows import num_actions  # what other games do not need

            return {"actions": list(range(num_actions(self.rows))), "num_actions": num_actions(self.rows)}
        if (scenario := self.own_scenario()) is None:
            return super().action_facts()
        return {
            "actions": list(action_indices(self.actions, scenario)),
            "num_actions": len(scenario.actions),
        }

    def own_scenario(self) -> "Cage2Scenario | None":
        """The scenario of the file; None without one.

        Raises:
            ScenarioError: it cannot be read or played.
        """
        if self.scenario is None:
            return None
        from fastrl.envs.cage2.scenario import load_scenario  # what the challenge's network does not need

        return load_scenario(self.scenario)

    def options(self) -> dict[str, Any]:
        options, own = super().options(), {"scenario": str(self.scenario)}
        if self.rows is None:
            return options if self.scenario is None else options | own
        if self.scenario is None:
            raise ConfigError("--rows is for networks of a scenario file: name one with --scenario")
        if self.memory in ("decoys", "full") or self.observe != "blue" or isinstance(self.actions, tuple):
            raise ConfigError(
                "--rows has rows of its own: env.memory should be scan or none, env.observe blue, env.actions effective"
                " or none"
            )
        for name in ("memory", "observe", "actions"):
            del options[name]
        return options | own | {"rows": self.rows}


PRESETS = PresetFile(Path(__file__).with_name("presets.toml"))
