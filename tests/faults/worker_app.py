"""The worker the faults happen to: one run at a time, so that its calls come in a known order."""

from endpoint_sdk import Worker
from tests.faults.sweep_app import sweep

worker = Worker(workflows=[sweep], max_concurrent_runs=1)
