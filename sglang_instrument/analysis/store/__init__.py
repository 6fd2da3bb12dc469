"""Keep what was derived from the log files of a run, in one store of Parquet parts."""
