#!/bin/bash
# Puts each node's own certificate on that node's disk, and nothing of any other's: node-certificates.sh CERTS [NODE...]
# CERTS is the folder that `holdfast certs` wrote. Again after `holdfast certs --renew`, and for nodes that come later.
# Where machines are set up by other means, copy CERTS/nodes/NAME to /etc/holdfast/node there, for the agents' user alone
# (10002, mode 0700), and skip this.
set -euo pipefail

certs=${1:?the folder that holdfast certs wrote}
shift
here=$(dirname "$0")
[ $# -gt 0 ] || set -- $(cd "$certs/nodes" && ls)

for node in "$@"; do
    pod=holdfast-certificate-$node
    secret=holdfast-node-$node
    # The secret is there for as long as the copy takes.
    trap 'kubectl -n holdfast delete --ignore-not-found --wait=false "pod/$pod" "secret/$secret"' EXIT
    kubectl -n holdfast delete --ignore-not-found "pod/$pod" "secret/$secret"
    kubectl -n holdfast create secret generic "$secret" --from-file="$certs/nodes/$node"
    sed "s/NODE_NAME/$node/g" "$here/node-certificate.yml" | kubectl create -f -
    kubectl -n holdfast wait --for=jsonpath='{.status.phase}'=Succeeded --timeout=180s "pod/$pod"
    kubectl -n holdfast delete "pod/$pod" "secret/$secret"
done
trap - EXIT
