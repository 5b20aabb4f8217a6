#!/bin/sh
# Wrapper around rustc for `make models`: compiles the crates of this workspace for the scheduler tests of shuttle.
exec "$@" --cfg shuttle
