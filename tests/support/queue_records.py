"""What the tests of the queue put, records whose contents follow from their number; and what they leave behind."""

import os
import re
from pathlib import Path

import numpy as np

RECORD = np.dtype([("id", np.int64), ("obs", np.float32, 3), ("done", np.bool_)])
ORDERS = ["per_producer", "total"]
POLICIES = ["block", "error", "drop_newest", "drop_oldest"]


def rows_of(*ids):
    rows = np.zeros(len(ids), RECORD)
    rows["id"] = ids
    rows["obs"] = rows["id"][:, None] + [0.25, 0.5, 0.75]
    rows["done"] = rows["id"] % 2 == 1
    return rows


def ids_of(rows):
    np.testing.assert_array_equal(rows, rows_of(*rows["id"]))
    return rows["id"].tolist()


def segments():
    """Names of the shared memory that is there, but for what other living processes have made: a name that was made
    up begins with the number of the process that made it, one that a test gives ends with it."""

    def is_others(name):
        made_up = re.fullmatch(r"fastrl-([0-9a-f]{8})[0-9a-f]{8}-[0-9a-f]+", name)
        given = re.fullmatch(r"fastrl-[a-z-]+-(\d+)", name)
        pid = int(made_up[1], 16) if made_up else int(given[1]) if given else os.getpid()
        return pid != os.getpid() and Path(f"/proc/{pid}").exists()

    return {path.name for path in Path("/dev/shm").glob("fastrl-*") if not is_others(path.name)}
