#!/bin/sh
# Makes the component. Wants componentize-py of requirements.txt in PATH.
set -eu
cd "$(dirname "$0")"
componentize-py -d wit -w publisher componentize publisher -o http-python.wasm
