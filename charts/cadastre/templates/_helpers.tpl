{{- /*
cadastre.mode returns the parts of the chosen mode, of files/modes.yaml, as YAML.
*/ -}}
{{- define "cadastre.mode" -}}
{{- get (.Files.Get "files/modes.yaml" | fromYaml) .Values.mode | toYaml }}
{{- end }}

{{- /*
cadastre.overlay writes the keys of .from over those of .onto, at every depth; null removes a
key. It changes .onto. mergeOverwrite would keep a true that false is to replace.
*/ -}}
{{- define "cadastre.overlay" -}}
{{- $onto := .onto }}
{{- range $key, $value := .from }}
{{- if kindIs "invalid" $value }}
{{- $_ := unset $onto $key }}
{{- else if and (kindIs "map" $value) (kindIs "map" (get $onto $key)) }}
{{- include "cadastre.overlay" (dict "onto" (get $onto $key) "from" $value) }}
{{- else }}
{{- $_ := set $onto $key $value }}
{{- end }}
{{- end }}
{{- end }}

{{- /*
cadastre.config returns contiv.conf: that of the mode, what other values imply, and the value
config over both.
*/ -}}
{{- define "cadastre.config" -}}
{{- $conf := .Files.Get (printf "files/modes/%s.conf" .Values.mode) | fromYaml }}
{{- if eq (include "cadastre.mode" . | fromYaml).store "etcd" }}
{{- $_ := unset $conf.cadastre.kvdb "endpoints" }}
{{- end }}
{{- if .Values.metrics.tlsSecret }}
{{- $tls := dict "listen" ":10262" "cert" "/etc/cadastre-metrics/tls.crt" "key" "/etc/cadastre-metrics/tls.key" }}
{{- include "cadastre.overlay" (dict "onto" $conf.cadastre.metrics "from" $tls) }}
{{- end }}
{{- if eq .Values.mainPlugin "bridge" }}
{{- $bridge := dict "dataplane" "none" "transport" "nodeip" }}
{{- include "cadastre.overlay" (dict "onto" $conf.cadastre "from" $bridge) }}
{{- $_ := unset $conf.cadastre "cni" }}
{{- end }}
{{- include "cadastre.overlay" (dict "onto" $conf "from" .Values.config) }}
{{- toYaml $conf }}
{{- end }}

{{- /*
cadastre.image returns an image: .image has repository, tag and digest; .name is the program
and .with its cloud or data plane, which are the repository's name if it has none.
*/ -}}
{{- define "cadastre.image" -}}
{{- with .root.Values.images.registry }}{{ trimSuffix "/" . }}/{{ end }}
{{- .image.repository | default (list .name .with | compact | join "-") }}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ .image.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end }}

{{- /*
cadastre.labels returns the labels of an object of a program: .name is the program.
*/ -}}
{{- define "cadastre.labels" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/part-of: cadastre
{{- end }}

{{- /*
cadastre.scrape returns the annotations for Prometheus: .port is that of the program.
*/ -}}
{{- define "cadastre.scrape" -}}
prometheus.io/scrape: "true"
prometheus.io/scheme: https
prometheus.io/port: {{ .port | quote }}
prometheus.io/path: /metrics
{{- end }}

{{- /*
cadastre.inNamespace returns a file, with the release's namespace for cadastre-system: the
namespace is in bindings, and in the policies' name of the agents' account.
*/ -}}
{{- define "cadastre.inNamespace" -}}
{{- .root.Files.Get .path | replace "cadastre-system" .root.Release.Namespace }}
{{- end }}

{{- /*
cadastre.credentials returns the source of a cloud's credentials. A machine of EC2 may have a
role instead.
*/ -}}
{{- define "cadastre.credentials" -}}
- secretRef:
    name: {{ .root.Values.cloud.secret }}
    {{- if eq .cloud "ec2" }}
    optional: true
    {{- end }}
{{- end }}

{{- /*
cadastre.operatorArgs returns the arguments of the operator that follow from mode and
configuration.
*/ -}}
{{- define "cadastre.operatorArgs" -}}
{{- $mode := include "cadastre.mode" . | fromYaml }}
{{- $conf := include "cadastre.config" . | fromYaml }}
{{- $kvdb := $conf.cadastre.kvdb | default dict }}
{{- $pods := $conf.ipamConfig.podSubnetCIDR | default "" }}
{{- $nodeipam := and $mode.nodeipam .Values.operator.nodeCIDRs }}
{{- $service := $conf.ipamConfig.serviceCIDR | default "10.96.0.0/12" }}
- --leader-elect-resource-namespace={{ .Release.Namespace }}
- --bind-address={{ if not .Values.metrics.tlsSecret }}127.0.0.1{{ end }}:10261
{{- if not .Values.policiesEnforced }}
- --policies-not-enforced
{{- end }}
{{- if $nodeipam }}
- --allocate-node-cidrs
- --cluster-cidr={{ $pods | replace " " "" }}
- --service-cluster-ip-range={{ $service }}
{{- if contains "," $pods }}
- --node-cidr-mask-size-ipv4={{ int ($conf.ipamConfig.podSubnetOneNodePrefixLen | default 24) }}
- --node-cidr-mask-size-ipv6={{ int ($conf.ipamConfig.podSubnetOneNodePrefixLenIPv6 | default 64) }}
{{- else }}
- --node-cidr-mask-size={{ int ($conf.ipamConfig.podSubnetOneNodePrefixLen | default 24) }}
{{- end }}
{{- end }}
{{- if $mode.netresource }}
- --release-excess-ips
{{- end }}
{{- if eq (toString $mode.operatorCloud) "ec2" }}
- --ec2-cluster={{ .Values.cloud.ec2Cluster }}
{{- end }}
{{- $controllers := $mode.controllers }}
{{- if not $nodeipam }}
{{- $controllers = without $controllers "nodeipam" }}
{{- end }}
- --controllers={{ join "," $controllers }}
{{- if not $nodeipam }}
- --service-cluster-ip-range={{ $service }}
{{- end }}
{{- if eq $mode.store "kubernetes" }}
- --kvdb-type=kubernetes
{{- else }}
- --kvdb-endpoints={{ join "," (default list $kvdb.endpoints) }}
{{- range $key := list "prefix" "ca" "cert" "key" "username" }}
{{- with get $kvdb $key }}
- --kvdb-{{ $key }}={{ . }}
{{- end }}
{{- end }}
{{- with $kvdb.passwordFile }}
- --kvdb-password-file={{ . }}
{{- end }}
{{- end }}
{{- with $mode.netresource }}
- --netresource-provider={{ . }}
{{- end }}
{{- with $mode.allocator }}
- --cidr-allocator-type={{ . }}
{{- end }}
{{- if $mode.nodeipam }}
# A bit more than the agents' cadastre.nodeIDs.expire, which is 5 minutes here.
- --node-id-expire=6m
{{- end }}
{{- if .Values.metrics.tlsSecret }}
- --tls-cert-file=/etc/cadastre-metrics/tls.crt
- --tls-private-key-file=/etc/cadastre-metrics/tls.key
{{- end }}
{{- end }}
