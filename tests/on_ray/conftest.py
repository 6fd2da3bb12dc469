"""Let Ray's workers run as fast as other processes: by default they yield to all others on a busy machine."""

import os

os.environ.setdefault("RAY_worker_niceness", "0")
