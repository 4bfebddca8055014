"""Recording of demonstrations: an expert's episodes, by any collector, into a data set."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import VectorEnv

from fastrl.collectors.action_noise import Noise, NoiseKind
from fastrl.collectors.expert import ExpertSpec
from fastrl.collectors.factory import check_suits, choose, make_collector
from fastrl.collectors.protocol import CollectError, Collector
from fastrl.collectors.resources import WorkerCount, check_count, cores
from fastrl.collectors.synchronous import native_collector
from fastrl.collectors.vector_backends import native_vector_env
from fastrl.demos.actor import RecordingActor
from fastrl.demos.find_expert import Run, find_expert, find_run
from fastrl.demos.fragment_writing import FragmentWriter, TeamFragmentWriter
from fastrl.demos.plan import RecordedSpec, RecordingPlan
from fastrl.demos.team_plan import find_team, make_team_plan, with_env_options
from fastrl.envs import contract
from fastrl.envs.exact_rows import ExactRows, InfoKey, RecordedVectorEnv
from fastrl.envs.spec import EnvSpec, any_spec
from fastrl.play.episodes import build_any, episode_steps
from fastrl.play.play import play
from fastrl.replay.episode_writer import EpisodeWriter
from fastrl.replay.episodes import load
from fastrl.rollout.fragment import Fragment
from fastrl.utils.config import ConfigError
from fastrl.utils.errors import UserError
from fastrl.utils.interrupts import StopSignals
from fastrl.utils.seeding import NO_ENV, env_seed

# Bytes of episodes that wait to be written, at most, as far as their lengths are known.
PENDING_BYTES = 2**28

# Episodes that wait to be written, and those that are taken from the collector at once, at most.
MOST_PENDING, MOST_TAKEN = 8192, 128

# The most environments that are stepped together where they are compiled.
NATIVE_ENVS = 1024

# Steps in which keys of infos are looked for, and the most of them if some are missing.
_INFO_STEPS, _MOST_INFO_STEPS = 50, 500

# Bytes of observations that are handed to the writer together, at least, unless it is time for a flush.
BLOCK_BYTES = 2**22

# Seconds between checks of signals.
_POLL_S = 0.25

# Seconds after which whole episodes are on disk, also if they do not fill a file; more where the disk is slow, so that
# it takes a fiftieth of the time at most.
FLUSH_S, FLUSH_SHARE = 2.0, 0.02


class RecordError(UserError, RuntimeError):
    """A recording cannot be written; one line."""


def make_plan(
    spec: EnvSpec,
    expert: ExpertSpec,
    env: gymnasium.Env[Any, Any],
    episodes: int,
    *,
    seed: int,
    noise: Noise | None,
    max_episode_steps: int,
    infos: Sequence[InfoKey] = (),
) -> RecordingPlan:
    """The plan of a recording.

    Args:
        spec: builds environments; ``env`` is one of them.
        max_episode_steps: see `record`.

    Raises:
        ConfigError: spaces that cannot be recorded, or noise that the actions do not take.
    """
    obs_space, action_space = env.observation_space, env.action_space
    try:
        rows = ExactRows(obs_space, expert.sense, infos)
        if noise is not None:
            noise.check(action_space)
        recorded = RecordedSpec.of(spec, rows)
        make_actor = functools.partial(
            RecordingActor, expert.make, expert.name, rows, action_space, noise, seed, episodes
        )
        return RecordingPlan(
            recorded,
            make_actor,
            obs_space,
            action_space,
            num_envs=1,
            num_steps=episode_steps(env, max_episode_steps),
            unit="episodes",
            episodes=episodes,
            seed=seed,
            action_masks=expert.action_masks,
            actor_state=make_actor().state_size,
        )
    except ValueError as error:
        raise ConfigError(f"{spec.id}: {error}") from None


def find_infos(
    env: gymnasium.Env[Any, Any], name: str, keys: Sequence[str], seed: int
) -> tuple[InfoKey, ...]:
    """The forms of the values that an environment's infos have under some keys, from some steps of random actions.

    Args:
        keys: of infos; ("all",): every key whose value is a number or an array of numbers. "action_mask" that is no key
            is what the method ``action_masks()`` gives.

    Raises:
        ConfigError: a key was not found, or its values are no numbers.
    """
    every = tuple(keys) == ("all",)
    found: dict[str, InfoKey] = {}
    looks: dict[str, int] = {}
    infos = 0
    method = contract.mask_method(env) if contract.ACTION_MASK in keys else None

    def look(info: Mapping[str, Any]) -> None:
        nonlocal infos
        infos += 1
        info = contract.with_action_mask(info, method)
        for key in info if every else keys:
            if key not in info:
                continue
            looks[key] = looks.get(key, 0) + 1
            value = np.asarray(info[key])
            if value.dtype.kind in "biuf":
                before = found.get(key, InfoKey(key, value.dtype.str)).dtype
                found[key] = InfoKey(key, np.result_type(before, value.dtype).str, value.shape)
            elif not every:
                raise ConfigError(
                    f"{name}: info[{key!r}] is {contract.describe(info[key])}, which is no number"
                )

    seeds = itertools.chain([env_seed(seed, NO_ENV, 0)], itertools.repeat(None))
    steps = 0
    for step in play(lambda *_: (env.action_space.sample(), None), env, seeds, name=name):
        look(step.info)
        if step.episode == step.number == 0:
            env.action_space.seed(seed % 2**31)
        steps += step.number > 0
        most = _INFO_STEPS if every or len(found) == len(keys) else _MOST_INFO_STEPS
        if steps >= most and not step.is_last:
            break
    if missing := [key for key in keys if not every and key not in found]:
        raise ConfigError(f"{name}: the environment's infos have no {missing[0]!r}")
    # Where a value may be missing, NaN stands for it.
    return tuple(
        each if looks[each.key] == infos else dataclasses.replace(each, dtype=np.dtype(np.float64).str)
        for each in (found[key] for key in (sorted(found) if every else keys))
    )


class Recording:
    """Episodes of a plan in order, from any collector.

    Args:
        plan: what to record.
        first: the number of the first episode; those before it are there already.
        collector: "auto", "sequential", "sync", "executor", "native" or "ray".
        n_workers: processes, or threads of "native".
        expert: of the plan.
        log: called with a line that says which collector "auto" has chosen.
        options: further ones of the collector.

    Attributes:
        collector: that collects.
    """

    def __init__(
        self,
        plan: RecordingPlan,
        first: int,
        collector: str,
        n_workers: WorkerCount,
        expert: ExpertSpec,
        log: Callable[[str], object] | None = None,
        **options: Any,
    ) -> None:
        check_count(n_workers)
        self._next, self._end = first, plan.episodes
        left = self._end - first
        exact = plan.obs_rows
        self._early: dict[int, Fragment] = {}
        self._resources = contextlib.ExitStack()
        name = collector
        if name == "auto":
            name = _choose(plan, left, n_workers, expert, options, log)
        # Bytes of the longest episode.
        actions = 2 * plan.actions.dtype.itemsize * int(np.prod(plan.actions.shape))
        step = exact.size * exact.dtype.itemsize + actions + 14
        longest = plan.num_steps * step * (plan.num_agents or 1)
        fit = max(1, PENDING_BYTES // longest)
        workers = n_workers if isinstance(n_workers, int) else cores()
        self._window = max(4 * workers, min(fit, MOST_PENDING))
        self._limit = 0
        try:
            if name == "native":
                rows = min(left, max(workers, min(fit, NATIVE_ENVS)))
                # While one batch is taken there is room for another.
                batch = min(left, max(rows, min(self._window // 2, 4 * rows)))
                own = dataclasses.replace(plan, num_envs=rows, episodes=batch)
                self.collector = self._native(own, n_workers, options)
            elif name == "sync":
                rows = min(left, 4 * workers)
                own = dataclasses.replace(plan, num_envs=rows, episodes=min(left, 4 * rows))
                self.collector = self._open(name, own, n_workers=n_workers, **options)
            elif name == "sequential":
                self.collector = self._open(name, plan)
            else:
                pending = max(2 * workers, min(fit // 4, 64 * workers))
                own = dataclasses.replace(plan, episodes=left)
                self.collector = self._open(name, own, n_workers=n_workers, max_pending=pending, **options)
            self._resources.enter_context(self.collector)
            self.collector.load_state_dict({"numbers": {NO_ENV: first}, "running": {}, "version": 0})
        except BaseException:
            self._resources.close()
            raise

    def _open(self, name: str, plan: RecordingPlan, **options: Any) -> Collector:
        try:
            return make_collector(name, plan, **options)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"--collector {name}: {error}") from None

    def _native(self, plan: RecordingPlan, n_workers: WorkerCount, options: Mapping[str, Any]) -> Collector:
        if plan.infos and plan.num_agents is None:
            raise ConfigError("--collector native gives no infos: leave --infos out, or choose 'executor'")
        if options:
            raise ConfigError(f"--collector native has no option {next(iter(options))}")
        try:
            check_suits("native", plan)
            exact = plan.obs_rows
            if not isinstance(exact, ExactRows) or exact.sense is None:
                return native_collector(plan, n_workers=n_workers)
            threads = min(cores() if n_workers == "auto" else n_workers, plan.num_envs)
            inner = native_vector_env(plan, threads)
            self._resources.callback(inner.close)
            wrapped: Any = RecordedVectorEnv(inner, exact)
            return native_collector(plan, n_workers=n_workers, env=wrapped)
        except (CollectError, ValueError) as error:
            raise ConfigError(f"--collector native: {error}") from None

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *error: object) -> None:
        self._resources.close()

    def take(self, timeout: float) -> list[Fragment]:
        """The next episodes in order, as many as are there; none within ``timeout`` seconds.

        Raises:
            CollectError: an episode cannot be collected.
        """
        limit = min(self._end, self._next + self._window)
        if limit == self._end or limit - self._limit >= self._window // 8:
            self.collector.limit(limit)
            self._limit = limit
        for fragment in self.collector.take_many(MOST_TAKEN, timeout):
            self._early[int(fragment.episodes[0, 1])] = fragment
        found = []
        while (following := self._early.pop(self._next, None)) is not None:
            found.append(following)
            self._next += 1
        return found

    @property
    def is_done(self) -> bool:
        return self._next >= self._end


def _choose(
    plan: RecordingPlan,
    left: int,
    n_workers: WorkerCount,
    expert: ExpertSpec,
    options: Mapping[str, Any],
    log: Callable[[str], object] | None,
) -> str:
    """The collector that suits a plan."""
    plan = dataclasses.replace(plan, episodes=max(1, left))
    chosen = choose(plan, n_workers=n_workers, ray_address=options.get("ray_address"))
    name, reason = chosen
    if name == "native" and plan.num_agents is None and (plan.infos or not expert.batched):
        workers = min(cores(), left) if n_workers == "auto" else n_workers
        name = "executor" if workers > 1 else "sequential"
        reason = (
            "infos are read of single environments"
            if plan.infos
            else "the expert chooses for one environment at a time"
        )
    if log is not None:
        log(f"collecting with {name!r}: {reason}")
    return name


def record(
    env: Any,
    expert: Any,
    episodes: int,
    out: str | Path,
    *,
    env_options: Mapping[str, Any] | None = None,
    noise: float = 0.0,
    noise_kind: NoiseKind | None = None,
    seed: int = 0,
    deterministic: bool = True,
    max_episode_steps: int = 0,
    infos: Sequence[str] = (),
    collector: str = "auto",
    n_workers: WorkerCount = "auto",
    resume: bool = False,
    trust: bool = False,
    advance: Callable[[int], object] = lambda episodes: None,
    timed: Callable[[Mapping[str, float]], object] = lambda seconds: None,
    log: Callable[[str], object] | None = None,
    **collector_options: Any,
) -> Any:
    """Records episodes of an expert, of one agent or of many.

    Episode i is a function of the seed and i: the files have the same bytes from any collector and any number of
    workers. Episodes are kept in order, none for being short or early. Of many agents each agent's part in an episode
    of the environment is an episode of the data set, see the guide "Recording demonstrations".

    Args:
        env: an id, the import path ``"my_module:make_env"``, a function that makes environments, an environment, the
            name of a task; None: the environment that the expert, a run, was trained in.
        expert: a run directory or checkpoint file, the name of a scripted expert (those of
            ``fastrl demos record --help``), "random", a zip file of Stable-Baselines3, "module:function", or a function
            from an observation to an action; of many agents a run of theirs, "random", or a function from an agent's
            observation and its name to a flat action.
        episodes: of the environment; numbers 0 to ``episodes`` - 1.
        out: directory of the data set; new or empty unless ``resume``.
        env_options: of the environment.
        noise: on the actions; 0: none. The expert's own actions are stored beside those that were taken.
        noise_kind: "epsilon": share of steps with a random action; "gaussian": standard deviation, as a share of half
            the range of actions. None: gaussian for a Box of floats, else epsilon.
        seed: fixes all episodes.
        deterministic: a policy takes its likeliest action; otherwise it draws.
        max_episode_steps: longer episodes are truncated; 0: the environment's own limit, else 1000.
        infos: keys of infos that are recorded, numbers or arrays of numbers; ("all",): all such keys that are found. Of
            many agents ("action_mask",) alone.
        collector: "auto", "sequential", "sync", "executor", "native" or "ray".
        n_workers: processes, or threads of "native"; "auto": one a core.
        resume: continue a recording that was interrupted, or extend it to more episodes.
        trust: files may run code, as they say.
        advance: called with numbers of episodes that were recorded.
        timed: called once, also if the recording is interrupted, with the seconds that it took by part: those of the
            collector's `fastrl.collectors.protocol.Report`, and ``writing`` of this process.
        log: called with lines for people.
        collector_options: of `fastrl.collectors.factory.make_collector`.

    Returns:
        The data set, as `fastrl.demos.load` gives it.

    Raises:
        UserError: one line: what does not fit, and what to do.
        CollectError: environment or expert fail; the line names the episode. Whole episodes before it are kept.
        KeyboardInterrupt: after Ctrl-C. Whole episodes are kept.
    """
    if type(episodes) is not int or episodes < 1:
        raise ConfigError(f"episodes: expected a number from 1 on, got {episodes!r}")
    if not 0 <= seed < 2**63:
        raise ConfigError(f"seed: expected a number from 0 to 2**63 - 1, got {seed}")
    # Before there is an environment, which may change the current directory.
    path = Path(out).absolute()
    make_noise = functools.partial(noise_of, noise, noise_kind)
    facts: dict[str, Any] = {}
    run = find_run(expert, trust=trust)
    if (team := find_team(env, env_options or {}, run)) is not None:
        plan, found, added_noise, facts["agents"] = make_team_plan(
            team[0],
            expert,
            episodes,
            seed=seed,
            max_episode_steps=max_episode_steps or team[1],
            infos=infos,
            run=run,
            deterministic=deterministic,
            make_noise=make_noise,
        )
    else:
        spec = find_env(env, env_options or {}, run)
        built = build_any(spec, None)
        if isinstance(built, VectorEnv):
            spec.close(built)
            raise ConfigError(
                f"{spec.id} makes a vector environment, which starts its episodes itself, so that none has a seed: give"
                " what makes one environment"
            )
        try:
            found = find_expert(expert, built, run=run, deterministic=deterministic, trust=trust)
            keys = find_infos(built, spec.id, infos, seed) if infos else ()
            added_noise = make_noise(built.action_space)
            plan = make_plan(
                spec,
                found,
                built,
                episodes,
                seed=seed,
                noise=added_noise,
                max_episode_steps=max_episode_steps,
                infos=keys,
            )
        finally:
            contract.close(built)
    facts |= _facts(plan, found, added_noise)
    with _disk_errors(path):
        files = EpisodeWriter(path, facts, plan.recorded_space, plan.action_space, resume=resume)
    kind = FragmentWriter if team is None else TeamFragmentWriter
    writer = kind(plan, files, added_noise is not None)
    if writer.next_number < episodes:
        advance(writer.next_number)
        try:
            options = {"expert": found, "log": log, **collector_options}
            stopped_by = _write_all(writer, path, collector, n_workers, advance, timed, options)
        except CollectError as error:
            first, _, rest = str(error).partition("\n")
            kept = f"{writer.next_number} whole episodes are in {path}"
            raise CollectError(f"{first}; {kept}\n{rest}".rstrip(), error.traceback) from error
        if stopped_by is not None:
            if log is not None:
                log(f"{writer.next_number} of {episodes} episodes are in {path}; --resume continues")
            # All is written: the signal takes its usual effect now.
            signal.raise_signal(stopped_by)
    else:
        with _disk_errors(path):
            writer.close()
    return load(path)


def _facts(plan: RecordingPlan, expert: ExpertSpec, noise: Noise | None) -> dict[str, Any]:
    """The part of ``meta.json`` that determines the episodes of a recording."""
    return {
        "env": {
            "id": plan.env.id,
            "options": dict(plan.env.options),
            "max_episode_steps": plan.num_steps,
        },
        "seed": plan.seed,
        "expert": expert.facts,
        "noise": None if noise is None else {"kind": noise.kind, "scale": noise.scale},
        "infos": plan.infos,
    }


def _write_all(
    writer: FragmentWriter,
    path: Path,
    collector: str,
    n_workers: WorkerCount,
    advance: Callable[[int], object],
    timed: Callable[[Mapping[str, float]], object],
    options: Mapping[str, Any],
) -> signal.Signals | None:
    """Records the episodes that are missing; those that are whole are kept, whatever happens. Returns the signal that
    has stopped it."""
    flush_at = time.monotonic() + FLUSH_S
    waiting: list[Fragment] = []
    nbytes, writing = 0, 0.0

    def write_waiting() -> None:
        nonlocal nbytes
        fragments = waiting.copy()
        waiting.clear()
        nbytes = 0
        writer.write(fragments)

    try:
        with (
            StopSignals() as stop,
            Recording(writer.plan, writer.next_number, collector, n_workers, **options) as recording,
        ):
            while not recording.is_done and stop.received is None:
                found = recording.take(_POLL_S)
                waiting += found
                nbytes += sum(fragment.obs.nbytes for fragment in found)
                flushes = (start := time.monotonic()) > flush_at
                if flushes or nbytes >= BLOCK_BYTES:
                    with _disk_errors(path):
                        write_waiting()
                        if flushes:
                            writer.flush()
                    end = time.monotonic()
                    writing += end - start
                    if flushes:
                        flush_at = end + max(FLUSH_S, (end - start) / FLUSH_SHARE)
                if found:
                    advance(len(found))
            seconds = dict(recording.collector.report().seconds)
        begin = time.monotonic()
        with _disk_errors(path):
            write_waiting()
        writing += time.monotonic() - begin
    except RecordError:
        raise
    except BaseException:
        # The first error is the one to report.
        with contextlib.suppress(Exception):
            write_waiting()
        with contextlib.suppress(Exception):
            writer.close()
        raise
    begin = time.monotonic()
    with _disk_errors(path):
        writer.close()
    timed(seconds | {"writing": writing + time.monotonic() - begin})
    return stop.received


@contextlib.contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """A context in which errors of the disk become one line.

    Raises:
        RecordError
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise RecordError(
            f"{error.filename or path}: {reason}; whole episodes written before are kept: make room, then --resume"
            " continues"
        ) from error


def find_env(env: Any, options: Mapping[str, Any], run: Run | None) -> EnvSpec:
    """The environment to record in.

    Args:
        env, options: as of `record`.
        run: that the expert is.

    Raises:
        ConfigError: there is none of that name.
    """
    if env is None:
        if run is None:
            raise ConfigError("env: name one, as the expert is no run that has one")
        if options:
            raise ConfigError("env_options: name the environment that they are for")
        return run.env()
    if isinstance(env, str) and ":" not in env:
        from fastrl.tasks import find, named_tasks

        if env in named_tasks():
            task = find(env)
            spec: EnvSpec = task.play_spec(task.resolve_defaults(task.make_settings({})))
            return spec.with_options(options)
        if not options and run is not None and (found := run.env()).id == env:
            return found
    try:
        spec = any_spec(env)
    except TypeError as error:
        raise ConfigError(str(error)) from None
    return with_env_options(spec, options)


def noise_of(scale: float, kind: NoiseKind | None, space: Any) -> Noise | None:
    """The noise that a scale and a kind mean, by default that of the actions; None: there is none."""
    if kind is None:
        is_float = isinstance(space, Box) and np.dtype(space.dtype).kind == "f"
        kind = "gaussian" if is_float else "epsilon"
    return Noise(kind, float(scale)) if scale else None
