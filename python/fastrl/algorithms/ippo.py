"""Independent PPO: de Witt et al., "Is Independent Learning All You Need in the StarCraft Multi-Agent Challenge?",
2020, arXiv:2011.09533."""

from fastrl.algorithms.mappo import MAPPO


class IPPO(MAPPO):
    """Independent PPO: as `MAPPO`, but each critic sees what its agent observes."""

    name = "ippo"
    summary = "PPO of many agents; each critic sees what its agent sees"

    @property
    def central_critic(self) -> bool:
        return False
