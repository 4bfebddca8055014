"""CAGE Challenge 2 by rows of hosts, and networks that are drawn from a table `random`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import yaml

from fastrl.envs.cage2.env import Cage2VectorEnv
from fastrl.envs.cage2.random_scenario import load_networks, network_tree, save_network
from fastrl.envs.cage2.rows import HOST_KINDS, ROW, Cage2RowsVectorEnv, num_actions
from fastrl.envs.cage2.scenario import ScenarioError, load_scenario
from fastrl.testing import check_vector_env

FILES = Path(__file__).parents[1] / "support" / "golden" / "cage2_scenarios"
DRAWN = FILES / "drawn.yml"


def file_with(folder: Path, **entries: Any) -> Path:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({"random": entries}))
    return path


def test_a_file_always_draws_the_same_networks(tmp_path: Path) -> None:
    networks = load_networks(DRAWN)
    assert len(networks) == 12
    trees = [network_tree(DRAWN, number) for number in range(12)]
    assert trees == [network_tree(DRAWN, number) for number in range(12)]
    entries = yaml.safe_load(DRAWN.read_text())["random"]
    # A longer pool begins with the same networks, another seed gives others.
    longer = file_with(tmp_path, **entries | {"networks": 13})
    assert [network_tree(longer, number) for number in range(12)] == trees
    other = file_with(tmp_path, **entries | {"seed": entries["seed"] + 1})
    assert [network_tree(other, number) for number in range(12)] != trees
    with pytest.raises(ValueError, match="number: expected 0 to 11, got 12"):
        network_tree(DRAWN, 12)


def test_draws_are_within_their_ranges() -> None:
    networks = load_networks(DRAWN)
    counts = [
        [sum(name.startswith(start) for name in network.hosts) for start in ("User", "Enterprise", "Op_Host")]
        for network in networks
    ]
    found = np.array(counts)
    assert (found.min(0) >= [3, 2, 0]).all() and (found.max(0) <= [8, 5, 4]).all()
    assert (found.min(0) < found.max(0)).all()
    assert all(set(network.red_agents) == {"bline", "meander", "sleep"} for network in networks)
    for number in range(12):
        tree = network_tree(DRAWN, number)
        images = {host["image"] for name, host in tree["Hosts"].items() if name.startswith("Enterprise")}
        assert images <= {"Gateway", "Internal", "linux_user_host2"}
        assert tree["Hosts"]["Op_Server0"]["AvailabilityValue"] in ("Medium", "High")


def test_a_start_elsewhere_is_for_meander(tmp_path: Path) -> None:
    path = file_with(tmp_path, networks=8, red_start=["Enterprise", "Operational"])
    networks = load_networks(path)
    assert all(network.red_agents == ("meander", "sleep") for network in networks)
    starts = {
        next(name for name, subnet in network_tree(path, i)["Subnets"].items() if "User0" in subnet["Hosts"])
        for i in range(8)
    }
    assert starts == {"Enterprise", "Operational"}
    with pytest.raises(ValueError, match="red_agent: B_line needs"):
        Cage2RowsVectorEnv(2, scenario=networks, red_agent="bline")
    env = Cage2RowsVectorEnv(2, scenario=networks, red_agent="meander")
    env.reset(seed=0)


def test_a_drawn_network_is_written_as_a_scenario_file(tmp_path: Path) -> None:
    """The file in the golden data, which CybORG has played: other versions of Python draw the same network."""
    save_network(DRAWN, 4, tmp_path / "mine.yaml")
    assert (tmp_path / "mine.yaml").read_bytes() == (FILES / "drawn4.yaml").read_bytes()
    assert load_scenario(tmp_path / "mine.yaml").hosts == load_networks(DRAWN)[4].hosts


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"users": 3}, "random: expected .*, got 'users'"),
        ({"networks": 0}, "random.networks: expected an integer from 1 to 10,000, got 0"),
        ({"seed": "x"}, "random.seed: expected an integer from 0 to"),
        (
            {"user_hosts": "8-3"},
            "random.user_hosts: expected an integer or a range such as 3-8, from 2 to 20",
        ),
        ({"user_hosts": 1}, "random.user_hosts: expected an integer or a range"),
        ({"user_hosts": True}, "random.user_hosts: expected an integer or a range"),
        ({"user_hosts": 20, "enterprise_hosts": 20}, "random: expected at most 32 hosts, .*, got 45"),
        ({"user_images": ["Gatewy"]}, "random.user_images.0.: .* got 'Gatewy'; did you mean Gateway"),
        ({"red_start": []}, "random.red_start: expected at least one name"),
        ({"server_availability": "High"}, "random.server_availability: expected a list"),
    ],
)
def test_a_wrong_entry_is_named_in_one_line(entries: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=message) as error:
        load_networks(file_with(tmp_path, **entries))
    assert "\n" not in str(error.value)


def test_networks_that_are_drawn_are_for_rows() -> None:
    with pytest.raises(ScenarioError, match="random: networks that are drawn are observed by rows"):
        Cage2VectorEnv(1, scenario=DRAWN)


def test_games_by_rows_keep_the_contract_of_vector_environments() -> None:
    check_vector_env(
        partial(Cage2RowsVectorEnv, scenario=load_networks(DRAWN), red_agent="mix", episode_length=30),
        time_limit=30,
        terminates=False,
    )


def test_each_episode_draws_its_network_from_the_seed() -> None:
    def played(num_threads: int) -> list[list[float]]:
        env = Cage2RowsVectorEnv(64, scenario=DRAWN, episode_length=5, num_threads=num_threads)
        env.reset(seed=7)
        networks = []
        for _ in range(18):
            networks.append(env.episode_info("network").tolist())
            env.step([0] * 64)
        return networks

    first = played(1)
    assert first == played(2)
    assert first[0] == first[4] != first[6]
    assert {number for row in first for number in row} == set(range(12))


@pytest.mark.parametrize("name", ["shop", "offices"])
def test_rows_have_the_game_of_the_bits(name: str) -> None:
    """The same seed and actions give the same rewards, bits and marks of scans."""
    path = FILES / f"{name}.yaml"
    options: dict[str, Any] = {"red_agent": "mix", "episode_length": 60, "autoreset_mode": "disabled"}
    plain = Cage2VectorEnv(16, scenario=path, memory="scan", **options)
    env = Cage2RowsVectorEnv(16, scenario=path, rows=32, **options)
    hosts, names = plain.hosts, plain.action_names
    bits, rows = plain.reset(seed=5)[0], env.reset(seed=5)[0]
    assert rows.shape == (16, 32, len(ROW)) and env.single_action_space.n == num_actions(32)
    draws = np.random.default_rng(1)
    of_row = {"Sleep": 0}
    for row, host in enumerate(hosts):
        of_row |= {f"{kind} {host}": 1 + 11 * row + i for i, kind in enumerate(HOST_KINDS)}
    offered = [i for i, action in enumerate(names) if action in of_row]
    for _ in range(60):
        masks, theirs = env.action_masks(), plain.action_masks()
        for i in offered:
            np.testing.assert_array_equal(masks[:, of_row[names[i]]], theirs[:, i])
        assert masks.sum() == theirs[:, offered].sum()
        np.testing.assert_array_equal(rows[:, : len(hosts), 1:5].reshape(16, -1), bits[:, : 4 * len(hosts)])
        np.testing.assert_array_equal(rows[:, : len(hosts), 5], bits[:, 4 * len(hosts) :] / 2)
        assert not rows[:, len(hosts) :].any() and (rows[:, : len(hosts), 0] == 1).all()
        actions = draws.choice(offered, 16)
        bits, reward, *_ = plain.step(actions)
        rows, same, *_ = env.step([of_row[names[i]] for i in actions])
        np.testing.assert_array_equal(reward, same)


def test_rows_tell_what_blue_knows_of_its_network() -> None:
    env = Cage2RowsVectorEnv(1, scenario=FILES / "challenge.yaml")
    table = dict(zip(ROW, env.reset(seed=0)[0][0].T, strict=True))
    np.testing.assert_allclose(
        table["cost while red is root"], np.array([1, 10, 10, 10, 1, 1, 1, 10, 0, 1, 1, 1, 1]) / 100
    )
    assert np.flatnonzero(table["cost while the service is down"]).tolist() == [7]
    assert np.flatnonzero(table["gateway"]).tolist() == [1, 2, 3]
    assert np.flatnonzero(table["gated"]).tolist() == [4, 5, 6, 7]
    assert np.flatnonzero(table["shows the server"]).tolist() == [3]
    assert np.flatnonzero(table["image Internal"]).tolist() == [2, 3]
    assert sum(table[name] for name in ROW if name.startswith("image")).tolist() == [1] * 13


def test_an_action_on_no_host_does_what_sleep_does() -> None:
    env = gymnasium.make("fastrl/Cage2Rows-v0", scenario=str(FILES / "shop.yaml"), rows=20)
    env.reset(seed=1)
    last = env.action_space.n - 1  # type: ignore[attr-defined]
    assert not env.unwrapped.action_masks()[last]  # type: ignore[attr-defined]
    other = gymnasium.make("fastrl/Cage2Rows-v0", scenario=str(FILES / "shop.yaml"), rows=20)
    other.reset(seed=1)
    np.testing.assert_array_equal(env.step(last)[0], other.step(0)[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 3}, "rows: expected 9 to"),
        ({"random": "numpy"}, "random: expected 'fast' or 'python'"),
        ({"scenario": DRAWN, "random": "python"}, "random: expected 'fast' where networks are drawn"),
        ({"ruleset": "mian"}, "ruleset: expected 'main', 'leaderboard' or 'plusplus'"),
        ({"scenario": ()}, "scenario: expected one network or more"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Cage2RowsVectorEnv(1, **{"scenario": FILES / "shop.yaml", **options})
