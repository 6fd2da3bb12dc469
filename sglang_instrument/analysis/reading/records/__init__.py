"""One line becomes one record: its keys typed, `extra` as it stands, fields of it typed where asked for."""
