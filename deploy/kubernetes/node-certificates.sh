#!/bin/bash
# Copies each node's own certificate to that node's disk: [IMAGE=holdfast:0.1.0] node-certificates.sh CERTS [NODE...]
# CERTS is the output folder of `holdfast certs`. Run it again after `holdfast certs --renew`, and for new nodes. If
# nodes are set up by other tools, copy CERTS/nodes/NAME to /etc/holdfast/node there instead, for the agents' user
# only (10002, mode 0700).
set -euo pipefail

certs=${1:?the folder that holdfast certs wrote}
shift
here=$(dirname "$0")
image=${IMAGE:-holdfast:0.1.0}  # any image with `install`, from where your nodes get theirs
[ $# -gt 0 ] || set -- $(cd "$certs/nodes" && ls)

for node in "$@"; do
    pod=holdfast-certificate-$node
    secret=holdfast-node-$node
    # The secret exists only during the copy.
    trap 'kubectl -n holdfast delete --ignore-not-found --wait=false "pod/$pod" "secret/$secret"' EXIT
    kubectl -n holdfast delete --ignore-not-found "pod/$pod" "secret/$secret"
    kubectl -n holdfast create secret generic "$secret" --from-file="$certs/nodes/$node"
    sed -e "s/NODE_NAME/$node/g" -e "s|image: .*|image: $image|" "$here/node-certificate.yml" | kubectl create -f -
    kubectl -n holdfast wait --for=jsonpath='{.status.phase}'=Succeeded --timeout=180s "pod/$pod"
    kubectl -n holdfast delete "pod/$pod" "secret/$secret"
done
trap - EXIT
