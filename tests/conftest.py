import socket

import pytest


@pytest.fixture
def free_port():
    """A TCP port that no process listens on, as a string."""
    with socket.socket() as listener:
        listener.bind(('localhost', 0))
        return str(listener.getsockname()[1])
