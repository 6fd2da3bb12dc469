"""Stand in for a package of Miles."""
