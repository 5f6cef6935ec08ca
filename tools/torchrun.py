"""torchrun for dist_train.sh and dist_test.sh, without its report on a tool's own error.

A tool of ours that refuses its command line, config or data says so and exits with status 2; one
that has not predicted all images, with 3. torchrun would add forty lines. So it would for Ctrl-C,
of which the tool says what to do. What fails in any other way is reported in full.
"""

import logging
import signal
import sys

SAID = (2, 3)
# Of torchrun's, which say of each process that it ended, and of the others that they are ended.
LINES = (
    *(f'failed (exitcode: {status})' for status in SAID),
    'closing signal',
    'death signal',
)
LOGGERS = ('multiprocessing.api', 'agent.server.api')


def main() -> None:
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    for name in LOGGERS:
        logging.getLogger(f'torch.distributed.elastic.{name}').addFilter(
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
    except SignalException as error:
        if error.sigval == signal.SIGINT:  # The tool has said how to go on.
            sys.exit(1)
        sys.exit(f'Stopped by {signal.Signals(error.sigval).name}.')


if __name__ == '__main__':
    try:
        main()
    except KeyboardInterrupt:  # while torch is imported
        sys.exit('Stopped.')
