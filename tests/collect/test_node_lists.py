"""Lists of nodes become hosts: Slurm's ranges, files of hosts, and what is refused."""

import pytest

from sglang_instrument.collect.node_lists import parse_nodes, read_hostfile
from sglang_instrument.errors import InstrumentError


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a,b", ["a", "b"]),
        ("a, a ,b", ["a", "b"]),
        ("user@a.b-c", ["user@a.b-c"]),
        ("node[001-003,7]", ["node001", "node002", "node003", "node7"]),
        ("login,gpu[8-10]x", ["login", "gpu8x", "gpu9x", "gpu10x"]),
        ("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"]),
    ],
)
def test_a_list_names_its_hosts(text, hosts):
    assert parse_nodes(text) == hosts


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "-oProxyCommand=touch",
        "a,--help",
        "node[1-",
        "node[x]",
        "node[3-1]",
        "a b",
        "n[1-9999999]",
        "a/b",
    ],
)
def test_what_is_no_list_is_refused(text):
    with pytest.raises(InstrumentError):
        parse_nodes(text)


def test_a_hostfile_has_a_host_a_line(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# two racks\nnode1 slots=8\n\nnode[2-3]  # fast\n")
    assert read_hostfile(path) == ["node1", "node2", "node3"]


def test_a_hostfile_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InstrumentError, match="missing"):
        read_hostfile(tmp_path / "missing")
