"""Switch the profilers of the engines, and gather their traces; needs the extra `profiling`."""
