"""Read the files of a run where they lie: in processes of this machine, or on the nodes of a Ray cluster."""
