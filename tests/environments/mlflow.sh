#!/bin/sh
# Make .envs/mlflow: a virtual environment with MLflow, whose server receives OpenTelemetry's traces, for `tests/on_mlflow`.
# If it cannot be installed, the tests are skipped.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
folder=$root/.envs/mlflow
[ -f "$folder/.made" ] && exit
mkdir -p "$root/.envs"
exec 9>"$root/.envs/.mlflow.lock" && flock 9 # several test runs may start this at once
[ -f "$folder/.made" ] && exit
"${PYTHON:-python3}" -m venv "$folder"
"$here/install.sh" "$folder/bin/python" "mlflow>=3.6,<4" pytest pytest-xdist --editable "$root[analysis,otlp]" || {
  echo "mlflow.sh: no MLflow" >&2
  exit 0
}
touch "$folder/.made"
