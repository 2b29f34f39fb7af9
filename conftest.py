# SPDX-License-Identifier: Apache-2.0
"""For all tests: refuses to test another build than the one that ANYOP_TEST_PACKAGE names."""

import os


def pytest_configure() -> None:
    expected = os.environ.get("ANYOP_TEST_PACKAGE")
    if not expected:
        return
    from anyop import _anyop

    found = os.path.dirname(os.path.realpath(_anyop.__file__))
    if found != os.path.realpath(expected):
        raise RuntimeError(f"these tests are for {expected}, but Python found {found}")
