"""What all tests share: an orderly end."""

import signal


def pytest_configure(config):
    # So that servers are stopped on SIGTERM as they are on Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
