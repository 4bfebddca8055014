"""Observations and actions of CAGE Challenge 4 by the most suspicious hosts of an agent's zone, with memory.

`Cage4VectorEnv(view="hosts")` has them. They depend on the agents' own observations, masks and actions alone, so an
agent in the real CybORG can have them too (`fastrl.exports.cage4_agent.HostView`). `observation_names` and `ACTIONS`
name every value and action.

Rows have the hosts of the zone, users and servers, in the order of suspicion: alerts since the last Restore, the newest
first, then the time since it. Users are phished without an alert; servers see false alerts of connections, which count
less. Ages of alerts fade: 4 / (4 + steps) and 32 / (32 + steps), 0 without one. Rows without a host are zeros.

Signs of red are alerts that red alone causes: of a process on a server, or of a connection to a user. They do not tell
which host is red's: hosts that were restored since are the least likely. Their ages fade by 8, 32 and 64 steps.

An agent with an action in progress has a mask that leaves only Sleep, so that a Restore is never paid for twice and
nothing is learned from a step without a choice. A Sleep of a free agent lasts 5 steps, or until an alert in its zone:
choices are fewer and matter more.

A traffic rule blocks, one pair of subnets a step, the traffic that green uses neither in the present phase nor in that
12 steps later, or lifts another block. It and decoys (up to 4 on a host) choose their targets by themselves.

With `messages` of N bits a choice is an action plus 11 times a message. The agent sends it in each step until its next
choice, and the others observe it after the step.
"""

ROWS = 8
TARGETS = 4
ACTIONS: tuple[str, ...] = (
    "Sleep",
    "traffic rule",
    "decoy",
    *(f"Restore row {row}" for row in range(TARGETS)),
    *(f"Remove row {row}" for row in range(TARGETS)),
)
_ZONE = (
    *(f"agent {agent}" for agent in range(5)),
    *(f"phase {phase}" for phase in range(3)),
    "steps / length of the episode",
    "users / 30",
    "servers / 18",
    "steps left of the action in progress / 5",
    "Restore in progress",
    "Remove in progress",
    "other action in progress",
    "traffic rules to set / 8",
    "decoys a host / 4",
    "mean steps since a user's last Restore / 250",
    *(
        f"{alerts} / 4, {when}"
        for alerts in (
            "process alerts of users",
            "connection alerts of users",
            "connection alerts of servers",
        )
        for when in ("last step", "last 8 steps")
    ),
    "sign of red, faded",
    "sign of red, slowly faded",
    "users restored since the last sign of red / users",
)
_ROW = (
    "exists",
    "is a server",
    "process alert",
    "connection alert",
    "process alert, faded",
    "connection alert, faded",
    "process alert, slowly faded",
    "connection alert, slowly faded",
    "process alerts / 4",
    "connection alerts / 4",
    "steps since the last Restore / 250",
    "decoys / 4",
    "Remove since the last process alert",
    "signs of red since the last Restore / 8",
    "sign of red since the last Restore, slowly faded",
)


def observation_names(messages: int = 0) -> tuple[str, ...]:
    """The name of each value of an observation, in order, with messages of so many bits."""
    rows = (f"row {row}: {name}" for row in range(ROWS) for name in _ROW)
    return (*_ZONE, *rows, *(f"other agent {i}, bit {bit}" for i in range(4) for bit in range(messages)))
