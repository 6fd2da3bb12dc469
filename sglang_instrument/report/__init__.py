"""Turn the answers of `analysis` into a report, figures and traces; needs the extra `report`."""
