"""Shared configuration of all tests."""

import signal


def pytest_configure(config):
    # Stop servers on SIGTERM in the same way as on Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
