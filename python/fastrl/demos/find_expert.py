"""Finds the expert that a text names: a run, a checkpoint, a scripted policy, a function, another library's model."""

from __future__ import annotations

import hashlib
import inspect
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium

from fastrl.collectors.expert import ExpertSpec, RandomExpert
from fastrl.collectors.team_spec import TeamSpec
from fastrl.demos.experts import (
    AgentExpert,
    FunctionExpert,
    PolicyExpert,
    TeamFunctionExpert,
    function_at,
    sb3_expert,
    team_policy_expert,
)
from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.envs.spec import EnvSpec
from fastrl.play.own_agent import is_agent
from fastrl.tasks import with_experts
from fastrl.utils.config import ConfigError
from fastrl.utils.files import parse_json
from fastrl.utils.trust import TrustError


def forms() -> str:
    """The kinds of experts, for messages."""
    scripted = ", ".join(folder.EXPERTS for folder in with_experts())
    others = "random, a zip file of Stable-Baselines3, module:function, or module:Agent"
    return f"a run directory, a checkpoint file, {scripted}, {others}"


def find_expert(
    expert: Any,
    env: gymnasium.Env[Any, Any],
    *,
    run: Run | None = None,
    deterministic: bool = True,
    trust: bool = False,
) -> ExpertSpec:
    """The expert that a text names, or a function of the caller's own.

    Args:
        expert: see `forms`, or a function from an observation to an action.
        env: the environment, as the expert will see it.
        run: what `find_run` found; None: it is looked for.
        deterministic: a policy takes its likeliest action; otherwise it draws.
        trust: a file may run code, as it says.

    Raises:
        ConfigError, CheckpointError, TrustError, CollectError: there is none, or it does not fit the environment.
    """
    if isinstance(expert, Path):
        expert = str(expert)
    if not isinstance(expert, str):
        return _function(expert, partial(FunctionExpert, expert), forms())
    path = Path(expert)
    if expert == "random":
        return ExpertSpec(expert, RandomExpert, {"kind": "random"}, batched=True)
    for folder in with_experts():
        if expert.startswith(folder.EXPERTS.partition("NAME")[0]):
            scripted: ExpertSpec = import_module(f"{folder.__name__}.experts").find_expert(expert, env)
            return scripted
    if path.is_file() and zipfile.is_zipfile(path):
        return _sb3(path, trust=trust)
    if (run := run or find_run(expert, trust=trust)) is not None:
        return _run_expert(run, env, deterministic=deterministic)
    if is_agent(expert) and inspect.isclass(function_at(expert)):
        make = partial(AgentExpert, expert, getattr(env.unwrapped, "agent_view", None))
        return ExpertSpec(expert, make, {"kind": "agent", "path": expert})
    return _function(expert, partial(FunctionExpert, expert), forms())


def find_team_expert(
    expert: Any, env: MultiAgentVectorEnv, *, run: Run | None = None, deterministic: bool = True
) -> ExpertSpec:
    """The expert for all agents of an environment that a text names, or a function of the caller's own.

    Args:
        expert: a run directory or checkpoint file of many agents, "random", ``"module:function"``, or a function from
            an observation and the name of its agent to an action.
        run: what `find_run` found.
        others: as of `find_expert`.

    Raises:
        ConfigError, CheckpointError, TrustError, CollectError: there is none, or it does not fit the environment.
    """
    if expert == "random":
        return ExpertSpec(expert, RandomExpert, {"kind": "random"})
    if run is not None:
        return _team_run(run, env, deterministic=deterministic)
    expected = "of many agents a run directory or a checkpoint file of theirs, random, or module:function"
    agents = list(zip(env.agents, env.obs_shapes, strict=True))
    return _function(expert, partial(TeamFunctionExpert, expert, agents), expected)


@dataclass(frozen=True)
class Run:
    """A run that is an expert.

    Attributes:
        path: its directory or checkpoint.
        state: of the checkpoint.
    """

    path: Path
    task: Any
    settings: Any
    state: Mapping[str, Any]

    def env(self) -> EnvSpec:
        """The environment that it was trained in, with its options, as its policy sees it."""
        found: EnvSpec = self.task.play_spec(self.settings)
        return found

    def team(self) -> tuple[TeamSpec, int] | None:
        """The environment of many agents that it was trained in, and the steps of its longest episode; None: it is a
        single agent's."""
        spec: TeamSpec | None = self.task.team_spec(self.settings)
        return None if spec is None else (spec, self.task.play_steps(self.settings))


def find_run(expert: Any, *, trust: bool = False) -> Run | None:
    """The run that an expert is; None for other experts.

    Raises:
        ConfigError, CheckpointError, TrustError: it is none, or damaged.
    """
    path = Path(expert) if isinstance(expert, str | Path) else None
    if path is None or not path.exists() or (path.is_file() and zipfile.is_zipfile(path)):
        return None
    from fastrl.tasks import find, load_saved
    from fastrl.training.run import load_run
    from fastrl.utils.trust import trusted_import

    kind, _ = load_saved(path)
    task = find(trusted_import("kind", kind, path, trust=trust))
    return Run(path, task, *load_run(task, path, trust=trust))


def _function(expert: Any, make: Callable[..., Any], expected: str) -> ExpertSpec:
    """The expert that is a function, or the import path of one.

    Args:
        expected: experts, for errors.
    """
    if not isinstance(expert, str):
        if not callable(expert):
            raise ConfigError(f"expert: expected {expected}, or a function; got {expert!r}")
        name = (
            f"{getattr(expert, '__module__', '?')}:{getattr(expert, '__qualname__', type(expert).__name__)}"
        )
        return ExpertSpec(name, make, {"kind": "function", "path": name})
    if not is_agent(expert):
        raise ConfigError(f"--expert {expert}: no such file; it should be {expected}")
    function_at(expert)
    return ExpertSpec(expert, make, {"kind": "function", "path": expert})


def _team_run(run: Run, env: MultiAgentVectorEnv, *, deterministic: bool) -> ExpertSpec:
    from fastrl.play.team_policy import TeamPolicy

    if run.team() is None:
        raise ConfigError(
            f"--expert {run.path} is a run of one agent, {env.name} has many: give a run of many"
        )
    policy = TeamPolicy(run.state["policy"])
    policy.check_fits(env)
    return ExpertSpec(
        str(run.path),
        partial(team_policy_expert, policy.team.actor_spec(), policy.team.num_agents, deterministic),
        _facts(run, deterministic=deterministic),
        action_masks=run.task.has_action_masks(run.settings),
    )


def _run_expert(run: Run, env: gymnasium.Env[Any, Any], *, deterministic: bool) -> ExpertSpec:
    policy = run.task.make_policy(run.state, run.settings, (env.observation_space, env.action_space))
    return ExpertSpec(
        str(run.path),
        partial(PolicyExpert, policy.actor, policy.squash, deterministic),
        _facts(run, deterministic=deterministic),
        action_masks=run.task.has_action_masks(run.settings),
        batched=getattr(policy.actor, "is_compiled", False),
    )


def _facts(run: Run, *, deterministic: bool) -> dict[str, Any]:
    """Facts of a run for ``meta.json``."""
    from fastrl.runs.checkpoint import find_checkpoint

    return {
        "kind": "run",
        "algorithm": run.state["algorithm"],
        "environment": run.state["environment"],
        "steps": int(run.state["steps"]),
        "deterministic": deterministic,
        "sha256": _digest(find_checkpoint(run.path)),
    }


def _sb3(path: Path, *, trust: bool) -> ExpertSpec:
    if not trust:
        raise TrustError(
            f"{path}: a model of Stable-Baselines3 is a pickle, which can run code; only if you trust this file, give"
            " --trust (in Python, trust=True)"
        )
    try:
        import stable_baselines3  # noqa: F401
    except ImportError:
        raise ConfigError(
            f"--expert {path} needs stable-baselines3, which is not installed: pip install 'fastrl[sb3]'"
        ) from None
    try:
        with zipfile.ZipFile(path) as file:
            data = parse_json(file.read("data"))
        policy = str(data["policy_class"]["__module__"])
    except (KeyError, ValueError, TypeError, zipfile.BadZipFile):
        raise ConfigError(f"--expert {path} is no model that Stable-Baselines3 has saved") from None
    package, _, rest = policy.partition(".")
    family = rest.partition(".")[0]
    if family == "common":
        family = "ppo" if "clip_range" in data else "a2c"
    classes = {"ppo": "PPO", "a2c": "A2C", "dqn": "DQN", "sac": "SAC", "td3": "TD3", "ddpg": "DDPG"}
    own = {"ppo_recurrent", "qrdqn", "tqc", "trpo", "ars", "crossq", "ppo_mask"}
    if package != "stable_baselines3" or family not in classes or family in own:
        raise ConfigError(
            f"--expert {path} is a model of {policy}; models of {', '.join(classes.values())} can be experts. Write a"
            " function that loads it, and give module:function"
        )
    algorithm = f"stable_baselines3.{family}.{family}:{classes[family]}"
    facts = {"kind": "stable-baselines3", "algorithm": classes[family], "sha256": _digest(path)}
    return ExpertSpec(str(path), partial(sb3_expert, str(path.resolve()), algorithm), facts)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
