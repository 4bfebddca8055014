"""Export of trained policies to ONNX."""

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box

from fastrl import runtime
from fastrl._native._rust import __version__
from fastrl.envs.rows import space_state
from fastrl.exports import quantize as quantization
from fastrl.exports.arrays import ArrayPolicy, array_policy
from fastrl.exports.compare import Comparison, in_episodes, in_team_episodes, on_samples
from fastrl.exports.graph import AgentGraph, ExportError, PolicyGraph, TeamGraph
from fastrl.exports.onnx_file import require_onnx, write_onnx
from fastrl.model import Model
from fastrl.model_loading import load
from fastrl.play.policy import Policy
from fastrl.play.team_policy import TeamPolicy
from fastrl.runs.settings import table_of

# Observations that every export is compared on before it is kept.
_SAMPLES = 64


def export(
    run_or_model: str | Path | Model,
    path: str | Path,
    *,
    check: bool = False,
    quantize: str | None = None,
    episodes: int = 10,
    seed: int = 0,
    trust: bool = False,
    env: Any = None,
) -> Comparison:
    """Writes a trained policy to a file that needs no PyTorch.

    Everything that the policy does is in the file: normalisation of observations, action masks, memory, frame stacks,
    and the way to actions of the environment. `fastrl.runtime.load` reads it. The file is compared with the policy on
    some observations before it is kept.

    Args:
        run_or_model: a run directory, of which the newest checkpoint is taken, a checkpoint file, or a model.
        path: of the file: .onnx, or .npz for the arrays of a multi-layer perceptron, which the comparison's `code`
            acts with.
        check: also play both in the environment.
        quantize: "int8": convolutions and linear layers have 8 bits if the score then falls by less than one standard
            error and the file is smaller or faster (see `fastrl.exports.quantize`); else the plain export is written.
        episodes: of the check, and of the scores with and without int8.
        seed: of the observations and episodes that are compared.
        trust: the run may import code, as its checkpoint says.
        env: as of `fastrl.load`.

    Returns:
        The comparison of the plain export: of the check, else on observations drawn from the observation space.

    Raises:
        ExportError: the policy cannot be exported, or the export acts in another way.
        UserError: as of `fastrl.load`.
    """
    path = Path(path)
    if path.suffix not in (".onnx", ".npz"):
        raise ExportError(f"{path}: expected a name that ends with .onnx or .npz")
    if quantize not in (None, "int8"):
        raise ExportError(f"quantize: expected 'int8' or None, got {quantize!r}")
    if quantize and path.suffix == ".npz":
        raise ExportError("int8 is for files .onnx")
    if path.suffix == ".onnx":
        require_onnx()
    model = run_or_model if isinstance(run_or_model, Model) else load(run_or_model, trust=trust, env=env)
    graph, space, spaces = graph_of(model)
    arrays = _arrays_of(model, graph) if path.suffix == ".npz" else None
    if quantize and isinstance(graph, TeamGraph):
        raise ExportError("int8 is for policies of one agent")
    trial, small = (path.with_name(f".{path.stem}.{name}{path.suffix}") for name in ("trial", "int8"))
    policy: Any
    try:
        if arrays is not None:
            arrays.save(trial)
            policy = arrays.player(trial, graph)
        else:
            write_onnx(graph, {**_facts(model), **spaces}, trial)
            policy = runtime.load(trial, seed=seed)
        found = on_samples(model, policy, space, _SAMPLES, seed=seed)
        if check and not found.different:
            compare = in_team_episodes if isinstance(graph, TeamGraph) else in_episodes
            found = compare(model, model.task, model.play_settings, policy, episodes, seed=seed)
        if found.different:
            raise ExportError(f"{path} was not written, for the export acts in another way: {found}")
        if quantize:
            found.quantization = quantization.quantize(
                trial, small, model.task, model.play_settings, episodes=episodes, seed=seed
            )
        is_small = found.quantization is not None and found.quantization.accepted
        (small if is_small else trial).replace(path)
    finally:
        trial.unlink(missing_ok=True)
        small.unlink(missing_ok=True)
    if arrays is not None:
        found.code = arrays.code_for(path)
    return found


def _arrays_of(model: Model, graph: PolicyGraph) -> ArrayPolicy:
    if not isinstance(graph, AgentGraph):
        raise ExportError("plain numpy is for policies of one agent: export to .onnx")
    if model.task.has_action_masks(model.stage_settings):
        raise ExportError("plain numpy knows no action masks: export to .onnx")
    assert isinstance(model.policy, Policy), "a graph of one agent"
    return array_policy(graph, model.policy)


def graph_of(model: Model) -> tuple[PolicyGraph, Any, dict[str, Any]]:
    """The graph of a model's policy, the space of observations to compare it on, and the metadata about spaces."""
    state, task = model.policy_checkpoint, model.task
    if not isinstance(state.get("policy"), dict):
        raise ExportError(f"policies of {state['algorithm']} cannot be exported")
    if "actor" in state["policy"]:
        name = state["policy"]["actor"]
        raise ExportError(
            f"{name}, the algorithm's own actor, draws actions in its own way: it cannot be exported"
        )
    policy = model.policy
    if isinstance(policy, TeamPolicy):
        form = policy.form
        team = TeamGraph(state["policy"], policy.obs_dim, form)
        if form is None:
            shape = team.description["obs"][0]["shape"]
            obs: Any = Box(-1, 1, tuple(shape), np.float32)
            return team, obs, {"obs_space": space_state(obs), "action_space": state["policy"]["actions"]}
        space = {agent: rows.space for agent, rows in zip(form.agents, form.obs_rows, strict=True)}
        return (
            team,
            space,
            {
                "obs_space": {str(agent): space_state(child) for agent, child in space.items()},
                "action_space": {
                    str(agent): space_state(rows.space)
                    for agent, rows in zip(form.agents, form.action_rows, strict=True)
                },
            },
        )
    obs_space, action_space = policy.obs_space, policy.action_space
    graph = AgentGraph(
        state["policy"],
        obs_space,
        action_space,
        squash=policy.squash,
        stack=task.name == "pixels",
        stack_first=policy.frames_first,
    )
    return graph, obs_space, {"obs_space": space_state(obs_space), "action_space": space_state(action_space)}


def _facts(model: Model) -> dict[str, Any]:
    """Metadata about the run."""
    state, settings = model.policy_checkpoint, model.settings
    table = table_of(state["algorithm"])
    return {
        "algorithm": state["algorithm"],
        "environment": state["environment"],
        "steps": model.steps,
        "version": __version__,
        "settings": {name: settings[name] for name in ("env", table) if name in settings},
    }
