"""The loopback Hub's fixtures, for every suite."""

from hypothesis import settings

from tests.hub.conftest import hub, start_hub  # noqa: F401

settings.register_profile("unhurried", deadline=None)  # how long an example takes says nothing on a busy machine
settings.load_profile("unhurried")
