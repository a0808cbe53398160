#!/bin/sh
# Runs the tests outside of the sandbox. Wants componentize-py of requirements.txt in PATH.
set -eu
cd "$(dirname "$0")"
# The bindings are made anew at each build; tests need a copy that Python finds.
rm -rf bindings
componentize-py -d wit -w storage bindings bindings
PYTHONPATH=bindings python3 -m unittest
