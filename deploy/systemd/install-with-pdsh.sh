#!/bin/bash
# Installs the agent on many nodes: install-with-pdsh.sh CERTS WHEEL CONTROLLER:7070 [NODE...]
# CERTS is the output folder of `holdfast certs`; without names, all nodes in it. Needs pdsh on this machine and on the
# nodes (pdcp), root's ssh to the nodes, and Python 3.11 on them. Run it again to upgrade, after `holdfast certs --renew`,
# and for new nodes: workers train on through a restart of their agent.
set -euo pipefail

certs=${1:?the folder that holdfast certs wrote} wheel=${2:?a wheel of holdfast} controller=${3:?HOST:7070}
shift 3
here=$(dirname "$0")
target=/var/tmp/holdfast
[ $# -gt 0 ] || set -- $(cd "$certs/nodes" && ls)
for node in "$@"; do
    [ -e "$certs/nodes/$node/node.pem" ] || {
        echo "no certificate for $node: holdfast certs --dir $certs --node $node" >&2
        exit 2
    }
done
nodes=$(IFS=, && echo "$*")
export PDSH_RCMD_TYPE=ssh FANOUT=${FANOUT:-64}

# -S: the exit code is the worst of all nodes'.
pdsh -S -w "$nodes" "install -d -m 0700 $target && install -d -m 0711 /etc/holdfast && install -d -m 0700 /etc/holdfast/node"
pdcp -w "$nodes" "$wheel" "$here/holdfast-agent.service" "$here/holdfast.sysusers" "$here/agent.toml" \
    "$here/install-node.sh" "$target/"
# Each node gets its own folder and no other: pdcp would send all nodes the same files.
printf '%s\n' "$@" | xargs -P 16 -I {} scp -q "$certs/nodes/{}/ca.pem" "$certs/nodes/{}/node.pem" \
    "$certs/nodes/{}/node-key.pem" root@{}:/etc/holdfast/node/
# pdsh writes each node's name for %h.
pdsh -S -w "$nodes" "bash $target/install-node.sh %h $controller $(basename "$wheel")"
