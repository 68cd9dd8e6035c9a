"""The loopback Hub's fixtures, for every suite."""

from hypothesis import settings

from tests.hub.conftest import hub, start_hub  # noqa: F401

# The same examples in every run; `--hypothesis-profile search` looks for new ones. How long an example takes says
# nothing on a busy machine.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=3000)
settings.load_profile("same")
