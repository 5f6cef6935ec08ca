"""torchrun for dist_train.sh and dist_test.sh, without its report on a tool's own error.

A tool that refuses its command line, config or data prints an error and exits with status 2; one
that has not predicted all images exits with 3. torchrun would add forty lines to it, and to the
tool's message after Ctrl-C. All other failures are reported in full.
"""

import logging
import signal
import sys

# Exit statuses of a tool that has printed its own error.
EXPLAINED_STATUSES = (2, 3)
# torchrun logs a line for each process that ended, and for each that it ends itself.
HIDDEN_LINES = (
    *(f'failed (exitcode: {status})' for status in EXPLAINED_STATUSES),
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
            lambda record: not any(line in record.getMessage() for line in HIDDEN_LINES)
        )
    try:
        torchrun()
    except ChildFailedError as error:
        # A process that lost its peer exits with 1, and may be the first to end.
        statuses = {failure.exitcode for failure in error.failures.values()}
        explained = statuses.intersection(EXPLAINED_STATUSES)
        if not explained:
            raise
        sys.exit(min(explained))
    except SignalException as error:
        if error.sigval == signal.SIGINT:  # The tool has printed how to go on.
            sys.exit(1)
        sys.exit(f'Stopped by {signal.Signals(error.sigval).name}.')


if __name__ == '__main__':
    try:
        main()
    except KeyboardInterrupt:  # Ctrl-C may come while torch is imported.
        sys.exit('Stopped.')
