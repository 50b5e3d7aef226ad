{{- /*
cadastre.refusals fails for values that contradict each other, which the schema does not see:
with the attempt, the value, and what would be right.
*/ -}}
{{- define "cadastre.refusals" -}}
{{- $mode := include "cadastre.mode" . | fromYaml }}
{{- $conf := include "cadastre.config" . | fromYaml }}
{{- $kvdb := $conf.cadastre.kvdb | default dict }}
{{- if ne (toString $kvdb.type) $mode.store }}
{{- fail (printf "config.cadastre.kvdb.type is %q: mode %s keeps the cluster's state in %s; choose a mode that ends in %s, or remove the key"
  (toString $kvdb.type) .Values.mode $mode.store (toString $kvdb.type)) }}
{{- end }}
{{- if and (eq $mode.store "etcd") (not $kvdb.endpoints) }}
{{- fail (printf "config.cadastre.kvdb.endpoints is empty: mode %s needs the endpoints of your etcd, such as [\"https://192.0.2.10:2379\"]" .Values.mode) }}
{{- end }}
{{- $of := .Files.Get (printf "files/modes/%s.conf" .Values.mode) | fromYaml }}
{{- $blocks := $conf.cadastre.podBlocks | default "nodeid" }}
{{- if ne $blocks ($of.cadastre.podBlocks | default "nodeid") }}
{{- fail (printf "config.cadastre.podBlocks is %q: mode %s has %q; choose the mode that begins with what you want: derived, external, netresource or interfaces"
  $blocks .Values.mode ($of.cadastre.podBlocks | default "nodeid")) }}
{{- end }}
{{- $external := $conf.ipamConfig.useExternalIPAM | default false }}
{{- if ne (toString $external) (toString ($of.ipamConfig.useExternalIPAM | default false)) }}
{{- fail (printf "config.ipamConfig.useExternalIPAM is %v: mode %s has %v; the modes external-* read Node.spec.podCIDRs"
  $external .Values.mode (not $external)) }}
{{- end }}
{{- if and $mode.nodeipam .Values.operator.nodeCIDRs (not $conf.ipamConfig.podSubnetCIDR) }}
{{- fail (printf "config.ipamConfig.podSubnetCIDR is empty: in mode %s the operator assigns parts of it to the nodes; want networks such as 10.1.0.0/16" .Values.mode) }}
{{- end }}
{{- if and (not .Values.operator.nodeCIDRs) (not $mode.nodeipam) }}
{{- fail (printf "operator.nodeCIDRs is false: in mode %s no controller sets Node.spec.podCIDRs; remove the key, or choose external-kubernetes or external-etcd" .Values.mode) }}
{{- end }}
{{- if and .Values.networkPolicy.enabled (not .Values.policiesEnforced) }}
{{- fail "networkPolicy.enabled is true while policiesEnforced is false: nothing in the cluster would enforce the policy; set policiesEnforced: true if another program enforces NetworkPolicies" }}
{{- end }}
{{- if and .Values.addressPools (ne (toString $mode.netresource) "clusterpool") }}
{{- fail (printf "addressPools has %s: mode %s takes no addresses from AddressPools; choose netresource-kubernetes, or remove them"
  (keys .Values.addressPools | sortAlpha | join ", ") .Values.mode) }}
{{- end }}
{{- $vpp := eq (toString $mode.agentImage) "vpp" }}
{{- if ne $vpp (eq (toString $conf.cadastre.dataplane) "vpp") }}
{{- fail (printf "config.cadastre.dataplane is %q (with mainPlugin %s): mode vpp has vpp, and no other mode has it; choose %s, or remove the key"
  (toString $conf.cadastre.dataplane) .Values.mainPlugin ($vpp | ternary "derived-kubernetes" "vpp")) }}
{{- end }}
{{- /* lookup returns nothing without a cluster: helm template asks none. */}}
{{- if lookup "v1" "Namespace" "" "kube-system" }}
{{- $missing := list }}
{{- range list "AddressPool" "ClusterCheck" "CustomNetwork" "NetResourceSet" "NodeBeat" "NodeConfig" "NodeID" "NodeName" "Pool" "PoolChange" "PrefixClaim" }}
{{- if not ($.Capabilities.APIVersions.Has (printf "cadastre.dev/v1alpha1/%s" .)) }}
{{- $missing = append $missing . }}
{{- end }}
{{- end }}
{{- if $missing }}
{{- fail (printf "the cluster has no definition of %s: install or upgrade the chart cadastre-crds of this version first" (join ", " $missing)) }}
{{- end }}
{{- end }}
{{- end }}
