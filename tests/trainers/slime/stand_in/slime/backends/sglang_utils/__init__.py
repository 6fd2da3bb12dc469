"""A stand-in for slime, which is in no registry: slime 0.3.1 in its names, signatures and order alone."""
