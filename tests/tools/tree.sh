#!/usr/bin/env bash
# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
#
# tree.sh DIRECTORY: lays what git tracks, and what it would track, into DIRECTORY/ansible_collections/autopilot/gpu:
# some tools resolve links and so want the collection at a true path.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
target=$1/ansible_collections/autopilot/gpu
rm -rf "$target"
mkdir -p "$target"
cd "$root"
git ls-files -z --cached --others --exclude-standard --deduplicate |
    while IFS= read -r -d '' path; do if [ -e "$path" ]; then printf '%s\0' "$path"; fi; done |
    tar --null --files-from=- --create --file=- |
    tar --extract --file=- --directory="$target"
git -C "$target" init --quiet
echo "$target"
