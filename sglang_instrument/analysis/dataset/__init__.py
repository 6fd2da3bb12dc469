"""A run as Parquet files: what `export --parquet` writes and `sql` asks."""
