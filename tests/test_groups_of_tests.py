"""`make test` runs in two processes, and tests that share an engine stay in one of them."""

import os


def test_a_group_of_conftest_reaches_the_scheduler(request):
    # Only in a process of pytest-xdist is there a scheduler.
    expected = "@groups" if "PYTEST_XDIST_WORKER" in os.environ else ""
    assert request.node.nodeid.endswith(f"test_a_group_of_conftest_reaches_the_scheduler{expected}")
