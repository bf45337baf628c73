"""What can be wrong with a user's input to the load generator. Each says, in one line, where and what to do."""


class LoadError(Exception):
    """Root: the message is one line for the user. `exit_code`: 2 for bad input, 1 for work that failed."""

    exit_code = 2


class TraceError(LoadError):
    """A trace or request file cannot be used; the message begins with the file and, where one is at fault, the line."""

    def __init__(self, source: str, message: str, line: int | None = None) -> None:
        self.source = source
        self.line = line
        where = source if line is None else f"{source}:{line}"
        super().__init__(f"{where}: {message}")


class WorkloadError(LoadError):
    """No such workload or setting, or an unusable value."""


class ArrivalError(LoadError):
    """An arrival process that cannot be."""


class RunFailed(LoadError):
    """A run that could not be made or brought to its end: nobody answers, a process died, nothing was measured."""

    exit_code = 1
