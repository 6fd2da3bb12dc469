"""The part of recording that runs on training's threads: spans, their ids, the waiting time of coroutines."""
