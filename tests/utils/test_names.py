"""Names that a misspelt one is likely to mean."""

from fastrl.utils.names import did_you_mean, likely, nearest, suggestion


def test_the_most_similar_name_is_proposed():
    assert did_you_mean("lane_count", ["lanes_count", "duration"]) == "; did you mean lanes_count?"
    assert did_you_mean("xyz", ["lanes_count", "duration"]) == ""
    assert did_you_mean("xyz", []) == ""


def test_last_parts_and_initials_of_dotted_names_count():
    known = ["ppo.clip_range", "ppo.learning_rate", "run.seed"]
    assert nearest("clip", known) == "ppo.clip_range"
    assert likely("lr", known) == "ppo.learning_rate"
    assert likely("xyz", known) is None and likely("lr", []) is None


def test_of_versions_that_are_as_likely_the_newest_is_proposed():
    assert did_you_mean("CartPole-v7", ["CartPole-v0", "CartPole-v1"]) == "; did you mean CartPole-v1?"


def test_all_names_are_listed_where_none_is_likely():
    assert suggestion("xyz", ["fast", "stable"]) == "there are fast, stable"
    assert suggestion("stabel", ["fast", "stable"]) == "did you mean stable?"
    assert suggestion("xyz", []) == "there are none"
