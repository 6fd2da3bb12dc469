"""Read the files of a run into tables of typed columns."""
