"""Command line of the benchmark: see `infra/bench`."""

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from infra.benchmarks import jobs
from infra.benchmarks.rig import rig

_JOBS: Final = {"j3": jobs.j3, "start": jobs.start, "children": jobs.children}
_RUNS: Final = {"j3": 2_000, "start": 200, "children": 1_000}
_WARM_UP: Final = {"j3": 200, "start": 20, "children": 20}


def main() -> int:
    arguments = _arguments()
    runs = arguments.runs or _RUNS[arguments.job]
    with (
        tempfile.TemporaryDirectory(prefix="pointsman-") as folder,
        rig(Path(folder), arguments.database, arguments.route) as standing,
    ):
        figures = asyncio.run(_JOBS[arguments.job](standing, runs, _WARM_UP[arguments.job]))
    line = {"job": arguments.job, "database": arguments.database, "route": arguments.route, **figures}
    if not arguments.json:
        _explain(line)
    print(json.dumps(line), flush=True)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="infra/bench", description="Measures this checkout with real processes.")
    parser.add_argument(
        "job", choices=sorted(_RUNS), help="j3: throughput; start: latency at idle; children: one parent"
    )
    parser.add_argument("--database", choices=("postgresql", "sqlite"), default="postgresql")
    parser.add_argument("--route", choices=("push", "poll", "redis", "sqs"), default="push")
    parser.add_argument("--runs", type=int, help="how many runs to measure (j3: 2000, start: 200, children: 1000)")
    parser.add_argument("--json", action="store_true", help="nothing but the JSON line")
    return parser.parse_args()


def _explain(line: dict[str, Any]) -> None:
    cpu = {name: round(1000 * seconds / line["runs"], 2) for name, seconds in line["cpu_s"].items()}
    print(
        f"{line['runs']} runs at {line['runs_s']} a second",
        _details(line),
        f"CPU per run, ms: {cpu}; statements per run: {line['queries'] / line['runs']:.2f}",
        sep="\n",
        file=sys.stderr,
    )


def _details(line: dict[str, Any]) -> str:
    if line["job"] == "children":
        grown = f"the database grew by {line['database_bytes']} bytes"
        return f"{line['seconds']} s in all; claims of the parent: {line['parent_claims']}; {grown}"
    return f"ms to the first line of the handler: {line['start_ms']}; to completion: {line['e2e_ms']}"


if __name__ == "__main__":
    sys.exit(main())
