"""torchrun for dist_train.sh and dist_test.sh, without its report on a tool's own error.

A tool of ours that refuses its command line, config or data says so and exits with status 2; one
that has not predicted all images, with 3. torchrun would add forty lines. What fails in any other
way is reported in full.
"""

import logging
import sys

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun

SAID = (2, 3)
# Of torchrun's, which say of each process that it ended, and of the others that they are ended.
LINES = (*(f'failed (exitcode: {status})' for status in SAID), 'closing signal')


def main() -> None:
    logging.getLogger('torch.distributed.elastic.multiprocessing.api').addFilter(
        lambda record: not any(line in record.getMessage() for line in LINES)
    )
    try:
        torchrun()
    except ChildFailedError as error:
        # Of one that lost its peer the status is 1, and it may be the first to end.
        said = {failure.exitcode for failure in error.failures.values()} & {*SAID}
        if not said:
            raise
        sys.exit(min(said))


if __name__ == '__main__':
    main()
