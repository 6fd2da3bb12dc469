"""Install when imported: for trainers that import a module by its name.

Set `VERL_USE_EXTERNAL_MODULES=sglang_instrument.auto` in verl's environment, or verl's setting
`actor_rollout_ref.model.external_lib=sglang_instrument.auto`, or write `import sglang_instrument.auto`.
With `SGLANG_INSTRUMENT=0` in the environment it does nothing.
"""

import os

from sglang_instrument import launch
from sglang_instrument.switch import install

if not launch.is_refused(os.environ):
    install()
