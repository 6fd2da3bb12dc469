"""Turn the lines that processes append into counts, by process and by step and worker."""
