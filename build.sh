#!/bin/sh
# Builds the project: an environment in .venv with the package and all that it needs.
set -eu
cd "$(dirname "$0")"
exec make install
