"""Records of the queue's tests, whose contents follow from their id, and the shared memory that the tests leave."""

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
    """Names of the shared memory of fastrl, except for that of other running processes. A generated name starts with
    the process id of its maker, a name given by a test ends with it."""

    def is_others(name):
        generated = re.fullmatch(r"fastrl-([0-9a-f]{8})[0-9a-f]{8}-[0-9a-f]+", name)
        given = re.fullmatch(r"fastrl-[a-z-]+-(\d+)", name)
        pid = int(generated[1], 16) if generated else int(given[1]) if given else os.getpid()
        return pid != os.getpid() and Path(f"/proc/{pid}").exists()

    return {path.name for path in Path("/dev/shm").glob("fastrl-*") if not is_others(path.name)}
