"""Tell when a line of a server's log was printed, by which server and by which of its ranks.

The engine begins a line with "[2026-01-05 08:00:00 DP0 PP1 TP0]": `configure_scheduler_process` in SGLang's
`managers/scheduler.py` names the ranks. Launchers put their own words before it (Ray, kubectl, journald,
Docker, srun), and a logging configuration (SGLANG_LOGGING_CONFIG_PATH) may replace it. So the stamp is the
last one before the message, wherever it stands, and what precedes the first stamp names the server.
"""

from typing import Final

import polars as pl

from sglang_instrument.analysis.foreign.sglang.log_days import days_of

#: A stamp with a date, as ISO 8601, `logging` and SGLang write it.
_STAMP: Final = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
#: A stamp without a year (journald, glog), or with the time of day only.
_UNDATED: Final = r"(?:(?:[A-Z][a-z]{2} {1,2}\d{1,2}|\d\d-\d\d) )?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_EPOCH: Final = r'"(?:ts|time|timestamp|created)": ?(\d{10}(?:\.\d{1,9})?)\b'
_COLOURS: Final = r"(?:\x1b|\\u001b|\\x1b|\\033)\[[0-9;]{0,16}m"
_RANKS: Final = r"\d\d:\d\d:\d\d[.,]?\d{0,9}((?: [A-Z][A-Z_]{0,30}\d{1,6}){1,12})\]"
#: Words of a launcher that stand behind a stamp: Ray's, kubectl's and journald's.
_LAUNCHERS: Final = (
    r"\(([^()]{0,200}?pid=\d{1,9}[^()]{0,100})\)",
    r"\[(pod/[^\]]{1,200})\]",
    r"\d\d:\d\d:\d\d\S{0,16} (\S{1,100} [^\s\[\]]{1,60}\[\d{1,9}\]): ",
)
_COUNTERS: Final = 3  # lines that each name has at least, in the mean; else the names are numbers of lines


def prefixes(lines: pl.DataFrame, changed_us: dict[int, int]) -> pl.DataFrame:
    """Return what the begins of lines say.

    Args:
        lines: `file`, `prefix`, the text before the message, and `rest`, the text behind it; in the order of
            each file.
        changed_us: When each file was last changed, in Unix microseconds: the day of stamps without a date.

    Returns:
        stamp: Unix microseconds, UTC where no offset says otherwise; null where the line has no time.
        precision_us: How exact it is.
        dated: Whether the stamp has a date of its own.
        server: What tells this server from others of the same file; "" where nothing does.
        dp: The rank of its data parallelism; null without one.
        ranks: All ranks, as they stand: " DP0 TP0".
    """
    prefix = pl.col("prefix").str.replace_all(_COLOURS, "")
    table = lines.with_columns(prefix=prefix)
    ranks = pl.col("prefix").str.extract(_RANKS).fill_null("")
    stamp = pl.coalesce(
        pl.col("prefix").str.extract_all(_STAMP).list.last(), pl.col("rest").str.extract(f"({_STAMP})")
    )
    undated = pl.col("prefix").str.extract_all(_UNDATED).list.last()
    table = table.with_columns(stamp_text=stamp, undated=undated, ranks=ranks)
    table = table.with_columns(
        dated_us=_dated(pl.col("stamp_text")),
        epoch_us=_epoch(
            pl.coalesce(pl.col("prefix").str.extract(_EPOCH), pl.col("rest").str.extract(_EPOCH))
        ),
        server=_server(),
        dp=pl.col("ranks").str.extract(r" DP(\d{1,6})").cast(pl.Int64),
    )
    of_day = days_of(table.select("file", "undated"), changed_us)
    return table.select(
        stamp=pl.coalesce("dated_us", "epoch_us", of_day),
        precision_us=_precision(pl.coalesce("stamp_text", "undated")),
        dated=pl.coalesce("dated_us", "epoch_us").is_not_null(),
        server=_named_servers(table["server"]),
        dp="dp",
        ranks="ranks",
    )


def _dated(text: pl.Expr) -> pl.Expr:
    """Return Unix microseconds of a stamp with a date."""
    whole = text.str.slice(0, 19).str.replace_all("/", "-").str.replace("T", " ", literal=True)
    seconds = whole.str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="us", strict=False).dt.epoch("us")
    digits = text.str.extract(r":\d\d[.,](\d{1,9})").fill_null("0").str.pad_end(6, "0").str.slice(0, 6)
    behind = text.str.slice(19)
    sign = pl.when(behind.str.contains("-", literal=True)).then(-1).otherwise(1)
    offset = behind.str.extract(r"[+-](\d\d)").cast(pl.Int64).fill_null(0) * 60
    offset += behind.str.extract(r"[+-]\d\d:?(\d\d)").cast(pl.Int64).fill_null(0)
    return seconds + digits.cast(pl.Int64) - sign * offset * 60_000_000


def _epoch(text: pl.Expr) -> pl.Expr:
    """Return microseconds of Unix seconds in text."""
    return (text.cast(pl.Float64, strict=False) * 1e6).round().cast(pl.Int64, strict=False)


def _precision(text: pl.Expr) -> pl.Expr:
    """Return how exact a stamp is, in microseconds: a second, or with a fraction a millisecond."""
    fraction = text.str.contains(r":\d\d[.,]\d{3}")
    return pl.when(fraction).then(1_000).otherwise(1_000_000).cast(pl.Int64)


def _server() -> pl.Expr:
    """Return the words of launchers, and what precedes the first stamp.

    A line that is JSON begins with keys, some of which differ from line to line.
    """
    known = [pl.col("prefix").str.extract(pattern).fill_null("") for pattern in _LAUNCHERS]
    first = pl.col("prefix").str.extract(rf"^(.{{0,300}}?)\[?(?:{_STAMP}|{_UNDATED})")
    is_json = pl.col("prefix").str.starts_with("{")
    head = pl.when(is_json | first.is_null()).then(pl.lit("")).otherwise(first.str.strip_chars())
    return pl.concat_str([head, *known], separator="\t").str.strip_chars("\t")


def _named_servers(servers: pl.Series) -> pl.Series:
    """Return the names of servers; "" for all if each line has one of its own, as if it were numbered."""
    names = servers.n_unique()
    is_counter = names > _COUNTERS and names * _COUNTERS > len(servers)
    return pl.Series("server", [""] * len(servers)) if is_counter else servers.rename("server")
