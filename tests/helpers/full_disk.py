"""A disk that is full, as far as one process can tell."""

import contextlib
import resource


@contextlib.contextmanager
def limited_file_size(num_bytes):
    """Limit the size of the files that this process writes, which fails where a full disk does."""
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard_limit))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft_limit, hard_limit))
