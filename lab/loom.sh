#!/bin/sh
# Wrapper around rustc for `make models`: compiles the crates of this workspace for the model checker loom.
exec "$@" --cfg loom
