"""A console of rich that leaves a closed pipe to `main`, as it knows the exit code; rich exits with 1."""

from rich.console import Console


class PipeConsole(Console):
    """A console whose closed pipe is an error."""

    def on_broken_pipe(self) -> None:
        """Raise again what rich has caught.

        Raises:
            BrokenPipeError: Always.
        """
        raise BrokenPipeError
