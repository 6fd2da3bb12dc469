"""A second world of runs: servers behind routers, in simulated time, with faults whose cost is measured."""
