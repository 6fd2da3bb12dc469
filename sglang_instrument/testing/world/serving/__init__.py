"""The servers of a simulated world: clock, prefix cache, scheduler, router."""
