"""The report says which settings to change, as `advise` does, also beside the verdict."""

from set_worlds import play_set, well_set_world, wrong_world

from sglang_instrument.analysis import advise, open_run
from sglang_instrument.report.html.build import write_report
from sglang_instrument.testing.world.play import write_world


def page_of(tmp_path, world):
    """Return the run of a world and the text of its report."""
    run = open_run(write_world(tmp_path / "world", play_set(world)), cached=False)
    return run, write_report(run, tmp_path / "report.html").path.read_text()


def test_levers_have_a_section_and_the_verdict_names_the_first(tmp_path):
    run, page = page_of(tmp_path, wrong_world("running limit", 0))
    advice = advise(run)
    section = page.partition('id="levers"')[2].partition("</section>")[0]
    assert advice.sentence in section
    for row in advice.rows("LOGS"):
        assert f"<b>{row['setting']}</b> rests on: {row['rests_on']}".replace("'", "&#39;") in section
    assert "A setting answers it: max_running_requests from " in page.partition('id="levers"')[0]


def test_nothing_to_gain_is_an_answer_of_the_report(tmp_path):
    _, page = page_of(tmp_path, well_set_world(0))
    section = page.partition('id="levers"')[2].partition("</section>")[0]
    assert "Nothing to gain from settings" in section
    assert "<table" not in section
