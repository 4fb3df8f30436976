import os

import pytest


@pytest.fixture(scope="session")
def program():
    """The path of the pipewright program."""
    path = os.environ.get("PIPEWRIGHT_BIN")
    if not path:
        pytest.fail("PIPEWRIGHT_BIN is not set: it must name the pipewright program")
    return path
