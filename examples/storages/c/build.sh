#!/bin/sh
# Makes the component. Wants clang with the target wasm32-wasi, wasi-libc, and `wit-bindgen` and `wasm-tools` in PATH.
set -eu
cd "$(dirname "$0")"
wit-bindgen c wit --world storage --out-dir gen
"${CLANG:-clang-19}" --target=wasm32-wasi -isystem /usr/include/wasm32-wasi -std=c17 -Os -Wall -Wextra -Wno-unused-function \
  -mexec-model=reactor -Wl,--strip-debug storage.c gen/storage.c gen/storage_component_type.o -o core.wasm
wasm-tools component new core.wasm -o rows-c.wasm
