"""Scenario files of CAGE Challenge 2: what they are compiled to, what is refused, and the games in them."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, get_args

import gymnasium
import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrl._native import _rust
from fastrl.envs.cage2.env import ACTIONS, EFFECTIVE_ACTIONS, HOSTS, Cage2Env, Cage2VectorEnv
from fastrl.envs.cage2.memory import OBS_BITS, SCAN_HOSTS, Ruleset, observation_names
from fastrl.envs.cage2.network_picture import NetworkState, network_picture
from fastrl.envs.cage2.scenario import MAX_BYTES, ScenarioError, challenge, load_scenario, parse_scenario
from fastrl.envs.cage2.traces import load_trace
from fastrl.testing import check_vector_env

GOLDEN = Path(__file__).parents[1] / "support" / "golden"
FILES = GOLDEN / "cage2_scenarios"
TREE = yaml.safe_load((FILES / "shop.yaml").read_text())


def _small() -> dict[str, Any]:
    """Three hosts of the file in a subnet of their own."""
    tree = deepcopy(TREE)
    kept = "User0", "User1", "Op_Server0"
    tree["Hosts"] = {name: {"image": tree["Hosts"][name]["image"]} for name in kept}
    tree["Subnets"] = {"Office": {"Hosts": [*kept], "Size": 3, "NACLs": {"all": {"in": "all", "out": "all"}}}}
    for agent in ("Blue", "Green", "Red"):
        tree["Agents"][agent]["AllowedSubnets"] = ["Office"]
    blue, client = (
        tree["Agents"]["Blue"],
        {"type": "VelociraptorClient", "username": "ubuntu", "parent": "Velo"},
    )
    server = {
        "type": "VelociraptorServer",
        "name": "Velo",
        "hostname": "User1",
        "artifacts": ["NetworkConnections"],
    }
    blue["starting_sessions"] = [server, *(client | {"hostname": name} for name in kept)]
    blue["INT"]["Hosts"] = {name: {"Interfaces": "All", "System info": "All"} for name in kept}
    tree["Agents"]["Green"]["starting_sessions"] = []
    return tree


SMALL = _small()


def test_the_network_of_the_challenge_is_a_scenario() -> None:
    scenario = load_scenario(FILES / "challenge.yaml")
    assert (scenario.hosts, scenario.actions) == (HOSTS, ACTIONS)
    assert scenario.effective_actions == EFFECTIVE_ACTIONS
    assert list(scenario.subnets) == _rust.CAGE2_SUBNETS


RECORDED = sorted((GOLDEN / "cage2").glob("*.npz"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_its_file_gives_the_recorded_games_of_the_challenge(path: Path) -> None:
    trace, scenario = load_trace(path), load_scenario(FILES / "challenge.yaml")
    options = (trace.ruleset, trace.red_agent, trace.seed, trace.arrays, scenario.native)
    for steps, mismatches, first in (
        _rust.replay_cage2("seed", *options),
        _rust.replay_cage2("decisions", *options),
    ):
        assert (mismatches, first) == (0, None) and steps == len(trace.arrays["reward"])


@pytest.mark.parametrize("ruleset", get_args(Ruleset))
def test_its_file_gives_the_memory_of_the_challenge(ruleset: Ruleset) -> None:
    options: dict[str, Any] = {"ruleset": ruleset, "red_agent": "mix", "memory": "full", "num_threads": 1}
    own, file = (
        Cage2VectorEnv(16, **options),
        Cage2VectorEnv(16, scenario=FILES / "challenge.yaml", **options),
    )
    names = observation_names("full", "blue", file.network)
    shared = [name for name in observation_names("full") if not name.endswith(": scanned")]
    places, others = (
        [names.index(name) for name in shared],
        [observation_names("full").index(name) for name in shared],
    )
    # Of a file all hosts' scans are remembered, so that another one may be the last.
    assert len(names) == len(places) + len(HOSTS) == 243
    marks, own_marks = slice(OBS_BITS, OBS_BITS + 13), slice(OBS_BITS, OBS_BITS + 10)
    rng, seen = np.random.default_rng(0), np.zeros(len(names))
    obs, expected = file.reset(seed=4)[0], own.reset(seed=4)[0]
    for _ in range(250):
        np.testing.assert_array_equal(obs[:, places], expected[:, others])
        np.testing.assert_array_equal(obs[:, marks][:, SCAN_HOSTS] > 0, expected[:, own_marks] > 0)
        np.testing.assert_array_equal(file.action_masks(), own.action_masks())
        # Sleep half of the time, so that red gets somewhere.
        actions = rng.integers(len(ACTIONS), size=16) * (rng.random(16) < 0.5)
        obs, rewards, *_ = file.step(actions)
        expected, own_rewards, *_ = own.step(actions)
        np.testing.assert_array_equal(rewards, own_rewards)
        seen = np.maximum(seen, obs.max(axis=0))
    assert (seen[places] > 0).mean() > 0.9


@pytest.mark.parametrize(
    "path", sorted(FILES.rglob("*.npz")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_games_in_other_scenarios_are_those_of_cyborg(path: Path) -> None:
    name, red_agent = path.stem.split("_")
    ruleset, other = ("plusplus", "main") if path.parent.name == "plusplus" else ("main", "plusplus")
    scenario = load_scenario(FILES / f"{name}.yaml")
    with np.load(path) as file:
        arrays = {key: file[key] for key in file if key != "seed"}
        seed = int(file["seed"])
    steps, mismatches, first = _rust.replay_cage2("seed", ruleset, red_agent, seed, arrays, scenario.native)
    assert (mismatches, first) == (0, None) and steps == len(arrays["reward"]) == 400
    # The recorded games are lively.
    assert arrays["red_access"].max() == 2 and arrays["reward"].min() < -1
    assert _rust.replay_cage2("seed", other, red_agent, seed, arrays, scenario.native)[1] > 0


def test_the_environment_plays_the_recorded_games_from_the_seed() -> None:
    scenario = load_scenario(FILES / "shop.yaml")
    with np.load(FILES / "shop_meander.npz") as file:
        arrays, seed = dict(file), int(file["seed"])
    env = Cage2VectorEnv(
        1,
        scenario=scenario,
        red_agent="meander",
        random="python",
        autoreset_mode="same_step",
        info_state=True,
    )
    env.reset(seed=seed)
    # Of all actions to those of the file.
    places = scenario.places(range(len(scenario.actions)))
    expected = np.unpackbits(arrays["obs"], axis=1)[:, : 4 * len(scenario.hosts)]
    for i, action in enumerate(arrays["blue_action"]):
        obs, reward, _, truncated, info = env.step([places.index(action)])
        last_obs, last = (info["final_obs"], info["final_info"]) if truncated[0] else (obs, info)
        np.testing.assert_array_equal(last_obs[0], expected[i])
        assert np.float32(reward[0]) == arrays["reward"][i]
        np.testing.assert_array_equal(last["red_access"][0], arrays["red_access"][i])
        np.testing.assert_array_equal(last["processes"][0], arrays["processes"][i])


@pytest.mark.parametrize(
    "name", ["shop", *(pytest.param(name, marks=pytest.mark.slow) for name in ("contractor", "offices"))]
)
def test_games_keep_the_contract_of_vector_environments(name: str) -> None:
    red = "meander" if name == "contractor" else "mix"
    check_vector_env(
        partial(
            Cage2VectorEnv, scenario=FILES / f"{name}.yaml", red_agent=red, memory="scan", episode_length=30
        ),
        time_limit=30,
        terminates=False,
    )


def test_observations_and_actions_grow_with_the_hosts() -> None:
    env = gymnasium.make("fastrl/Cage2-v0", scenario=str(FILES / "offices.yaml"), actions="effective")
    games = env.unwrapped
    assert isinstance(games, Cage2Env)
    assert env.observation_space.shape == (120,)
    assert len(games.vector.hosts) == 30
    names = games.vector.action_names
    assert env.action_space == gymnasium.spaces.Discrete(len(names)) and len(names) == 181
    env.reset(seed=1)
    assert games.action_masks().all()
    _, _, _, truncated, _ = env.step(names.index("DecoyTomcat Op_Host3"))
    assert not truncated
    assert names[int(np.flatnonzero(~games.action_masks())[0])] == "DecoyTomcat Op_Host3"
    table = Cage2Env(scenario=FILES / "offices.yaml", render_mode="ansi")
    table.reset(seed=1)
    assert "OTService on Op_Server0: up" in str(table.render())
    plain = Cage2VectorEnv(2, scenario=FILES / "offices.yaml")
    assert (plain.alerts().shape, plain.truth()["red_access"].shape) == ((2, 30), (2, 30))


@pytest.mark.parametrize("name", ["shop", "offices"])
def test_the_memory_of_scans_has_a_value_for_each_host(name: str) -> None:
    options: dict[str, Any] = {"scenario": FILES / f"{name}.yaml", "red_agent": "mix", "episode_length": 40}
    plain, env = (
        Cage2VectorEnv(8, memory=memory, autoreset_mode="disabled", **options) for memory in ("none", "scan")
    )
    hosts = len(env.hosts)
    assert env.single_observation_space.shape == (5 * hosts,)
    obs, _ = env.reset(seed=3)
    plain.reset(seed=3)
    expected = np.zeros((8, hosts))
    for _ in range(40):
        bits = plain.step([0] * 8)[0]
        scanned = (bits[:, ::4] == 1) & (bits[:, 1::4] == 0)
        # The last one counts two, as soon as there is another.
        expected = np.where(
            scanned, 2, np.where(scanned.any(1, keepdims=True), expected.clip(0, 1), expected)
        )
        obs = env.step([0] * 8)[0]
        np.testing.assert_array_equal(obs, np.concatenate([bits, expected], 1))
        assert env.single_observation_space.contains(obs[0])
    assert expected.max() == 2 and (expected == 1).any()
    other = Cage2VectorEnv(8, memory="scan", autoreset_mode="disabled", **options)
    other.load_state(env.save_state())


def test_actions_stand_in_the_order_of_the_file() -> None:
    scenario = load_scenario(FILES / "shop.yaml")
    assert scenario.actions[:3] == ("Monitor", "Restore User0", "Restore User1")
    assert scenario.actions[10] == "Sleep"
    assert "Monitor" not in {scenario.actions[i] for i in scenario.effective_actions}
    env = Cage2VectorEnv(1, scenario=scenario)
    env.reset(seed=0)
    assert env.action_names == scenario.actions
    _, reward, *_ = env.step([1])
    assert reward[0] == -1


def test_a_state_is_of_its_scenario() -> None:
    def games(name: str) -> Cage2VectorEnv:
        env = Cage2VectorEnv(2, scenario=FILES / f"{name}.yaml", random="python", red_agent="meander")
        env.reset(seed=1)
        return env

    shop, other = games("shop"), games("shop")
    for action in range(50):
        shop.step([action, action])
    other.load_state(shop.save_state())
    for action in range(50):
        np.testing.assert_array_equal(shop.step([action, 0])[0], other.step([action, 0])[0])
    with pytest.raises(ValueError, match="9 hosts"):
        games("contractor").load_state(shop.save_state())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": "ful"}, "memory: expected 'none', 'scan', 'decoys' or 'full', got 'ful'"),
        ({"observe": "truth"}, "observe: expected 'blue' with a scenario of your own, got 'truth'"),
        ({"actions": [56]}, "actions: expected different indices from 0 to 55"),
        ({"scenario": "nowhere.yaml"}, "scenario nowhere.yaml: No such file or directory"),
        ({"scenario": FILES / "contractor.yaml"}, "red_agent: B_line starts on a host named User0"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Cage2VectorEnv(1, **{"scenario": FILES / "shop.yaml", **options})


def test_the_challenge_is_laid_out_by_the_way_that_red_takes() -> None:
    expected = (
        ("User", ("User0", "User1", "User2", "User3", "User4")),
        ("Enterprise", ("Enterprise0", "Enterprise1", "Enterprise2", "Defender")),
        ("Operational", ("Op_Host0", "Op_Host1", "Op_Host2", "Op_Server0")),
    )
    assert challenge().layout() == load_scenario(FILES / "challenge.yaml").layout() == expected
    blocked = load_scenario(FILES / "contractor.yaml")
    assert [blocked.native.access[blocked.subnets.index(name)] for name, _ in blocked.layout()][
        -1
    ] == "closed"


def test_plusplus_changes_images_decoys_and_costs_everywhere() -> None:
    options: dict[str, Any] = {"scenario": FILES / "offices.yaml", "red_agent": "bline", "num_threads": 1}
    main, mended = (Cage2VectorEnv(32, ruleset=ruleset, **options) for ruleset in ("main", "plusplus"))
    network = main.network
    vsftpd = network.actions.index("DecoyVsftpd Enterprise0")
    for env, again in ((main, True), (mended, False)):
        env.reset(seed=1)
        env.step([vsftpd] * 32)
        assert (env.action_masks()[:, vsftpd] == again).all()
    root_costs, user_costs = np.array(network.native.root_costs), 0.0
    for _ in range(60):
        _, rewards, *_ = mended.step([0] * 32)
        access = mended.truth()["red_access"]
        costs = -rewards - (access > 0) @ root_costs
        # What is left is Impact's.
        assert (np.isclose(costs, 0) | np.isclose(costs, 10)).all()
        user_costs = max(user_costs, float(((access == 1) @ root_costs).max()))
    assert user_costs > 0


@pytest.mark.parametrize(
    ("name", "shape"),
    [("small", (320, 360)), ("challenge", (320, 360)), ("shop", (320, 360)), ("offices", (460, 480))],
)
def test_pictures_have_the_hosts_of_the_network(name: str, shape: tuple[int, int]) -> None:
    network = parse_scenario(SMALL) if name == "small" else load_scenario(FILES / f"{name}.yaml")
    pictures = []
    for host in (None, *range(len(network.hosts))):
        red_access = np.zeros(len(network.hosts), np.uint8)
        if host is not None:
            red_access[host] = 2
        state = NetworkState("title", red_access, "", 0.0)
        pictures.append(network_picture(state, note="step 1", network=network))
    assert {picture.shape for picture in pictures} == {(*shape, 3)}
    nobody, *each = pictures
    boxes = [(picture != nobody).any(axis=-1) for picture in each]
    # Every host has a box of its own, in the picture.
    assert all(box.sum() > 1500 for box in boxes) and np.sum(boxes, axis=0).max() == 1
    env = Cage2Env(scenario=network, red_agent="meander", render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render().shape == (shape[0] * 8 // 5, shape[1] * 8 // 5, 3)


@pytest.mark.parametrize("long", ["A" * 60, "Enterprise with a name of many words"])
def test_long_names_fit_into_a_picture(long: str) -> None:
    tree = yaml.safe_load(yaml.safe_dump(SMALL).replace("User1", long))
    network = parse_scenario(tree)
    plain, named = (
        network_picture(NetworkState("title", np.zeros(3, np.uint8), "", 0.0), note="", network=each)
        for each in (parse_scenario(SMALL), network)
    )
    rows, columns = np.nonzero((plain != named).any(axis=-1))
    assert rows.size and rows.min() > 60 and rows.max() < 280 and columns.max() < 115


def change(*keys: Any, to: Any = None) -> Callable[[dict[str, Any]], None]:
    """A change of one entry of a file; None removes it."""

    def apply(tree: dict[str, Any]) -> None:
        *path, last = keys
        for key in path:
            tree = tree[key]
        if to is None:
            del tree[last]
        else:
            tree[last] = to

    return apply


WRONG: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (change("Hosts"), "the file: expected the entry Hosts, it has Agents, Subnets"),
    (change("Green", to={}), "expected Agents, Hosts, Subnets, got 'Green'"),
    (change("Agents", "Green"), "Agents: expected Blue, Green and Red in this order"),
    (
        change("Hosts", "User0", "image", to="Gatewy"),
        "Hosts.User0.image: .* got 'Gatewy'; did you mean Gateway",
    ),
    (
        change("Hosts", "Op_Server0", "image", to="Gateway"),
        "Hosts: expected the image OP_Server on Op_Server0",
    ),
    (change("Hosts", "User0", "Files", to=[]), "Hosts.User0: expected .*, got 'Files'"),
    (
        change("Hosts", "User1", "info", "User1", to={"Files": "All"}),
        "Hosts.User1.info.User1: expected .* got 'Files'",
    ),
    (
        change("Hosts", "User1", "ConfidentialityValue", to=3),
        "ConfidentialityValue: expected None or Low or .* got 3",
    ),
    (
        change("Subnets", "Office", "Hosts", to=["User0"]),
        "Subnets: expected each host in one, User1 is in none",
    ),
    (change("Subnets", "Office", "Hosts", to=["User0", "User1", "User2", "Watch"]), "Watch is in two places"),
    (
        change("Subnets", "Office", "Size", to=0),
        "Subnets.Office.Size: expected an integer from 1 to 1000, got 0",
    ),
    (
        change("Subnets", "Office", "NACLs", to={"all": {"in": "None"}}),
        "NACLs.all.in: expected all, got 'None'",
    ),
    (
        change("Subnets", "Office", "NACLs", to={"all": {"in": [{"PortRange": [1, 9]}]}}),
        r"Subnets.Office.NACLs.all.in: expected all, got \[\{'PortRange'",
    ),
    (change("Agents", "Red", "starting_sessions", to=[]), "Red.starting_sessions: expected one session"),
    (
        change("Agents", "Red", "starting_sessions", 0, "username", to="root"),
        "username: expected SYSTEM, got 'root'",
    ),
    (
        change("Agents", "Red", "actions", to=["Sleep"]),
        "Agents.Red.actions: expected .*PrivilegeEscalate.* among them",
    ),
    (change("Agents", "Red", "INT", "Hosts", to={}), "Agents.Red.INT.Hosts: expected All of the Interfaces"),
    (
        change("Agents", "Red", "AllowedSubnets", to=["Office"]),
        "Agents.Red.AllowedSubnets: expected all subnets",
    ),
    (
        change("Agents", "Blue", "actions", 0, to="Misinform"),
        "Agents.Blue.actions.0.: expected .* got 'Misinform'",
    ),
    (change("Agents", "Blue", "actions", 0, to="Sleep"), "Agents.Blue.actions: expected different names"),
    (
        change("Agents", "Blue", "starting_sessions", 1),
        "one VelociraptorClient on each host.* User0 has 0 sessions",
    ),
    (
        change("Agents", "Blue", "starting_sessions", 0),
        "Blue.starting_sessions: expected one VelociraptorServer",
    ),
    (change("Agents", "Blue", "INT", "Hosts", "Watch"), "Agents.Blue.INT.Hosts: expected the entry Watch"),
    (change("Agents", "Blue", "reward_calculator_type", to="Pwn"), "reward_calculator_type: expected Hybrid"),
    (
        change("Agents", "Green", "agent_type", to="GreenAgent"),
        "Agents.Green.agent_type: expected SleepAgent",
    ),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=[message[:40] for _, message in WRONG])
def test_a_wrong_entry_is_named_in_one_line(wrong: Callable[[dict[str, Any]], None], message: str) -> None:
    tree = deepcopy(TREE)
    wrong(tree)
    with pytest.raises(ScenarioError, match=message) as error:
        parse_scenario(tree)
    assert "\n" not in str(error.value)


def _shown(user: str, host: str) -> Callable[[dict[str, Any]], None]:
    return change("Hosts", user, "info", to={user: {"Interfaces": "All"}, host: {"Interfaces": "All"}})


BLOCKED: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (_shown("User2", "Op_Host0"), "B_line needs a host with Enterprise in its name in the info of User2"),
    (_shown("Enterprise2", "User0"), "B_line needs Op_Server0 in the info of Enterprise2"),
    (change("Hosts", "Enterprise0", "info"), "B_line needs the interfaces of Enterprise0 in its info"),
    (change("Subnets", "Enterprise", "NACLs", to={"Office": {"in": "None"}}), "B_line needs a way"),
]


@pytest.mark.parametrize(("change", "message"), BLOCKED, ids=[message[-30:] for _, message in BLOCKED])
def test_b_line_is_refused_where_its_plan_leads_nowhere(
    change: Callable[[dict[str, Any]], None], message: str
) -> None:
    tree = deepcopy(TREE)
    change(tree)
    scenario = parse_scenario(tree)
    with pytest.raises(ValueError, match=f"red_agent: {message}"):
        Cage2VectorEnv(1, scenario=scenario, red_agent="bline")
    env = Cage2VectorEnv(1, scenario=scenario, red_agent="meander")
    env.reset(seed=0)


def _places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [place for key, value in entries for place in ((*path, key), *_places(value, (*path, key)))]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_file_does_more_than_to_be_refused(data: st.DataObject) -> None:
    tree = deepcopy(TREE)
    for _ in range(data.draw(st.integers(1, 2))):
        place = data.draw(st.sampled_from(_places(tree)))
        junk = st.sampled_from([None, 7, "User0", "all", [], {}, ["User0"], {"all": 3}, -1, 1e30, {1: 2}])
        change(*place, to=data.draw(junk))(tree)
    refusal = ""
    try:
        scenario = parse_scenario(tree)
        env = Cage2VectorEnv(3, scenario=scenario, red_agent="meander", episode_length=20)
    except ValueError as error:
        refusal = str(error)
    if refusal:
        assert "\n" not in refusal
        return
    env.reset(seed=0)
    for action in range(40):
        env.step([action % len(env.action_names)] * 3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"Hosts: [", "expected YAML"),
        (b"\xff\xfe\x00", "expected YAML"),
        (b"", "the file: expected a mapping of names, got None"),
        (b"!!python/object/apply:os.system [ls]", "expected YAML"),
        (b"#" * (MAX_BYTES + 1), "expected at most 1,048,576 bytes"),
    ],
)
def test_a_file_that_is_no_scenario_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    with pytest.raises(ScenarioError, match=message) as error:
        load_scenario(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)
