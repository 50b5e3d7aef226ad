#!/bin/sh
# SPDX-FileCopyrightText: The Cadastre Authors
# SPDX-License-Identifier: Apache-2.0
# Copies into the charts what they share with k8s/: definitions, roles, policies and the
# configuration of each mode. "make generate" runs it; a test compares the copies.
set -eu
cd "$(dirname "$0")"
for mode in ../k8s/*/contiv.conf; do
	cp "$mode" "cadastre/files/modes/$(basename "$(dirname "$mode")").conf"
done
for component in etcd kubernetes netresource nodeipam; do
	cp "../k8s/components/$component/rbac.yaml" "cadastre/files/rbac/$component.yaml"
done
cp ../k8s/components/netresource/agent-rbac.yaml cadastre/files/rbac/netresource-agent.yaml
cp ../k8s/components/kubernetes/policy/*.yaml cadastre/files/policy/
cp ../k8s/components/netresource/agent-policy.yaml cadastre/files/netresourcesets.yaml
cp ../k8s/components/bridge/10-cadastre.conflist cadastre/files/
cp ../k8s/crd/cadastre.dev_*.yaml cadastre-crds/files/
