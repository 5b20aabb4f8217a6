#!/bin/sh
# rustc for the crates of this workspace, as cargo calls it for `make models`: the store under shuttle.
exec "$@" --cfg shuttle
