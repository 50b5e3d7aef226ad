#!/bin/sh
# Builds and tests this module against go.ligato.io/cn-infra/v2 and go.ligato.io/vpp-agent/v3, in a copy with their import
# paths. The public module registry refuses both, so it takes two checkouts:
#
#	ligato/v3.sh CN-INFRA VPP-AGENT [go test flags]
set -eu
[ $# -ge 2 ] || { sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 2; }
infra=$(cd "$1" && pwd) agent=$(cd "$2" && pwd)
shift 2
here=$(cd "$(dirname "$0")" && pwd)
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r "$here"/. "$copy"
cd "$copy"
grep -rlE 'github.com/(ligato|gogo)/' --include='*.go' . | xargs sed -i \
	-e 's#github.com/ligato/cn-infra/#go.ligato.io/cn-infra/v2/#' \
	-e 's#github.com/ligato/vpp-agent/api/models/linux/#go.ligato.io/vpp-agent/v3/proto/ligato/linux/#' \
	-e 's#github.com/ligato/vpp-agent/api/models/netalloc#go.ligato.io/vpp-agent/v3/proto/ligato/netalloc#' \
	-e 's#github.com/ligato/vpp-agent/#go.ligato.io/vpp-agent/v3/#' \
	-e 's#github.com/gogo/protobuf/proto#google.golang.org/protobuf/proto#' \
	-e 's#github.com/gogo/protobuf/types#google.golang.org/protobuf/types/known/emptypb#'
# v3 has the states of values in a package of its messages.
sed -i 's#kvs "go.ligato.io/vpp-agent/v3/plugins/kvscheduler/api"#kvs "go.ligato.io/vpp-agent/v3/proto/ligato/kvscheduler"#' southbound/errors.go
for m in github.com/ligato/cn-infra github.com/ligato/vpp-agent github.com/gogo/protobuf; do
	go mod edit -droprequire="$m"
done
go mod edit -replace=github.com/cadastre/cadastre="$(dirname "$here")" \
	-require=go.ligato.io/cn-infra/v2@v2.0.0 -replace=go.ligato.io/cn-infra/v2="$infra" \
	-require=go.ligato.io/vpp-agent/v3@v3.0.0 -replace=go.ligato.io/vpp-agent/v3="$agent" \
	-replace=github.com/docker/go-connections=github.com/docker/go-connections@v0.5.0 \
	-require=google.golang.org/genproto@v0.0.0-20240227224415-6ceb2ff114de
go mod tidy
go vet ./...
go test -count=1 -timeout 5m "$@" ./...
