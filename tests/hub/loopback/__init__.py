"""A Hugging Face Hub on loopback for tests: repos, pull requests, LFS, Xet, buckets, jobs, a request log and faults.

Unmodified `huggingface_hub`, `datasets` and `hf_xet` clients accept it once `HF_ENDPOINT` names it and `HF_TOKEN` is
one of auth.py's:

    python -m tests.hub.loopback --root DIR --port 0       # prints its URL on the first line

Tests use the `hub` fixture (tests/hub/conftest.py), which is a `client.LoopbackHub`.

Known simplifications, beside those in each module: metadata lives in memory and dies with the process; no CDN redirect
(`resolve` answers 200); no quotas or rate limits except by injected faults; response fields that clients do not read
are absent. Every answer is what the clients of 2026 accept; nothing here was compared with the real Hub.
"""

from tests.hub.loopback.client import LoopbackHub

__all__ = ["LoopbackHub"]
