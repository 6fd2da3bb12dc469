"""Switch the engines' profilers, and analyse their traces; needs the extra `profiling`."""
