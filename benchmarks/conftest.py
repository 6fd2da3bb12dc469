"""Let a benchmark print its table although pytest captures what tests print."""

import pytest


@pytest.fixture
def show(capsys):
    def shown(text):
        with capsys.disabled():
            print(text)

    return shown
