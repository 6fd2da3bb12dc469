#!/bin/sh
# Make .envs/ray: a virtual environment with Ray, for `tests/test_ray.py`.
# Run from the repository's root: tests/environments/ray.sh && .envs/ray/bin/python -m pytest tests/test_ray.py
set -eu
ENVIRONMENT=.envs/ray
[ -x "$ENVIRONMENT/bin/python" ] || "${PYTHON:-python3}" -m venv "$ENVIRONMENT"
"$ENVIRONMENT/bin/python" -m pip install --quiet --disable-pip-version-check "ray>=2.9" pytest --editable '.[analysis]'
