"""Install when imported: for trainers that import a module by its name.

Set `VERL_USE_EXTERNAL_MODULES=sglang_instrument.auto` in verl's environment, or verl's setting
`actor_rollout_ref.model.external_lib=sglang_instrument.auto`, or write `import sglang_instrument.auto`.
With `SGLANG_INSTRUMENT=0` in the environment it does nothing.
"""

import os

from sglang_instrument.startup import run_ids
from sglang_instrument.startup.install import install

if not run_ids.is_refused(os.environ):
    install()
