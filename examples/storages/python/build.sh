#!/bin/sh
# Makes the component. Wants componentize-py of requirements.txt in PATH.
set -eu
cd "$(dirname "$0")"
componentize-py -d wit -w storage componentize storage -o kv-python.wasm
