from sglang_instrument.live import words
from sglang_instrument.live.state import Forecast, Problem, Snapshot, StepNow

STEP = StepNow(
    step=4,
    validate=False,
    age_sec=20.0,
    requests_done=7,
    requests_expected=8,
    requests_open=1,
    tokens=100,
    tokens_per_sec=5.0,
    open={"tool": 1},
    oldest=(),
)


def said(decides: tuple[int, str] | None, *will_not_end: tuple[int, str]) -> str:
    forecast = Forecast(3.0, 12.0, decides, 0.5, will_not_end)
    return words.forecast(StepNow(**{**vars(STEP), "forecast": forecast}))


def test_counts_of_a_log_that_is_still_being_read_are_called_so() -> None:
    reading = Snapshot("logs", "run", 0, STEP, catching_up=True)
    assert words.headline(reading) == "step 4: 7 of 8 requests done so far; the log is still being read"


def test_a_forecast_names_the_interval_and_the_request_that_decides() -> None:
    assert said((3, "r17")) == "ends in 3.0 s to 12 s; r17 of worker 3 decides"


def test_a_step_in_which_only_requests_that_will_not_end_are_open_has_no_interval() -> None:
    assert said(None, (0, "r3")) == "r3 of worker 0 will not end"
    assert said(None, *((0, f"r{n}") for n in range(5))) == (
        "r0 of worker 0, r1 of worker 0, r2 of worker 0 and 2 more will not end"
    )


def test_the_interval_is_that_of_the_other_requests() -> None:
    assert said((3, "r17"), (0, "r3")) == (
        "r3 of worker 0 will not end; without that, the step ends in 3.0 s to 12 s; r17 of worker 3 decides"
    )


def test_uuids_are_shortened_and_other_ids_are_not() -> None:
    uuid = "172a54a4-445e-4bef-b71c-da269af4747c"
    problem = Problem("hang", 0, 0, 4, f"worker 0: request {uuid} does not end")
    assert words.problem(problem, 5_000_000) == "hang: worker 0: request 172a54a4 does not end (5.0 s)"
    assert words.short_id(uuid.replace("-", "")) == "172a54a4"
    for name in ("gsm8k-train-00017-sample-3", "172a54a4", "sha-" + "0" * 40):
        assert words.short_id(name) == name
