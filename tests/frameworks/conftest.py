# SPDX-License-Identifier: Apache-2.0
"""The fixture `caller`: every framework in turn; one that is not installed is a skip that says so."""

from __future__ import annotations

import pytest
from anyop.cases.callers import CALLERS, missing


@pytest.fixture(params=CALLERS, scope="module")
def caller(request):
    """A framework, inside its scope."""
    reason = missing(request.param)
    if reason:
        pytest.skip(reason)
    return CALLERS[request.param]()


@pytest.fixture(autouse=True)
def dtypes_of_the_caller(caller):
    """float64 in JAX."""
    with caller.scope():
        yield
