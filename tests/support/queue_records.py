"""Records of the queue's tests, whose contents follow from their id."""

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
