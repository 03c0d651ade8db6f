"""The process in which one entry is measured: `python -m benchmarks.child SPEC`. Imports as little as it can."""

import json
import sys

spec = json.loads(sys.argv[1])
sys.path[:] = spec["path"]

from benchmarks.measure import measure  # noqa: E402

found = measure(spec)
with open(spec["answer"], "w") as file:
    json.dump(found, file)
