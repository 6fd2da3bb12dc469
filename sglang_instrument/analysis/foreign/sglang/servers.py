"""Number the workers of a log: each server, and each rank of its data parallelism, is one."""

import polars as pl

_SERVER = ("file", "server")


class ServerNumbers:
    """The workers of a log, in the order of files, names and ranks."""

    def __init__(self, lines: pl.DataFrame) -> None:
        """Number them; `lines` has `file`, `server` and `dp`, as all lines about batches have."""
        keys = lines.select(*_SERVER, "dp").unique().sort(*_SERVER, "dp", nulls_last=False)
        self._workers = keys.with_columns(worker=pl.int_range(pl.len(), dtype=pl.Int64))

    def numbered(self, lines: pl.DataFrame) -> pl.DataFrame:
        """Add `worker`; a line of a server that names no rank, or another, belongs to its first one."""
        exact = lines.join(
            self._workers, on=[*_SERVER, "dp"], how="left", nulls_equal=True, maintain_order="left"
        )
        for name, key in (("of_server", [*_SERVER]), ("of_file", ["file"])):
            first = self._workers.group_by(key).agg(pl.col("worker").min().alias(name))
            exact = exact.join(first, on=key, how="left", maintain_order="left")
        worker = pl.coalesce("worker", "of_server", "of_file").fill_null(0)
        return exact.with_columns(worker=worker).drop("of_server", "of_file")
