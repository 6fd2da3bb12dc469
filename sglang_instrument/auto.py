"""Install by being imported, where a trainer takes names of modules and no code.

`VERL_USE_EXTERNAL_MODULES=sglang_instrument.auto` in verl's environment, verl's setting
`actor_rollout_ref.model.external_lib=sglang_instrument.auto`, or `import sglang_instrument.auto` in a script.
`SGLANG_INSTRUMENT=0` still switches it off.
"""

import os

from sglang_instrument import launch
from sglang_instrument.switch import install

if not launch.is_refused(os.environ):
    install()
