"""The real CybORG of CAGE Challenge 4, a checkout of cage-challenge/cage-challenge-4, where it can be imported.

FASTRL_CYBORG4 names the checkout where PYTHONPATH has none, or that of another challenge.
"""

import contextlib
import importlib
import io
import os
import sys
import warnings
from typing import Any


def make_cyborg(seed: int) -> Any:
    """The game of the challenge's evaluation; None where it cannot be imported."""
    if (checkout := os.environ.get("FASTRL_CYBORG4")) and checkout not in sys.path:
        sys.path.insert(0, checkout)
    # The old gym, on which CybORG is built, prints warnings about its age.
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            module, agents, scenarios, _ = map(
                importlib.import_module,
                (
                    "CybORG",
                    "CybORG.Agents",
                    "CybORG.Simulator.Scenarios.EnterpriseScenarioGenerator",
                    "CybORG.Agents.Wrappers.BlueFlatWrapper",
                ),
            )
        except ImportError:
            return None
    scenario = scenarios.EnterpriseScenarioGenerator(
        blue_agent_class=agents.SleepAgent,
        green_agent_class=agents.EnterpriseGreenAgent,
        red_agent_class=agents.FiniteStateRedAgent,
        steps=500,
    )
    return module.CybORG(scenario, "sim", seed=seed)
