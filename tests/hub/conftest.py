"""Fixtures: a Hub on loopback (see tests/hub/loopback/client.py for what it offers)."""

import pytest

from tests.hub.loopback import LoopbackHub


@pytest.fixture
def start_hub(tmp_path_factory):
    """`start_hub(page=1000, run_jobs=True)` starts a server of its own; all of them stop after the test."""
    hubs = []

    def start(**settings):
        hubs.append(LoopbackHub(tmp_path_factory.mktemp("hub"), **settings))
        return hubs[-1]

    yield start
    for hub in hubs:
        hub.close()


@pytest.fixture
def hub(start_hub):
    """A fresh, empty Hub that runs jobs."""
    return start_hub()
