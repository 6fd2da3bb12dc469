"""Stand in for where Miles' dashboard listens."""

from miles.utils.misc import SingletonMeta


class TrajectoryLifecycle(metaclass=SingletonMeta):
    """Holds the listener, if there is one."""

    sink = None
