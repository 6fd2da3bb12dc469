"""What `sglang-instrument profile` adds: check, capture and list from another process."""
