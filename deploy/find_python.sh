#!/bin/sh
# Print the first Python on the PATH that is 3.11 or newer and can make an environment.
for candidate in python3.11 python3.12 python3.13 python3; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
        >/dev/null 2>&1; then
        echo "$candidate"
        exit 0
    fi
done
echo "shoal needs Python 3.11 or newer with venv (Debian: apt install python3 python3-venv)." >&2
exit 1
