"""Have finished steps analysed by a process of its own (`finished.py`): the follower itself stays small."""

import contextlib
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import msgspec

from sglang_instrument.live.children import environment
from sglang_instrument.live.state import StepDone

_PROGRAM: Final = """
import sys
from sglang_instrument.live.finished import main
main(sys.argv[1])
"""
_PATIENCE_SEC: Final = 60.0  # for an answer: a large step takes seconds, more where the machine is busy
_PROCESS: Final = ""  # in `Analyst.failures`: no step, but the process itself


class Question(msgspec.Struct):
    """What the process is asked: a line of JSON.

    Attributes:
        folder: That of a step, such as "step_12".
        following: Those of the steps that follow: a step lasts until the next one begins.
        run_id: The run; None: the newest of the step.
    """

    folder: str
    following: list[str] = []
    run_id: str | None = None


class Answer(msgspec.Struct):
    """What the process answers: a line of JSON; no `step` if it is not finished, or `failed` says why.

    `cpu_sec` is the CPU time that it took.
    """

    folder: str
    cpu_sec: float
    step: StepDone | None = None
    failed: str | None = None


class Analyst:
    """Asks for the numbers of steps, and hands them out when they are there.

    Args:
        folder: The run's folder.

    Attributes:
        failures: By a step's folder, why it has no numbers.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._listener: threading.Thread | None = None
        self._answered = threading.Condition()
        self._answers: list[Answer] = []
        self._open_questions = 0
        self._is_closed = False
        self.failures: dict[str, str] = {}

    def ask(self, question: Question) -> None:
        """Ask for the numbers of a step; they come later."""
        if self._is_closed:
            return
        try:
            if self._process is None or self._process.poll() is not None:
                self._end()
                self._start()
            assert self._process is not None  # noqa: S101 - just started
            assert self._process.stdin is not None  # noqa: S101 - a pipe
            with self._answered:
                self._open_questions += 1  # before it is asked: the process may end at once
            self._process.stdin.write(msgspec.json.encode(question) + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            with self._answered:
                self._open_questions = max(0, self._open_questions - 1)
            self.failures[question.folder] = f"{question.folder} cannot be analysed: {error}"

    @property
    def is_busy(self) -> bool:
        """Whether it has not answered yet."""
        return self._open_questions > 0

    def wait(self) -> None:
        """Wait for all answers, while one comes now and then; a process that ends has none."""
        with self._answered:
            while (left := self._open_questions) and self._answered.wait_for(
                lambda: self._open_questions < left, _PATIENCE_SEC
            ):
                pass
            if left:
                self.failures[_PROCESS] = (
                    f"no answer of the analysis of finished steps for {_PATIENCE_SEC:.0f} s"
                )

    def answers(self) -> list[Answer]:
        """Return the answers since the last call."""
        with self._answered:
            answers, self._answers = self._answers, []
        return answers

    def close(self) -> None:
        """End the process."""
        self._is_closed = True
        self._end()

    def _end(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs at a disk
            self._process.wait(1.0)
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):  # a question that was not read
                self._process.stdin.close()
        if self._listener is not None:
            self._listener.join(1.0)

    def _start(self) -> None:
        self._open_questions = 0
        self.failures.pop(_PROCESS, None)
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter and a module of ours
            [sys.executable, "-c", _PROGRAM, str(self._folder)],
            env=environment(POLARS_MAX_THREADS="1"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._listener = threading.Thread(target=self._listen, args=(self._process,), daemon=True)
        self._listener.start()

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None  # noqa: S101 - a pipe
        with process.stdout as answers:
            for line in answers:
                answer = msgspec.json.decode(line, type=Answer)
                self.failures.pop(answer.folder, None)
                if answer.failed is not None:
                    self.failures[answer.folder] = answer.failed
                with self._answered:
                    self._answers.append(answer)
                    self._open_questions -= 1
                    self._answered.notify_all()
        process.wait()  # its pipe ends earlier: `ask` would take it for alive
        if not self._is_closed:
            self.failures[_PROCESS] = "the process that analyses finished steps has ended"
        with self._answered:
            self._open_questions = 0
            self._answered.notify_all()
