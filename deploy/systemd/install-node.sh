#!/bin/bash
# Runs as root on a node, in the folder that install-with-pdsh.sh has filled: install-node.sh NAME CONTROLLER:7070 WHEEL
# EXTRAS: what is installed (node: agent, trainer and stacks). PREFIX: the virtual environment (/opt/holdfast, which is
# in the unit, too).
set -euo pipefail

name=$1 controller=$2 wheel=$3
extras=${EXTRAS:-node}
prefix=${PREFIX:-/opt/holdfast}
etc=/etc/holdfast/node
cd "$(dirname "$0")"

[ -x "$prefix/bin/python" ] || python3 -m venv "$prefix"
"$prefix/bin/python" -m pip install --quiet --upgrade "./$wheel[$extras]"

install -m 0644 holdfast.sysusers /usr/lib/sysusers.d/holdfast.conf
systemd-sysusers /usr/lib/sysusers.d/holdfast.conf

sed "s|^controller = .*|controller = \"$controller\"\nnode_name = \"$name\"|" agent.toml >"$etc/holdfast.toml"
chown -R holdfast:holdfast "$etc"
chmod 0700 "$etc"
chmod 0600 "$etc"/*

install -m 0644 holdfast-agent.service /etc/systemd/system/holdfast-agent.service
systemctl daemon-reload
systemctl enable --quiet holdfast-agent
systemctl restart holdfast-agent
