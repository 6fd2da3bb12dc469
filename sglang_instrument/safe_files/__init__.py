"""Open, write, rename and delete files of ours below a folder, and follow no link out of it."""
