"""Stand in for slime's hooks, and the only place that knows the step."""

import inspect

from slime.utils.misc import load_function

_current_rollout_id = None


def set_current_rollout_id(rollout_id):
    """Remember the step."""
    global _current_rollout_id
    _current_rollout_id = rollout_id


async def apply_rollout_sample_hooks(args, value, **kwargs):
    """Call the user's hooks."""
    for path in args.rollout_sample_hook_path or []:
        made = load_function(path)(args, value, rollout_id=_current_rollout_id, **kwargs)
        value = (await made if inspect.isawaitable(made) else made) or value
    return value
