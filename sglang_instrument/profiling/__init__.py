"""Switch the profilers of the engines, and say what their traces show; needs the extra `profiling`."""
