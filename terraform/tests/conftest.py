"""What all tests share: an orderly end, and the count of attempts that were refused."""

import collections
import os
import pathlib
import signal

import pytest

REFUSED = collections.defaultdict(list)


def pytest_configure(config):
    # So that servers are stopped on SIGTERM as they are on Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture
def count(request):
    """Counts an attempt that was refused, by a name without ports or anything random."""
    test, _, case = request.node.name.removesuffix("]").partition("[")
    return lambda name="": REFUSED[test].append(" ".join(filter(None, (case, name))) or test)


def pytest_sessionfinish():
    """SKILLFS_ATTEMPTS names a directory: one file for each test, one line for each refused attempt."""
    if directory := os.environ.get("SKILLFS_ATTEMPTS"):
        for test, names in REFUSED.items():
            (pathlib.Path(directory) / f"credentials.{test}").write_text("".join(f"{name}\n" for name in names))
