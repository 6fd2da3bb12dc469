"""What the processes of engines logged of calls, and on which clocks."""
