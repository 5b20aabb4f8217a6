#!/bin/sh
# rustc for the crates of this workspace, as cargo calls it for `make models`: the store under loom.
exec "$@" --cfg loom
