"""Settings of the games of CAGE Challenge 4."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from fastrl.envs.cage4.env import MESSAGE_BITS, RULES, RedAgent, Rewards, View
from fastrl.tasks.opponents import OpponentsConfig
from fastrl.tasks.preset_file import PresetFile
from fastrl.utils.config import Setting, section


def _check_rules(rules: str) -> str:
    names = rules.split("+")
    if rules != "original" and (not {*names} <= {*RULES} or len({*names}) < len(names)):
        raise ValueError(f"should be original, or some of {', '.join(RULES)} joined by +, each once")
    return rules


@section
class EnvConfig(OpponentsConfig):
    """CAGE Challenge 4, see fastrl.envs.cage4.env."""

    red_agent: Annotated[
        RedAgent,
        Field(description="fsm: that of the challenge's evaluation; discovery: DiscoveryFSRed"),
        Setting(option="--red-agent"),
    ] = "fsm"
    rules: Annotated[
        str,
        AfterValidator(_check_rules),
        Field(
            description=f"original, or mended rules joined by +: {', '.join(RULES)}; published scores are of original"
        ),
        Setting(option="--rules"),
    ] = "original"
    episode_length: Annotated[
        int, Field(ge=2, le=1000, description="steps of an episode, which ends one step earlier")
    ] = 500
    view: Annotated[
        View,
        Field(
            description="challenge: the challenge's 210 values and 242 actions; hosts: the most suspicious hosts of an"
            " agent's zone in rows, with what it remembers of them, and 11 actions"
        ),
    ] = "hosts"
    messages: Annotated[
        int,
        Field(
            ge=0,
            le=MESSAGE_BITS,
            description="bits that an agent tells the others with each choice; 0: none; for view hosts",
        ),
    ] = 0
    rewards: Annotated[
        Rewards,
        Field(
            description="team: the challenge's; zone: each agent is rewarded for its zone and its own actions alone"
        ),
    ] = "zone"
    num_envs: Annotated[
        int,
        Field(ge=1, le=1_000_000, description="games that are stepped together"),
        Setting(option="--num-envs"),
    ] = 128
    num_threads: Annotated[
        int,
        Field(ge=0, le=1024, description="threads of the simulator; 0: one per core"),
        Setting(resumable=True),
    ] = 0

    def options(self) -> dict[str, Any]:
        """Options of the environments, as they name them."""
        names = ("red_agent", "rules", "episode_length", "view", "messages", "rewards", "num_threads")
        return {name: getattr(self, name) for name in names}


PRESETS = PresetFile(Path(__file__).with_name("presets.toml"))
