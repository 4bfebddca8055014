"""A worker of a search that trains nothing: it takes a moment, in steps, and leaves a run directory.

python tuning_stub_worker.py SECONDS
"""

import json
import sys
import time
from pathlib import Path

FACTS = {
    "state": "complete",
    "task": "gym",
    "env": "CartPole-v1",
    "algorithm": "ppo",
    "seed": 0,
    "total_timesteps": 0,
    "episodes": 0,
    "mean_return": None,
    "seconds": 1.0,
    "stopped_by": None,
    "sessions": [],
}

for line in sys.stdin:
    job = json.loads(line)
    time.sleep(float(sys.argv[1]))
    run = Path(job["run"])
    answer = {"status": "complete"}
    if "episodes" in job:
        answer["score"] = 1.0
    else:
        run.mkdir(parents=True, exist_ok=True)
        row = {"time/total_timesteps": 10, "eval/mean_reward": 1.0, "eval/point": 4}
        (run / "metrics.jsonl").write_text(json.dumps(row) + "\n")
        (run / "summary.json").write_text(
            json.dumps({"seconds": 1, "steps": 10, "evaluation": {"mean": 1.0}})
        )
        (run / "run.json").write_text(json.dumps(FACTS))
    print(json.dumps(answer), flush=True)
