"""Turn the answers of `analysis` into something to look at or to hand on; needs the extra `report`."""
