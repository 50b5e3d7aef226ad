#!/bin/sh
# SPDX-FileCopyrightText: The Cadastre Authors
# SPDX-License-Identifier: Apache-2.0
# Copies both charts into a folder, with what they share with k8s/: definitions, roles,
# policies and the configuration of each mode. Helm reads no file outside of a chart.
set -eu
: "${1:?usage: charts/pack.sh FOLDER}"
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")"
rm -rf "$out/cadastre" "$out/cadastre-crds"
cp -R cadastre cadastre-crds "$out/"
files="$out/cadastre/files"
mkdir -p "$files/modes" "$files/rbac" "$files/policy" "$out/cadastre-crds/files"
cp ../k8s/modes.yaml "$files/"
for mode in ../k8s/*/contiv.conf; do
	cp "$mode" "$files/modes/$(basename "$(dirname "$mode")").conf"
done
for component in etcd kubernetes netresource nodeipam; do
	cp "../k8s/components/$component/rbac.yaml" "$files/rbac/$component.yaml"
done
cp ../k8s/components/netresource/agent-rbac.yaml "$files/rbac/netresource-agent.yaml"
cp ../k8s/components/kubernetes/policy/*.yaml "$files/policy/"
cp ../k8s/components/netresource/agent-policy.yaml "$files/netresourcesets.yaml"
cp ../k8s/components/bridge/10-cadastre.conflist "$files/"
cp ../k8s/crd/cadastre.dev_*.yaml "$out/cadastre-crds/files/"
