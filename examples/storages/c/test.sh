#!/bin/sh
# Runs the tests natively. Wants what build.sh wants, and that it ran before.
set -eu
cd "$(dirname "$0")"
"${CLANG:-clang-19}" -std=c17 -g -Wall -Wextra -Wno-unused-function test.c -o test-native
./test-native
