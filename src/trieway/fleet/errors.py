"""What ends a command: one line for the user, and the exit code that goes with it."""

from __future__ import annotations

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2


class CommandError(Exception):
    """The command cannot do what it was asked to; the message is one line that says what to do. Exit code 1."""

    exit_code = EXIT_FAILED


class UsageError(CommandError):
    """The command was asked in a way that cannot work. Exit code 2."""

    exit_code = EXIT_USAGE
