"""What the detectors look at: calls and what is usual for them, chance, deaths, hangs; what a finding is."""
