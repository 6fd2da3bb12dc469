"""Go from the cause to the setting: which to change, from what to what, what it saves, and whether it did."""
