"""A file that the user named is replaced once the new one is whole; what is no file is written to."""

import os
import threading
from pathlib import Path

import pytest

from sglang_instrument.safe_files.output import write_output, writing_output


def write_half(path: Path) -> None:
    with writing_output(path) as file:
        file.write(b"half")
        raise ValueError("no more")


def test_a_link_that_the_user_named_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/report.html").write_bytes(b"old")
    (tmp_path / "latest.html").symlink_to("shared/report.html")
    write_output(tmp_path / "latest.html", b"new")
    assert (tmp_path / "latest.html").is_symlink()
    assert (tmp_path / "shared/report.html").read_bytes() == b"new"


def test_a_pipe_gets_the_bytes_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_output(pipe, b"bytes")
    reader.join()
    assert read == [b"bytes"]
    assert pipe.is_fifo()


def test_after_an_error_what_was_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match="no more"):
        write_half(path)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"old"
