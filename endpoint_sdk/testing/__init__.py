"""What users run in their own test suites: workflows in memory, tasks alone, a real dispatcher, signed events.

`endpoint_sdk.testing.subscribers` is the suite for a subscriber of your own, and needs pytest; everything else needs
what the SDK needs.
"""

from endpoint_sdk.testing.exported import Replayed
from endpoint_sdk.testing.faults import ReplayDiverged, StubUsedUp, WorkflowStuck
from endpoint_sdk.testing.lambda_events import lambda_event
from endpoint_sdk.testing.local import local_dispatcher
from endpoint_sdk.testing.stubs import Calls
from endpoint_sdk.testing.task_environment import task_env
from endpoint_sdk.testing.tester import Step, TestRun, WorkflowTester

__all__ = [
    "Calls",
    "ReplayDiverged",
    "Replayed",
    "Step",
    "StubUsedUp",
    "TestRun",
    "WorkflowStuck",
    "WorkflowTester",
    "lambda_event",
    "local_dispatcher",
    "task_env",
]
