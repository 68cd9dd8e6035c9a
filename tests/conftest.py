"""The loopback Hub's fixtures, for every suite."""

from tests.hub.conftest import hub, start_hub  # noqa: F401
