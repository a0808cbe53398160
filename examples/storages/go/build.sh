#!/bin/sh
# Makes the component. Wants go, and `wit-bindgen` and `wasm-tools` in PATH.
set -eu
cd "$(dirname "$0")"
# The generated go.mod says less than ours.
cp go.mod go.mod.kept
wit-bindgen go wit --world storage
mv go.mod.kept go.mod
GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -ldflags="-s -w -checklinkname=0" -o core.wasm .
wasm-tools component embed --world storage wit core.wasm -o embedded.wasm
wasm-tools component new --adapt wasi_snapshot_preview1=wasi_snapshot_preview1.reactor.wasm embedded.wasm -o kv-go.wasm
