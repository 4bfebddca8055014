"""Independent PPO: de Witt et al., "Is Independent Learning All You Need in the StarCraft Multi-Agent Challenge?",
2020, arXiv:2011.09533."""

from fastrl.algorithms.mappo import MAPPO
from fastrl.algorithms.multi_agent_settings import IPPODeclaration


class IPPO(IPPODeclaration, MAPPO):
    """Independent PPO: as `MAPPO`, but each critic sees what its agent observes."""

    @property
    def central_critic(self) -> bool:
        return False
