"""What users run in their own test suites; each module is imported by its name and brings what it needs.

`endpoint_sdk.testing.subscribers` is the suite for a subscriber of your own, and needs pytest.
"""
