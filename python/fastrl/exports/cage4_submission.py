"""Submissions to CAGE Challenge 4: one Python file that plays a trained team in the real CybORG, with NumPy alone."""

import base64
import inspect
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastrl._native._rust import __version__
from fastrl.envs.cage4.env import Cage4VectorEnv
from fastrl.exports import cage4_agent
from fastrl.exports.cage4_agent import BlueAgent, blue_agents
from fastrl.exports.compare import Comparison
from fastrl.exports.graph import ExportError
from fastrl.model import Model
from fastrl.model_loading import load
from fastrl.networks.multi_agent import MultiAgentPolicy
from fastrl.play.team_policy import TeamPolicy
from fastrl.utils.files import atomic_file

# Steps of an episode that every file is compared with its policy in; enough for actions that last.
_STEPS = 40

_HEAD = '''"""Five defenders for CAGE Challenge 4 (CybORG 4.0), trained for {steps:,} steps by fastrl {version}.

Named submission.py in a folder of its own, it is what the challenge's evaluation plays:

    python CybORG/Evaluation/evaluation.py FOLDER RESULTS

It takes the most probable actions. It needs CybORG and NumPy alone. Names are in the class Submission at the end.
"""
'''

_TAIL = '''

from CybORG.Agents.Wrappers import BlueFlatWrapper  # noqa: E402


class StartingWrapper(BlueFlatWrapper):
    """The challenge's wrapper with padded spaces, which tells agents when an episode starts and in which network."""

    def reset(self, *args, **kwargs):
        observations, info = super().reset(*args, **kwargs)
        for name, agent in Submission.AGENTS.items():
            agent.start(self.action_mask(name))
        return observations, info

    def step(self, actions=None, messages=None, **kwargs):
        messages = {{name: agent.view.message for name, agent in Submission.AGENTS.items()}}
        return super().step(actions, messages=messages, **kwargs)


class Submission:
    NAME = {name!r}
    TEAM = "fastrl"
    TECHNIQUE = {technique!r}
    AGENTS = {{}}

    @staticmethod
    def wrap(env):
        return StartingWrapper(env, pad_spaces=True)


POLICIES = [
{policies}
]
for agent in blue_agents(POLICIES, {members}, **{view}):
    Submission.AGENTS[f"blue_agent_{{agent.number}}"] = agent
'''


def export_submission(
    run_or_model: str | Path | Model,
    path: str | Path,
    *,
    check: bool = False,
    episodes: int = 10,
    seed: int = 0,
    trust: bool = False,
    env: Any = None,
) -> Comparison:
    """Writes a team that was trained on CAGE Challenge 4 as a submission to the challenge.

    The file acts greedily, with the memory and the action masks that the policy was trained with. It is compared with
    the policy in a game before it is kept.

    Args:
        run_or_model: a run directory, a checkpoint file or a model.
        path: of a new file.
        check: compare them in whole episodes of 500 steps.
        episodes: of the check.
        seed: of the episodes.
        trust, env: as of `fastrl.load`.

    Raises:
        ExportError: a policy of another game or of a network that this has no code for, a file that exists, or one
            that acts in another way.
        UserError: as of `fastrl.load`.
    """
    path = Path(path)
    if path.exists():
        raise ExportError(f"{path} exists: choose another name, or remove it")
    model = run_or_model if isinstance(run_or_model, Model) else load(run_or_model, trust=trust, env=env)
    if model.task.name != "cage4":
        raise ExportError(
            f"a submission to CAGE Challenge 4 is a run of fastrl train cage4, this one is of {model.task.name}"
        )
    if model.settings["env"]["learners"]:
        raise ExportError(
            "a submission to CAGE Challenge 4 has all five defenders, this run learns to play some"
        )
    policies, members = _described(model)
    games = model.stage_settings.env
    view = {"view": games.view} | ({"messages": games.messages} if games.messages else {})
    found = _compared(model, blue_agents(policies, members, **view), view, episodes if check else 0, seed)
    if found.different:
        raise ExportError(f"{path} was not written, for the export acts in another way: {found}")
    algorithm = model.policy_checkpoint["algorithm"]
    text = _HEAD.format(version=__version__, steps=model.steps)
    text += inspect.getsource(cage4_agent).split('"""', 2)[2]
    text += _TAIL.format(
        name=f"fastrl {algorithm}",
        technique=algorithm.upper(),
        policies="\n".join(map(_written, policies)),
        members=members,
        view=view,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        file.write(text.encode())
    return found


def _described(model: Model) -> tuple[list[dict[str, Any]], list[int]]:
    """The policies as `blue_agents` takes them, and the index of each agent's."""
    try:
        team = MultiAgentPolicy.from_state(model.policy_checkpoint["policy"])
    except ValueError as error:
        raise ExportError(f"agents that act by a rule cannot be exported: {error}") from None
    policies = []
    for name, network in team.networks.items():
        if (architecture := network.actor_architecture()) is None:
            raise ExportError(
                f"policy {name!r}: a submission has code for perceptrons with the activations relu and tanh alone"
            )
        weights = np.zeros(network.actor_nbytes // 4, "<f4")
        network.actor_weights(weights)
        policies.append(
            {
                "architecture": architecture,
                "ids": network.num_ids,
                "weights": base64.b64encode(weights.tobytes()).decode(),
            }
        )
    return policies, [list(team.networks).index(name) for name in team.names]


def _written(policy: dict[str, Any]) -> str:
    """A policy as Python text."""
    weights = "\n".join(textwrap.wrap(policy["weights"], 120))
    return f'{{"architecture": {policy["architecture"]}, "ids": {policy["ids"]}, "weights": """\n{weights}\n"""}},'


def _compared(
    model: Model, agents: Sequence[BlueAgent], view: dict[str, Any], episodes: int, seed: int
) -> Comparison:
    """Compares choices in games of the same seed: the policy plays one with its view, the agents one with the
    challenge's, where they follow the policy's choices."""
    assert isinstance(model.policy, TeamPolicy)
    found, returns = Comparison(), []
    own, theirs = (
        Cage4VectorEnv(1, random="numpy", autoreset_mode="disabled", num_threads=1, **each)
        for each in (view, {})
    )
    for episode in range(max(episodes, 1)):
        (obs, _), (seen, _) = own.reset(seed=seed + episode), theirs.reset(seed=seed + episode)
        for agent, mask in zip(agents, theirs.action_masks(), strict=True):
            agent.start(mask)
        act = model.policy.act_in(own, action_masks=model.task.has_action_masks(model.stage_settings))
        alive, states, total = np.ones(len(agents), np.bool_), None, 0.0
        for _ in range(own.episode_length - 1 if episodes else _STEPS):
            actions, states = act(obs.reshape(len(agents), -1), alive, states)
            chosen, logits = zip(
                *(agent.choose(row) for agent, row in zip(agents, seen[0], strict=True)), strict=True
            )
            found.add(np.array(chosen), actions, np.stack(logits))
            followed = [agent.view.act(int(action)) for agent, action in zip(agents, actions, strict=True)]
            obs, rewards, *_ = own.step(actions.reshape(1, -1))
            theirs.send(np.packbits([agent.view.message for agent in agents]).reshape(1, -1))
            seen, *_ = theirs.step(np.array([followed]))
            total += float(rewards.mean())
        returns.append(total)
    if episodes:
        found.episodes, found.mean_return = episodes, float(np.mean(returns))
    return found
